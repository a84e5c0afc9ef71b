"""What goes to files and to CI systems, made once for all of them."""

from dataclasses import dataclass
from typing import Any

from reports.diff.annotations import to_annotations
from reports.diff.diff import Diff
from reports.diff.json_form import to_json
from reports.diff.junit import to_junit
from reports.diff.markdown import to_markdown


@dataclass(frozen=True, slots=True)
class Forms:
    """A diff for programs.

    Attributes:
        json: everything, as an object.
        markdown: short enough for a comment on a pull request.
        junit: XML.
        annotations: workflow commands of GitHub Actions, a line each.
    """

    json: dict[str, Any]
    markdown: str
    junit: str
    annotations: tuple[str, ...]


def forms_of(diff: Diff) -> Forms:
    """Every form of a diff."""
    return Forms(to_json(diff), to_markdown(diff), to_junit(diff), tuple(to_annotations(diff)))
