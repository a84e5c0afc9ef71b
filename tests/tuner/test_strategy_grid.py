"""The grid: its levels, its points, its order, and its limits."""

from collections import Counter

import pytest

from engine.errors import UserError
from tests.tuner.played_strategies import Played
from tuner.settings import NAMES, Settings
from tuner.space import Choices, Dimension, Range, SearchSpace, default_space, with_search
from tuner.strategies.grid import LEVELS, Grid, levels_of, points_of

DEFAULT = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.5, max_resident_requests=400)
SMALL = SearchSpace(
    {"max_num_seqs": Range(4, 64), "policy": Choices(("fcfs", "sjf")), "aging": Choices((1.0, 5.0))}, Settings()
)


def test_levels_go_from_end_to_end_in_equal_ratios_or_for_a_share_in_equal_steps() -> None:
    ranges: dict[str, Dimension] = {
        "max_num_seqs": Range(8, 128),
        "gpu_memory_utilization": Range(0.5, 0.9),
        "policy": Choices(("sjf",)),
    }
    levels = levels_of(SearchSpace(ranges, Settings()))
    assert levels["max_num_seqs"] == [8, 16, 32, 64, 128]
    assert levels["gpu_memory_utilization"] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert levels["policy"] == ("sjf",)


def test_a_short_range_has_no_level_twice() -> None:
    assert levels_of(SearchSpace({"max_num_seqs": Range(2, 4)}, Settings()))["max_num_seqs"] == [2, 3, 4]


def test_no_chunking_is_a_level_beside_a_range_of_chunk_sizes() -> None:
    space = SearchSpace({"chunk_size": Range(128, 1024)}, Settings(max_num_batched_tokens=4096))
    sizes = {settings.chunk_size for settings in points_of(space, 0)}
    assert len(sizes) == LEVELS + 1
    assert {0, 128, 1024} <= sizes


def test_every_point_is_visited_once_and_their_number_is_said() -> None:
    played = Played("grid", SMALL, seed=7)
    proposed = played.play(1000)
    # Under fcfs nothing ages, so both agings are one point there.
    visited = Counter((s.max_num_seqs, s.policy, s.aging) for s in proposed)
    seats = (4, 8, 16, 32, 64)
    assert set(visited) == {(n, *rest) for n in seats for rest in (("fcfs", 0.0), ("sjf", 1.0), ("sjf", 5.0))}
    assert set(visited.values()) == {1}
    assert played.said == [
        "the grid has 15 points, 15 of them to be measured",
        "all 15 points of the grid are measured",
    ]


def test_a_grid_that_is_taken_up_visits_the_points_that_are_left_and_the_open_one_first() -> None:
    played = Played("grid", SMALL, seed=7)
    before = played.play(6)
    interrupted = played.strategy.propose()
    played.go_on()
    after = played.play(1000)
    assert after[0] == interrupted
    assert len({*before, *after}) == len(before) + len(after) == 15
    assert "9 of them to be measured" in played.said[1]


def test_a_point_that_is_the_default_is_not_measured_again() -> None:
    played = Played("grid", SearchSpace({"max_num_seqs": Choices((8, 16))}, Settings(max_num_seqs=8)))
    assert [s.max_num_seqs for s in played.play(10)] == [16]


def test_the_order_follows_the_seed_and_is_spread_over_the_grid() -> None:
    orders = [list(points_of(DEFAULT, seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert set(orders[0]) == set(orders[2])
    first = orders[0][: len(orders[0]) // 10]
    for name in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"):
        assert len({getattr(s, name) for s in first}) >= LEVELS


def test_more_combinations_than_anyone_measures_are_refused_before_they_are_listed() -> None:
    texts = [f"{name}=1s..1m" for name in ("queue_timeout", "max_predicted_wait")]
    space = with_search(DEFAULT, [*texts, "max_queue_len=1..100", "short_first_tokens=16..512"])
    assert set(space.dimensions) < set(NAMES)
    with pytest.raises(UserError, match="468750 combinations"):
        Grid.require_able(space)
    Grid.require_able(DEFAULT)
