"""Where the host's time goes in a step, and which of it the device spends waiting. For `tune profile`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.trace import IterationRecord, Phase, PhaseMark

if TYPE_CHECKING:
    from rich.table import Table

ELSEWHERE = "elsewhere"
"""Whatever is no phase of a step: the clients of the engine, and whoever records."""

_NS_PER_MS = 1e6
_HEADINGS = ("what the host does", "ms per step", "share of the time", "of the device's idle time")


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase over all steps.

    Attributes:
        name: of the phase, or `ELSEWHERE`.
        total_ns: host time spent on it.
        idle_ns: the part of it while the device had nothing to do.
    """

    name: str
    total_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class HostProfile:
    """What was seen.

    Attributes:
        steps: how many steps.
        span_ns: from the first mark to the last.
        idle_ns: time between two steps in which the device had nothing to do.
        on_cpu: the host is the device, so LAUNCH is the model's arithmetic and what lies between steps is all idle.
        phases: in the order of a step.
    """

    steps: int
    span_ns: int
    idle_ns: int
    on_cpu: bool
    phases: tuple[PhaseTime, ...]

    @property
    def summary(self) -> str:
        """One sentence."""
        return (
            f"{self.steps} steps in {self.span_ns / 1e9:.2f} s; between them the device was idle for "
            f"{_share(self.idle_ns, self.span_ns)} of the time."
        )

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table, as text; see `_HEADINGS`."""
        return [
            (
                phase.name,
                f"{phase.total_ns / _NS_PER_MS / max(self.steps, 1):.3f}",
                _share(phase.total_ns, self.span_ns),
                _share(phase.idle_ns, self.idle_ns),
            )
            for phase in self.phases
        ]


def host_profile(marks: Sequence[PhaseMark], records: Sequence[IterationRecord]) -> HostProfile | None:
    """Lay the device's gaps over the host's phases.

    A device that is idle begins as soon as the host gives it something, so a step's gap ends where the host begins to
    launch it; where the host is the device, where the step begins.

    Args:
        marks: of some time, in any order.
        records: of the same run; those of other steps are passed over.

    Returns:
        None when no whole step lies within the marks.
    """
    record_of = {record.iteration: record for record in records}
    begins = _begins(marks, record_of)
    if not begins:
        return None
    first, last = min(mark.begin_ns for mark in marks), max(mark.end_ns for mark in marks)
    gaps = [
        (max(first, begin - record_of[iteration].gap_ns), begin)
        for iteration, begin in begins.items()
        if record_of[iteration].gap_ns > 0
    ]
    idle_ns = sum(end - begin for begin, end in gaps)
    phases = []
    for phase in Phase:
        spans = [(mark.begin_ns, mark.end_ns) for mark in marks if mark.phase is phase]
        total_ns = sum(end - begin for begin, end in spans)
        phases.append(PhaseTime(phase.value, total_ns, _common_ns(sorted(spans), sorted(gaps))))
    rest_ns = last - first - sum(phase.total_ns for phase in phases)
    rest_idle_ns = idle_ns - sum(phase.idle_ns for phase in phases)
    phases.append(PhaseTime(ELSEWHERE, max(0, rest_ns), max(0, rest_idle_ns)))
    on_cpu = all(record_of[iteration].device_time_ns is None for iteration in begins)
    return HostProfile(len(begins), last - first, idle_ns, on_cpu, tuple(phases))


def profile_markdown(profile: HostProfile) -> str:
    """The content of `profile.md`."""
    lines = ["# Host profile", "", profile.summary, ""]
    if profile.on_cpu:
        lines += ["The host is the device: its launch is the model's arithmetic.", ""]
    lines += [f"| {' | '.join(_HEADINGS)} |", "|---|---:|---:|---:|"]
    lines += [f"| {' | '.join(row)} |" for row in profile.rows()]
    return "\n".join(lines) + "\n"


def profile_table(profile: HostProfile) -> "Table":
    """The same for the terminal."""
    from rich.table import Table

    table = Table(title=profile.summary, title_justify="left")
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if number else "left")
    for row in profile.rows():
        table.add_row(*row)
    return table


def _begins(marks: Sequence[PhaseMark], record_of: Mapping[int, IterationRecord]) -> dict[int, int]:
    """When the device could begin each step, by iteration."""
    begins: dict[int, int] = {}
    for mark in marks:
        record = record_of.get(mark.iteration)
        if record is not None and mark.phase is (Phase.INPUT_BATCH if record.device_time_ns is None else Phase.LAUNCH):
            begins[mark.iteration] = mark.begin_ns
    return begins


def _common_ns(spans: Sequence[tuple[int, int]], gaps: Sequence[tuple[int, int]]) -> int:
    """Length of what two ascending lists of intervals have in common, neither with overlaps of its own."""
    total = i = j = 0
    while i < len(spans) and j < len(gaps):
        total += max(0, min(spans[i][1], gaps[j][1]) - max(spans[i][0], gaps[j][0]))
        if spans[i][1] < gaps[j][1]:
            i += 1
        else:
            j += 1
    return total


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
