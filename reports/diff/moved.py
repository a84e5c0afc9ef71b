"""What moved between two simulated runs of the same traffic: the first step and the first request that differ.

A simulated run is the same every time, so any difference is one of behaviour. Whole numbers are compared exactly, times
within a microsecond, which leaves room for rounding and for nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from engine.trace import IterationRecord
from reports.diff.side import Recorded
from workloads.records import RequestRecord

TIME_TOLERANCE_NS = 1_000

# How many blocks there are is a matter of memory, the same in every step: it is among the counters.
_STEP_FIELDS = tuple(f.name for f in fields(IterationRecord) if f.name != "kv_blocks_total")
_REQUEST_FIELDS = ("status", "t_admit", "t_first", "t_last", "t_end", "output_tokens", "cached_tokens", "preemptions")


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs."""

    name: str
    base: Any
    new: Any


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first iteration that differs.

    Attributes:
        number: its row, from 0.
        changes: the columns that differ; empty where one side had no such iteration any more.
    """

    number: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The first request that was admitted at another place in the order, or else at another time.

    Attributes:
        index: its place in the traffic.
        request_id: its name in the records.
        reordered: its place among the admissions is another; else only the time is.
        base_place, new_place: places among the admissions, from 1; None where it was never admitted.
        base_ns, new_ns: times of admission; None likewise.
    """

    index: int
    request_id: str
    reordered: bool
    base_place: int | None
    new_place: int | None
    base_ns: int | None
    new_ns: int | None


@dataclass(frozen=True, slots=True)
class Moved:
    """What moved under one seed's traffic; false when nothing did.

    Attributes:
        steps: iterations that differ, and of how many in the longer run.
        requests: requests that differ, and of how many.
        counters: totals over the whole run that differ, and the number of KV blocks there are.
    """

    seed: int
    first_step: FirstStep | None
    steps: int
    total_steps: int
    first_request: FirstRequest | None
    requests: int
    total_requests: int
    counters: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.steps or self.requests or self.counters)


def what_moved(seed: int, base: Recorded, new: Recorded) -> Moved:
    """Compare two runs row by row.

    Args:
        seed: of the traffic that both had.
    """
    ours, theirs = base.iteration_records(), new.iteration_records()
    requests = base.request_records(), new.request_records()
    first, different = None, 0
    for number in range(max(len(ours), len(theirs))):
        if number >= min(len(ours), len(theirs)):
            changes: tuple[Change, ...] = ()
        elif not (changes := _changes(ours[number], theirs[number], _STEP_FIELDS)):
            continue
        first = first or FirstStep(number, changes)
        different += 1
    by_index = [{record.index: record for record in side} for side in requests]
    indices = sorted(by_index[0].keys() | by_index[1].keys())
    changed = [
        index
        for index in indices
        if index not in by_index[0]
        or index not in by_index[1]
        or _changes(by_index[0][index], by_index[1][index], _REQUEST_FIELDS)
    ]
    return Moved(
        seed=seed,
        first_step=first,
        steps=different,
        total_steps=max(len(ours), len(theirs)),
        first_request=_first_request(*requests),
        requests=len(changed),
        total_requests=len(indices),
        counters=_counters(ours, theirs),
    )


def _differ(name: str, base: Any, new: Any) -> bool:
    is_time = name.startswith("t_") or name.endswith("_ns")
    if is_time and isinstance(base, int) and isinstance(new, int):
        return abs(base - new) > TIME_TOLERANCE_NS
    return base != new


def _changes(base: object, new: object, names: Sequence[str]) -> tuple[Change, ...]:
    pairs = ((name, getattr(base, name), getattr(new, name)) for name in names)
    return tuple(Change(name, a, b) for name, a, b in pairs if _differ(name, a, b))


def _first_request(base: Sequence[RequestRecord], new: Sequence[RequestRecord]) -> FirstRequest | None:
    """The earliest admission at which the sides part; a request out of order says more than one that was late."""
    places = _places(base), _places(new)
    times = [{r.index: r.t_admit for r in side} for side in (base, new)]
    names = {r.index: r.request_id for r in (*new, *base)}
    order = sorted(names, key=lambda index: (_least(p.get(index) for p in places), index))

    def found(index: int, *, reordered: bool) -> FirstRequest:
        return FirstRequest(
            index, names[index], reordered,
            places[0].get(index), places[1].get(index), times[0].get(index), times[1].get(index),
        )  # fmt: skip

    for index in order:
        if places[0].get(index) != places[1].get(index):
            return found(index, reordered=True)
    for index in order:
        if _differ("t_admit", times[0].get(index), times[1].get(index)):
            return found(index, reordered=False)
    return None


def _places(requests: Sequence[RequestRecord]) -> Mapping[int, int]:
    """Request index to its place among the first admissions, from 1; those of one step in the order of arrival."""
    admitted = sorted((r.t_admit, r.index) for r in requests if r.t_admit is not None)
    return {index: place for place, (_, index) in enumerate(admitted, start=1)}


def _least(places: Any) -> float:
    return min((place for place in places if place is not None), default=float("inf"))


def _counters(base: Sequence[IterationRecord], new: Sequence[IterationRecord]) -> tuple[Change, ...]:
    totals = [
        {
            "iterations": len(steps),
            "end_ns": steps[-1].t_end if steps else None,
            "preemptions": sum(s.preemptions_recompute + s.preemptions_swap for s in steps),
            "recomputed_tokens": sum(s.recomputed_tokens for s in steps),
            "cached_tokens": sum(s.cached_tokens for s in steps),
            "prefill_tokens": sum(s.prefill_tokens for s in steps),
            "decode_tokens": sum(s.decode_tokens for s in steps),
            "kv_blocks": max((s.kv_blocks_total for s in steps), default=0),
            "peak_kv_blocks": max((s.kv_blocks_used for s in steps), default=0),
        }
        for steps in (base, new)
    ]
    return tuple(Change(n, totals[0][n], totals[1][n]) for n in totals[0] if _differ(n, totals[0][n], totals[1][n]))
