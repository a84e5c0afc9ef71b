"""Simulated sides under the same traffic: equal or not, and what moved."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import UserError
from engine.trace import IterationRecord
from reports.diff.diff import Diff, Verdict
from reports.diff.judge import judge
from reports.diff.moved import what_moved
from reports.diff.rules import parse_rule
from reports.diff.side import InMemory, Side
from reports.diff.text import headline, moved_lines
from tests.reports.conftest import DEFAULTS
from tests.reports.made_up_sides import made_up_run, made_up_side, side_of
from tests.reports.toy_server import serve
from workloads.records import RequestRecord

SIMULATED = {"simulated": True}
REQUESTS, STEPS, _ = serve(tuple(DEFAULTS.items()), 6.0, 1)

ChangeSteps = Callable[[list[IterationRecord]], list[IterationRecord]]
ChangeRequests = Callable[[list[RequestRecord]], list[RequestRecord]]


def simulated(
    name: str,
    values: dict[int, float],
    steps: ChangeSteps = lambda steps: steps,
    requests: ChangeRequests = lambda requests: requests,
) -> Side:
    runs = [
        made_up_run(
            seed, name, requests(list(REQUESTS)), steps(list(STEPS)),
            change=SIMULATED, mean_ttft_ms=value, output_throughput=100.0,
        )
        for seed, value in values.items()
    ]  # fmt: skip
    return made_up_side(name, runs)


def ttft(diff: Diff) -> Any:
    return next(line for line in diff.lines if line.metric.name == "mean_ttft")


@pytest.mark.parametrize(
    ("new", "verdict", "code"),
    [
        (100.0, Verdict.SAME, 0),
        (100.0 * (1 + 5e-7), Verdict.SAME, 0),
        (100.0 * (1 + 5e-6), Verdict.WORSE, 1),
        (100.0 * (1 - 5e-6), Verdict.BETTER, 0),
    ],
)
def test_any_difference_beyond_rounding_is_better_or_worse(new: float, verdict: Verdict, code: int) -> None:
    diff = judge(simulated("base", {1: 100.0}), simulated("new", {1: new}))
    assert (ttft(diff).verdict, diff.exit_code, diff.exact) == (verdict, code, True)


def test_a_rule_gives_room() -> None:
    sides = simulated("base", {1: 100.0}), simulated("new", {1: 103.0})
    assert judge(*sides, rules=[parse_rule("mean_ttft>+5%")]).exit_code == 0
    assert judge(*sides, rules=[parse_rule("mean_ttft>+3%")]).exit_code == 0  # the limit itself is not beyond it
    assert judge(*sides, rules=[parse_rule("mean_ttft>+2%")]).exit_code == 1


def test_several_seeds_are_judged_by_their_mean_and_show_their_range() -> None:
    diff = judge(simulated("base", {1: 100.0, 2: 100.0}), simulated("new", {1: 90.0, 2: 121.0}))
    assert ttft(diff).verdict is Verdict.WORSE
    assert (ttft(diff).low, ttft(diff).high) == pytest.approx((-0.1, 0.21))


def test_a_metric_that_the_new_side_lacks_is_worse() -> None:
    base, new = simulated("base", {1: 100.0}), side_of("new", {1: []} | {1: [100.0]}, change=SIMULATED)
    diff = judge(base, new)
    (line,) = [line for line in diff.gated if line.metric.name == "output_throughput"]
    assert (line.verdict, line.reason, diff.exit_code) == (
        Verdict.WORSE, "not measured in 1 of 1 run of new", 1,
    )  # fmt: skip


def test_sides_without_a_common_seed_are_judged_by_statistics_of_their_traffic() -> None:
    base = side_of("base", {s: [100.0 + s] for s in range(4)}, change=SIMULATED)
    new = side_of("new", {s: [160.0 + s] for s in range(10, 14)}, change=SIMULATED)
    diff = judge(base, new)
    assert (diff.exact, ttft(diff).design) == (False, "unpaired")
    assert not any("measured at different times" in notice for notice in diff.notices)


def slower(steps: list[IterationRecord]) -> list[IterationRecord]:
    """From the 40th step on everything comes 2 µs later, with a request more in the batch there."""
    later = [replace(s, t_start=s.t_start + 2000, t_end=s.t_end + 2000) for s in steps[40:]]
    return [*steps[:40], replace(later[0], running=later[0].running + 1), *later[1:]]


def test_the_first_step_that_differs_is_named_with_what_differs() -> None:
    moved = what_moved(1, InMemory({}, REQUESTS, STEPS), InMemory({}, REQUESTS, slower(list(STEPS))))
    assert moved.first_step is not None
    assert moved.first_step.number == 40
    assert [change.name for change in moved.first_step.changes] == ["t_start", "t_end", "running"]
    (running,) = [change for change in moved.first_step.changes if change.name == "running"]
    assert running.new == running.base + 1
    assert moved.steps == len(STEPS) - 40
    assert [change.name for change in moved.counters] == ["end_ns"]
    assert "first number 40: running" in moved_lines(moved)[0]


def test_times_within_a_microsecond_are_equal() -> None:
    near = [replace(s, t_start=s.t_start + 1000, t_end=s.t_end - 999) for s in STEPS]
    assert not what_moved(1, InMemory({}, REQUESTS, STEPS), InMemory({}, REQUESTS, near))


def test_the_number_of_blocks_is_one_change_and_not_one_in_every_step() -> None:
    more = [replace(s, kv_blocks_total=s.kv_blocks_total + 1) for s in STEPS]
    moved = what_moved(1, InMemory({}, REQUESTS, STEPS), InMemory({}, REQUESTS, more))
    assert (moved.steps, [change.name for change in moved.counters]) == (0, ["kv_blocks"])


def test_steps_that_one_side_lacks_are_counted() -> None:
    moved = what_moved(1, InMemory({}, REQUESTS, STEPS), InMemory({}, REQUESTS, STEPS[:-3]))
    assert moved.first_step is not None
    assert (moved.steps, moved.first_step.number, moved.first_step.changes) == (3, len(STEPS) - 3, ())


def swapped(requests: list[RequestRecord]) -> list[RequestRecord]:
    """Two requests admitted in each other's place."""
    admitted = sorted((r for r in requests if r.t_admit is not None), key=lambda r: (r.t_admit or 0, r.index))
    first, second = admitted[10], next(r for r in admitted[11:] if r.t_admit != admitted[10].t_admit)
    times = {first.index: second.t_admit, second.index: first.t_admit}
    return [replace(r, t_admit=times.get(r.index, r.t_admit)) for r in requests]


def test_the_first_request_out_of_order_is_named() -> None:
    moved = what_moved(1, InMemory({}, REQUESTS, STEPS), InMemory({}, swapped(list(REQUESTS)), STEPS))
    assert moved.first_request is not None
    assert moved.first_request.reordered
    assert moved.first_request.base_place == 11
    assert moved.requests == 2
    assert "the order of admission changed at" in moved_lines(moved)[0]


def test_a_request_admitted_later_in_the_same_order_is_named_with_how_much_later() -> None:
    later = [replace(r, t_admit=None if r.t_admit is None else r.t_admit + 5_000_000) for r in REQUESTS]
    moved = what_moved(1, InMemory({}, REQUESTS, STEPS), InMemory({}, later, STEPS))
    assert moved.first_request is not None
    assert (moved.first_request.reordered, moved.first_request.base_place) == (False, 1)
    assert "5.00 ms later" in moved_lines(moved)[0]


def test_exact_makes_anything_that_moved_a_regression_improvements_too() -> None:
    base, new = simulated("base", {1: 100.0}), simulated("new", {1: 90.0}, steps=slower)
    assert judge(base, new).exit_code == 0
    diff = judge(base, new, strict=True)
    assert diff.exit_code == 1
    assert "first number 40" in headline(diff).sentence
    assert judge(base, base, strict=True).exit_code == 0


@pytest.mark.parametrize(
    ("base", "new", "why"),
    [
        (side_of("base", {1: [1.0]}), side_of("new", {1: [1.0]}), "not both were simulated"),
        (simulated("base", {1: 1.0}), simulated("new", {2: 1.0}), "no seed"),
    ],
)
def test_exact_is_for_simulated_sides_with_a_common_seed(base: Side, new: Side, why: str) -> None:
    with pytest.raises(UserError, match=why):
        judge(base, new, strict=True)
