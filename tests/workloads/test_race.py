"""A race against the best so far: who is behind is dropped, who is not is let go on."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from workloads.driver import drive
from workloads.metrics import Window
from workloads.plan import make_plan
from workloads.race import FEWEST_SLICES, SLICES, RaceWatch, good_by_slice
from workloads.slo import parse_slo
from workloads.spec import load_spec

S = 1_000_000_000
WINDOW = Window(0, SLICES * S)


def request(t_sched, good=True):
    return SimpleNamespace(t_sched=t_sched, good=good)


def race(ours, best):
    """After how many slices a run with `ours` good requests in each is behind; None when it never is."""
    watch = RaceWatch(best, WINDOW)
    for position, good in enumerate(ours):
        for i in range(good + 1):
            watch.sent(request(position * S + i))
            watch.ended(request(position * S + i, good=i < good))
        if watch.is_behind((position + 1) * S):
            return position + 1
    return None


def test_good_requests_are_counted_by_the_slice_in_which_they_were_scheduled(make_record):
    records = [make_record([], t_sched=t, good=good) for t, good in ((0, True), (1, False), (S, True), (S + 5, True))]
    records += [make_record([], t_sched=2 * S, good=True, phase="cooldown")]
    assert good_by_slice(records, WINDOW) == (1, 2, *[0] * (SLICES - 2))


def test_a_run_that_is_behind_everywhere_is_dropped_well_before_its_end():
    dropped = race([3] * SLICES, [5] * SLICES)
    assert dropped is not None
    assert FEWEST_SLICES <= dropped <= SLICES // 2


def test_a_run_that_is_equal_or_ahead_is_never_dropped():
    assert race([5] * SLICES, [5] * SLICES) is None
    assert race([6] * SLICES, [5] * SLICES) is None


@pytest.mark.parametrize("mean", [1.0, 6.0])
def test_an_equally_good_run_is_dropped_at_most_once_in_twenty_times(mean):
    rng = np.random.default_rng(11)
    pairs = rng.poisson(mean, size=(120, 2, SLICES)).tolist()
    dropped = sum(race(ours, best) is not None for ours, best in pairs)
    assert dropped / len(pairs) <= 0.05


def test_a_slice_counts_when_the_last_of_its_requests_has_ended():
    watch = RaceWatch([5] * SLICES, WINDOW)
    watch.sent(request(0))
    assert not any(watch.is_behind(i * S) for i in range(1, SLICES))
    watch.ended(request(0, good=False))
    assert watch.is_behind((SLICES - 1) * S)


def plan_of(arrival, rate):
    spec = load_spec("chat-small", ["output_tokens=20", f"arrival={arrival}"])
    return make_plan(spec, rate=rate, seed=3, vocab_size=32_000, warmup_s=2.0, window_s=24.0)


@pytest.mark.parametrize(("arrival", "rate"), [("poisson", 10.0), ("closed:8", None)])
def test_a_slower_engine_is_dropped_and_the_same_one_is_not(make_engine, arrival, rate):
    slo = parse_slo("p95_e2e=300ms")
    plan = plan_of(arrival, rate)
    best = drive(make_engine(step_ms=10), plan, slo=slo)
    pace = good_by_slice(best.requests, best.window)
    again = drive(make_engine(step_ms=10), plan, slo=slo, race=pace, stop_when_settled=False)
    slower = drive(make_engine(step_ms=16), plan, slo=slo, race=pace, stop_when_settled=False)
    assert again.stopped_early is None
    assert good_by_slice(again.requests, again.window) == pace
    assert slower.stopped_early == "behind the best so far"
    assert slower.window.duration_s < 24.0
    assert all(earlier.index < later.index for earlier, later in pairwise(slower.requests))
