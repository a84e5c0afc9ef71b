"""Staged search: the order of the stages, what each varies, and what it keeps of those before."""

from dataclasses import replace

import pytest

from tests.tuner.played_strategies import Played
from tuner.objectives import DEFAULT_OBJECTIVES, rank
from tuner.settings import Settings
from tuner.space import Choices, Range, SearchSpace, default_space
from tuner.strategies.staged import stages_of

DEFAULT = default_space(Settings(max_num_seqs=16), [], on_gpu=True, smallest_utilization=0.5, max_resident_requests=400)
MEMORY, SEATS, CHUNKS = ("gpu_memory_utilization",), ("max_num_seqs", "max_num_batched_tokens"), ("chunk_size",)


def values(settings: Settings, names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(getattr(settings, name) for name in names)


def best_of(played: Played, count: int) -> Settings:
    """The best of the baseline and the first trials."""
    return max(
        (t for t in played.trials[: 1 + count] if t.held), key=lambda t: (rank(t, DEFAULT_OBJECTIVES), -t.number)
    ).settings


def test_memory_comes_first_then_seats_with_the_budget_then_chunks_then_the_rest() -> None:
    space = replace(DEFAULT, dimensions=dict(DEFAULT.dimensions) | {"policy": Choices(("fcfs", "sjf"))})
    assert [stage.names for stage in stages_of(space)] == [MEMORY, SEATS, CHUNKS, ("policy",)]
    assert [stage.ends_at for stage in stages_of(space)] == pytest.approx([0.2, 0.6, 0.8, 1.0])


def test_a_stage_without_searched_settings_is_left_out() -> None:
    space = SearchSpace({"chunk_size": Range(32, 512), "max_num_seqs": Range(4, 64)}, Settings())
    assert [stage.names for stage in stages_of(space)] == [("max_num_seqs",), CHUNKS]


def test_each_stage_varies_its_own_settings_and_keeps_what_earlier_ones_found_best() -> None:
    played = Played("staged", DEFAULT, seed=3, allowed=20)
    proposed = played.play(20)
    memory, seats, chunks = proposed[:5], proposed[5:15], proposed[15:]
    default = DEFAULT.fixed.canonical()
    assert len({values(s, MEMORY) for s in memory}) == 5
    assert {values(s, SEATS + CHUNKS) for s in memory} == {values(default, SEATS + CHUNKS)}
    assert {values(s, MEMORY) for s in seats} == {values(best_of(played, 5), MEMORY)}
    assert {values(s, CHUNKS) for s in seats} == {values(default, CHUNKS)}
    assert len({values(s, SEATS) for s in seats}) == 10
    assert {values(s, MEMORY + SEATS) for s in chunks} == {values(best_of(played, 15), MEMORY + SEATS)}
    assert len({values(s, CHUNKS) for s in chunks}) == 5


def test_a_study_that_is_taken_up_stays_in_its_stage_and_never_goes_back() -> None:
    played = Played("staged", DEFAULT, seed=3, allowed=20)
    played.play(16)
    # With a larger limit the share that is used would be one of an earlier stage.
    played.allowed = 200
    played.go_on()
    kept = values(best_of(played, 15), MEMORY + SEATS)
    assert {values(s, MEMORY + SEATS) for s in played.play(4)} == {kept}
    assert sum("stage 3 of 3" in line for line in played.said) == 1


def test_a_used_up_stage_makes_way_for_the_next() -> None:
    space = SearchSpace(
        {"gpu_memory_utilization": Choices((0.8, 0.9)), "max_num_seqs": Choices((8, 16))}, Settings(max_num_seqs=8)
    )
    played = Played("staged", space, allowed=1000)
    proposed = played.play(100)
    assert [(s.gpu_memory_utilization, s.max_num_seqs) for s in proposed] == [(0.8, 8), (0.9, 16)]
    assert "used up" in played.said[-1]


def test_where_nothing_meets_the_slo_the_least_miss_is_kept() -> None:
    played = Played("staged", DEFAULT, seed=1, allowed=20, formula=lambda s: (1.0, 1.0 - s.gpu_memory_utilization / 2))
    proposed = played.play(12)
    highest = max(s.gpu_memory_utilization for s in [played.trials[0].settings, *proposed[:5]])
    assert {s.gpu_memory_utilization for s in proposed[5:]} == {highest}


def test_a_fixed_value_that_acts_only_beside_a_later_choice_is_kept_for_it() -> None:
    space = SearchSpace(
        {"max_num_seqs": Range(4, 64), "policy": Choices(("fcfs", "sjf"))}, Settings(aging=5.0, max_num_seqs=8)
    )
    played = Played("staged", space, allowed=8)
    played.play(8)
    assert {t.settings.aging for t in played.trials if t.settings.policy == "sjf"} == {5.0}


def test_every_stage_is_said_with_what_is_kept() -> None:
    played = Played("staged", DEFAULT, seed=3, allowed=20)
    played.play(20)
    titles = [line.partition(";")[0] for line in played.said]
    assert titles == ["stage 2 of 3, seats and token budget", "stage 3 of 3, chunking"]
    assert f"kept: gpu_memory_utilization={best_of(played, 5).gpu_memory_utilization}" in played.said[0]
    assert f"max_num_seqs={best_of(played, 15).max_num_seqs}" in played.said[1]
