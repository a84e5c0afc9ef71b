"""The SLO as a line of its own: what was held before and is proven to be missed now."""

from collections.abc import Sequence
from typing import Any

from reports.diff.diff import SloLine, Verdict
from reports.diff.side import Side, SideRun
from reports.format import attained_percent, attained_range, milliseconds
from workloads.metrics import Window
from workloads.pool import pool
from workloads.slo import parse_slo
from workloads.verdict import Verdict as SloVerdict


def slo_line(base: Side, new: Side, *, gated: bool) -> SloLine | None:
    """Both sides judged by the base's SLO, each over its runs together; None without one, or without a run to judge.

    Of several runs of one seed the first counts: they repeat the same traffic, and would count the same requests twice.
    """
    text = base.meta.get("slo") or new.meta.get("slo")
    if text is None or not base.trusted or not new.trusted:
        return None
    before, now = (_judged(text, side) for side in (base, new))
    return SloLine(text, before.state, now.state, _verdict(before, now), _detail(now.to_dict()["bounds"]), gated)


def _judged(slo: str, side: Side) -> SloVerdict:
    first: dict[int, SideRun] = {}
    for run in side.trusted:
        first.setdefault(run.seed, run)
    parts = []
    for run in first.values():
        window = run.record.meta["window"]
        steps: Sequence[Any] = ()
        parts.append((run.record.request_records(), steps, Window(window["start_ns"], window["end_ns"])))
    requests, _, _ = pool(parts)
    return parse_slo([slo]).judge(requests)


def _verdict(before: SloVerdict, now: SloVerdict) -> Verdict:
    if before.state == now.state:
        return Verdict.SAME
    if (before.state, now.state) == ("feasible", "infeasible"):
        return Verdict.WORSE
    if (before.state, now.state) == ("infeasible", "feasible"):
        return Verdict.BETTER
    # One of them is undecided: as long as it leans to the side of the other, nothing speaks for a change.
    return Verdict.SAME if before.meets == now.meets else Verdict.CANNOT_TELL


def _detail(bounds: Sequence[dict[str, Any]]) -> str:
    parts = []
    for bound in bounds:
        held = attained_percent(bound["met_share"])
        if bound["share_low"] is not None:
            held += f" ({attained_range(bound['share_low'], bound['share_high'])})"
        observed = milliseconds(bound["observed_ms"])
        parts.append(f"{bound['text']} is {bound['state']}: {observed}, held by {held} of its requests")
    return "; ".join(parts)
