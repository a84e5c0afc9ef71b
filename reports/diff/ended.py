"""A gate that ended without a comparison, in the forms that a diff has: a CI system has to hear of it."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

from reports.diff.annotations import command
from reports.diff.diff import CANNOT_TELL, REGRESSION
from reports.diff.forms import Forms
from reports.diff.junit import suite_text
from reports.diff.markdown import marked
from reports.format import clean
from workloads.records import SCHEMA_VERSION

_LEVELS = {REGRESSION: "error", CANNOT_TELL: "warning"}


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of it.

    Attributes:
        base, new: names of the sides.
        sentence: why it ended, complete.
    """

    base: str
    new: str
    exit_code: int
    sentence: str


def forms_of_ended(ended: Ended) -> Forms:
    """Every form, with the sentence in the place of the headline."""
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "diff",
        "exit_code": ended.exit_code,
        "headline": ended.sentence,
        "base": {"name": ended.base},
        "new": {"name": ended.new},
        "lines": [],
    }
    annotation = command(_LEVELS.get(ended.exit_code, "notice"), "tune ci", ended.sentence)
    markdown = f"### {marked(ended.exit_code, ended.sentence)}\n"
    return Forms(content, markdown, _junit(ended), (annotation,))


def _junit(ended: Ended) -> str:
    failed = ended.exit_code == REGRESSION
    suite = ET.Element(
        "testsuite",
        name=clean(f"tune ci {ended.base} {ended.new}"),
        tests="1",
        failures=str(int(failed)),
        errors="0",
        skipped=str(int(not failed)),
        time="0",
    )
    case = ET.SubElement(suite, "testcase", classname="tune.diff", name="runs", time="0")
    told = clean(ended.sentence)
    if failed:
        ET.SubElement(case, "failure", type="worse", message=told).text = told
    else:
        ET.SubElement(case, "skipped", message=told)
    return suite_text(suite)
