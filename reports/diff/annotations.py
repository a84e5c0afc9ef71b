"""A diff as workflow commands of GitHub Actions, which shows them beside the job."""

from collections.abc import Mapping

from reports.diff.checks import checks_of
from reports.diff.diff import Diff, Verdict
from reports.diff.text import headline
from reports.format import clean
from reports.view import Tone

_LEVELS: Mapping[Verdict, str] = {
    Verdict.WORSE: "error",
    Verdict.CANNOT_TELL: "warning",
    Verdict.BETTER: "notice",
}
_OVERALL: Mapping[Tone, str] = {Tone.BAD: "error", Tone.WARN: "warning"}


def to_annotations(diff: Diff) -> list[str]:
    """The headline first, then what is worse, cannot be told, or is better: one line each."""
    told = headline(diff)
    lines = [command(_OVERALL.get(told.tone, "notice"), "tune diff", told.sentence)]
    lines += [
        command(level, f"{check.name}: {check.verdict.value}", check.text)
        for check in checks_of(diff)
        if (level := _LEVELS.get(check.verdict)) is not None
    ]
    return lines


def command(level: str, title: str, message: str) -> str:
    """One workflow command: `error`, `warning` or `notice`."""
    return f"::{level} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(message)}"


def _escaped(value: str) -> str:
    """Text in which nothing ends the command: a per cent sign is what the runner's escapes begin with."""
    return clean(value).replace("%", "%25")
