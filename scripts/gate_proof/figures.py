"""What trials come to: how often the gate raised an alarm, passed, or could not tell, and by which metric."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from reports.diff.diff import CANNOT_TELL, FINE, REGRESSION
from scripts.gate_proof.change import NOTHING, SLOWDOWN
from scripts.search_proof.goals import goal, percent
from workloads.intervals import share_high, share_low

MOST_ALARMS, FEWEST_FOUND = 0.05, 0.90
# Of a two-sided 95 % interval.
_ALPHA = 0.025


def figures(judgements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts over trials of one kind, each `{exit_code, verdicts: {line: verdict}}`.

    Returns:
        `{trials, alarms, cannot_tell, passed, alarm_share, alarm_low, alarm_high, lines: {name: {verdict: count}}}`;
        shares with Clopper and Pearson's 95 % interval.
    """
    codes = Counter(judgement["exit_code"] for judgement in judgements)
    trials, alarms = len(judgements), codes[REGRESSION]
    lines: dict[str, Counter[str]] = {}
    for judgement in judgements:
        for name, verdict in judgement["verdicts"].items():
            lines.setdefault(name, Counter())[verdict] += 1
    return {
        "trials": trials,
        "alarms": alarms,
        "cannot_tell": codes[CANNOT_TELL],
        "passed": codes[FINE],
        "alarm_share": alarms / trials,
        "alarm_low": share_low(alarms, trials, _ALPHA),
        "alarm_high": share_high(alarms, trials, _ALPHA),
        "lines": {name: dict(counts) for name, counts in lines.items()},
    }


def goals_of(what: str, by_change: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Whether the gate alarms seldom enough without a change, and often enough at a slowdown of 10 %."""
    found = []
    if (nothing := by_change.get(NOTHING.name)) is not None:
        found.append(
            goal(
                f"{what}: alarms without a change in at most {percent(MOST_ALARMS, 0)}",
                met=nothing["alarm_share"] <= MOST_ALARMS,
                found=_found(nothing),
            )
        )
    if (slower := by_change.get(SLOWDOWN.name)) is not None:
        found.append(
            goal(
                f"{what}: a slowdown of 10 % found in at least {percent(FEWEST_FOUND, 0)}",
                met=slower["alarm_share"] >= FEWEST_FOUND,
                found=_found(slower),
            )
        )
    return found


def _found(counts: Mapping[str, Any]) -> str:
    return f"{percent(counts['alarm_share'])} ({interval(counts)}) of {counts['trials']}"


def interval(counts: Mapping[str, Any]) -> str:
    """The interval of the share of alarms."""
    return f"{percent(counts['alarm_low'])} to {percent(counts['alarm_high'])}"
