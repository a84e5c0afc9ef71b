"""Several runs judged as one: hand-computed goodput and verdict, and windows that abut."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.request import RequestEvent
from engine.trace import IterationRecord
from workloads.metrics import Window, summarize
from workloads.pool import Part, pool, pool_waits
from workloads.records import RequestRecord
from workloads.slo import parse_slo

MS = 1_000_000
S = 1_000_000_000
SLO = parse_slo(["p95_ttft=1s"])

MakeRecord = Callable[..., RequestRecord]


def step(iteration: int, t_start: int, t_end: int, **changes: Any) -> IterationRecord:
    names = (name for name in IterationRecord.__dataclass_fields__ if name not in ("wait_cause", "blocked_request"))
    return IterationRecord(
        **dict.fromkeys(names, 0) | {"iteration": iteration, "t_start": t_start, "t_end": t_end} | changes
    )


def request(make_record: MakeRecord, index: int, at_s: float, ttft_ms: int, **changes: Any) -> RequestRecord:
    """Scheduled at `at_s`, first token after `ttft_ms`, three more at 100 ms each."""
    at = round(at_s * S)
    first = at + ttft_ms * MS
    chunks = [(first + i * 100 * MS, 1) for i in range(4)]
    good = ttft_ms <= 1000 and changes.get("status", "ok") == "ok"
    times = {"t_sched": at, "t_send": at, "t_admit": at}
    return make_record(chunks, index=index, good=good, **times | changes)


@pytest.fixture
def parts(make_record: MakeRecord) -> list[Part]:
    """Two runs with windows of 10 and 6 seconds on clocks of their own; 30 + 10 window requests, 2 + 1 missed."""
    first = [request(make_record, i, 102 + i * 0.3, 2000 if i in (4, 9) else 300) for i in range(30)]
    first += [
        request(make_record, i, at_s, 5000, phase=p) for i, at_s, p in ((30, 101, "warmup"), (31, 113, "cooldown"))
    ]
    second = [
        request(make_record, i, 50 + i * 0.5, 200, **({"status": "timeout"} if i == 9 else {})) for i in range(10)
    ]
    first_steps = [
        step(0, 101 * S, 102 * S - 1),
        step(1, 102 * S, 103 * S, prefill_tokens=10),
        step(2, 111 * S, 113 * S, decode_tokens=4),
        step(3, 112 * S, 114 * S),
    ]
    second_steps = [step(0, 49 * S, 51 * S), step(1, 50 * S, 52 * S, decode_tokens=8), step(2, 56 * S, 57 * S)]
    return [
        (first, first_steps, Window(102 * S, 112 * S)),
        (second, second_steps, Window(50 * S, 56 * S)),
    ]


def test_goodput_and_throughput_are_those_of_all_windows_together(parts: list[Part]) -> None:
    requests, iterations, window = pool(parts)
    summary = summarize(requests, iterations, window, SLO)
    assert window == Window(0, 16 * S)
    assert summary["duration"] == 16.0
    assert summary["good_requests"] == 37
    assert summary["request_goodput"] == pytest.approx(37 / 16)
    assert summary["completed"] == 39
    assert summary["request_throughput"] == pytest.approx(39 / 16)
    assert summary["prefill_tokens"] == 10
    assert summary["decode_tokens"] == 12


def test_the_verdict_counts_the_requests_of_all_windows(parts: list[Part]) -> None:
    requests, _, _ = pool(parts)
    verdict = SLO.judge(requests)
    bound = verdict.bounds[0]
    assert bound.met_share == pytest.approx(37 / 40)
    assert not verdict.meets
    assert verdict.state == "undecided"
    # One miss fewer is 38 of 40, exactly the share that is required.
    better = [replace(r, status="ok") if r.status == "timeout" else r for r in requests]
    assert SLO.judge(better).meets


def test_only_window_requests_are_kept_and_numbered_anew(parts: list[Part]) -> None:
    requests, _, _ = pool(parts)
    assert [r.index for r in requests] == list(range(40))
    assert {r.phase for r in requests} == {"window"}


def test_every_time_of_a_request_moves_by_the_same(parts: list[Part]) -> None:
    requests, _, _ = pool(parts)
    for pooled, shift_s in ((requests[0], -102), (requests[29], -102), (requests[30], -50 + 10), (requests[39], -40)):
        source = parts[0 if shift_s == -102 else 1][0][pooled.index if shift_s == -102 else pooled.index - 30]
        for name in ("t_sched", "t_send", "t_admit", "t_first", "t_last", "t_end"):
            assert getattr(pooled, name) == getattr(source, name) + shift_s * S
        assert pooled.chunk_times == tuple(t + shift_s * S for t in source.chunk_times)
    assert requests[29].t_sched < 10 * S <= requests[30].t_sched


def test_histories_move_with_their_requests(make_record: MakeRecord) -> None:
    history = (RequestEvent(5 * S, "queued", 10), RequestEvent(7 * S, "preempted", 12, 3, "swap:req-1"))
    pooled, _, _ = pool(
        [([], [], Window(0, 2 * S)), ([make_record(t_sched=5 * S, history=history)], [], Window(4 * S, 6 * S))]
    )
    assert pooled[0].history == (replace(history[0], time_ns=3 * S), replace(history[1], time_ns=5 * S))


def test_a_wait_beyond_its_window_keeps_the_causes_it_had_there(make_record: MakeRecord) -> None:
    late = make_record(t_sched=3 * S, t_send=3 * S, t_admit=8 * S)
    steps = [step(i, i * S, (i + 1) * S, wait_cause="seats" if i < 5 else "budget") for i in range(10)]
    other = [step(i, i * S, (i + 1) * S, wait_cause="batch") for i in range(10)]
    parts: list[Part] = [([late], steps, Window(0, 4 * S)), ([replace(late, t_admit=4 * S)], other, Window(0, 4 * S))]
    summary = summarize(*pool(parts), SLO, pool_waits(parts))
    means = {cause: summary[f"mean_wait_{cause}_ms"] for cause in ("seats", "budget", "batch", "step")}
    assert means == {"seats": 1000.0, "budget": 1500.0, "batch": 500.0, "step": 0.0}


def test_a_time_that_was_not_measured_stays_so(make_record: MakeRecord) -> None:
    silent = make_record([], index=0, status="timeout", t_sched=5 * S, t_admit=None, t_end=None)
    pooled, _, _ = pool([([silent], [], Window(5 * S, 6 * S))])
    assert (pooled[0].t_sched, pooled[0].t_first, pooled[0].t_admit, pooled[0].t_end) == (0, None, None, None)


def test_windows_abut_and_steps_neither_overlap_nor_leave_them(parts: list[Part]) -> None:
    _, iterations, window = pool(parts)
    assert [(s.t_start, s.t_end) for s in iterations] == [(0, 1 * S), (9 * S, 10 * S), (10 * S, 12 * S)]
    assert all(window.start_ns <= s.t_start <= s.t_end <= window.end_ns for s in iterations)


def test_one_run_pooled_says_what_it_said_before(parts: list[Part]) -> None:
    requests, iterations, window = parts[0]
    inside = [s for s in iterations if window.start_ns <= s.t_start < window.end_ns]
    clipped = [replace(s, t_end=min(s.t_end, window.end_ns)) for s in inside]
    pooled = summarize(*pool(parts[:1]), SLO)
    assert pooled == summarize(requests, clipped, window, SLO)


def test_nothing_pooled_is_nothing() -> None:
    assert pool([]) == ([], [], Window(0, 0))
