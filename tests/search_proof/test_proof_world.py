"""Studies on a made-up device: they pay simulated seconds, leave no folder, and are repeated by their seed."""

import dataclasses
from pathlib import Path

import pytest

from engine.errors import OutOfDeviceMemory
from scripts.search_proof.crashes import CrashingTarget, start_fails, waste_s
from scripts.search_proof.pairs import PAIRS, settings_at
from scripts.search_proof.study import Job, Played, grid_s, play
from scripts.search_proof.world import Cost, MemoryStore, WorldTarget
from tuner.targets.bundled import Load

PAIR = PAIRS["first-token"]
SHORT = Load(rate=2.0, seed=3, warmup_s=1.0, window_s=5.0)
OTHER = dataclasses.replace(PAIR.default, max_num_seqs=8)


def test_a_start_is_paid_whenever_the_settings_change() -> None:
    target = WorldTarget(PAIR, seed=0, start_s=30.0)
    for settings in (PAIR.default, PAIR.default, OTHER):
        target.measure(settings, SHORT, PAIR.slo)
    assert [cost.started for cost in target.costs] == [True, False, True]
    assert target.spent_s == pytest.approx(60.0 + sum(cost.seconds for cost in target.costs))
    assert all(cost.seconds >= 6.0 for cost in target.costs)


def test_the_device_looks_like_a_real_one() -> None:
    target = WorldTarget(PAIR, seed=0)
    assert not target.simulated
    assert target.measure(PAIR.default, SHORT, PAIR.slo).meta["simulated"] is False


def test_a_stored_run_hands_out_what_it_recorded(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path, {}, on_save=lambda record: None)
    measured = WorldTarget(PAIR, seed=0).measure(PAIR.default, SHORT, PAIR.slo)
    run = store.add_run("baseline", measured)
    record = store.load(run)
    assert record.request_records() == measured.requests
    assert record.iteration_records() == measured.iterations
    assert list(record.iterations["t_start"]) == [step.t_start for step in measured.iterations]
    assert store.find_run(PAIR.default, SHORT) is run
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [2])
def test_a_study_is_the_same_for_the_same_seed_and_keeps_to_its_time(seed: int) -> None:
    job = Job(PAIR.name, "random", seed, share=0.01)
    played = play(job)
    again = play(job)
    assert (again.costs, again.bests, again.chosen) == (played.costs, played.bests, played.chosen)
    assert played.error is None
    assert played.trials > 0
    assert played.bests[0] == (0, None)
    assert not played.looked_at_time
    # Beyond its share there are only the runs of the confirmation.
    assert sum(cost.seconds for cost in played.costs) < 0.01 * grid_s(PAIR, 0.0) + 7 * 60


def test_an_engine_that_does_not_start_costs_its_start_and_nothing_else() -> None:
    point = next(point for point in PAIR.points() if start_fails(PAIR, point))
    target = CrashingTarget(PAIR, seed=0, start_s=30.0)
    with pytest.raises(OutOfDeviceMemory):
        target.measure(settings_at(PAIR, point), SHORT, PAIR.slo)
    assert target.costs == [Cost(0.0, started=True, failed=True)]
    assert target.spent_s == 30.0


def test_large_steps_beside_many_requests_break_the_run_and_the_next_one_starts_anew() -> None:
    target = CrashingTarget(PAIR, seed=0)
    settings = dataclasses.replace(PAIR.default, max_num_seqs=64, max_num_batched_tokens=512)
    broken = target.measure(settings, dataclasses.replace(SHORT, rate=20.0), PAIR.slo)
    assert broken.error is not None
    assert target.measure(settings, SHORT, PAIR.slo).error is None
    assert [cost.failed for cost in target.costs] == [True, False]
    assert target.costs[1].started


def test_waste_is_counted_up_to_the_end_of_the_time() -> None:
    costs = [Cost(10.0, True), Cost(5.0, True, True), Cost(0.0, True, True), Cost(8.0, True, True)]
    played = Played(Job(PAIR.name, "random", 0, 30.0), costs)
    assert waste_s(played, 1000.0) == 35.0 + 30.0 + 38.0
    assert waste_s(played, 40.0 + 35.0 + 30.0 + 8.0) == 35.0 + 30.0 + 8.0
