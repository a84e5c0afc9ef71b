"""From a folder of records to the reports beside them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from engine.errors import UserError
from reports.comparison import COMPARISON_FILE, load_comparison
from reports.comparison_view import comparison_report
from reports.html import to_html
from reports.markdown import to_markdown
from reports.run_view import run_report
from reports.study import STUDY_FILE, load_run, load_study
from reports.study_view import study_report
from reports.view import Report
from workloads.records import RUN_FILE, write_atomic

HTML_FILE = "report.html"
MARKDOWN_FILE = "report.md"


def write_reports(folder: Path) -> list[Path]:
    """Write `report.html` and `report.md` into the folder of a run, a study or a comparison, each whole or not at all.

    Returns:
        Both files.

    Raises:
        UserError: the folder holds none of them, a file is damaged or of another schema, or the reports cannot be
            written.
    """
    report = build_report(folder)
    outputs = {folder / HTML_FILE: to_html(report), folder / MARKDOWN_FILE: to_markdown(report)}
    try:
        for path, content in outputs.items():
            write_atomic(path, content)
    except OSError as error:
        raise UserError(f"cannot write a report into {folder}: {error.strerror or error}") from error
    return list(outputs)


def build_report(folder: Path) -> Report:
    """What the records in `folder` say.

    Raises:
        UserError: the folder holds none of them, or a file is damaged or of another schema.
    """
    for name, build in _KINDS.items():
        if (folder / name).is_file():
            return build(folder)
    raise UserError(
        f"{folder} is not the folder of a run, a study or a comparison: give one that holds {', '.join(_KINDS)}"
    )


_KINDS: Mapping[str, Callable[[Path], Report]] = {
    STUDY_FILE: lambda folder: study_report(load_study(folder)),
    COMPARISON_FILE: lambda folder: comparison_report(load_comparison(folder)),
    RUN_FILE: lambda folder: run_report(load_run(folder)),
}
