"""Settings as points: within the unit cube, ordered as the numbers are, on the scale on which they are drawn."""

import math
from dataclasses import replace

import pytest
from hypothesis import given

from tests.tuner.drawn_settings import SETTINGS
from tuner.settings import Settings
from tuner.space import Choices, Range, SearchSpace
from tuner.unit_cube import unit_point

SPACE = SearchSpace(
    {
        "gpu_memory_utilization": Range(0.5, 0.9),
        "max_num_seqs": Range(8, 512),
        "chunk_size": Range(128, 2048),
        "queue_timeout": Choices((0.0, 1.0, 10.0)),
        "policy": Choices(("fcfs", "sjf", "priority")),
    },
    Settings(),
)


def place(space: SearchSpace, **values: object) -> tuple[float, ...]:
    return unit_point(space, replace(Settings(), **values))  # type: ignore[arg-type]


@given(SETTINGS)
def test_every_setting_is_a_point_of_the_unit_cube_with_the_coordinates_of_its_space(settings: Settings) -> None:
    point = unit_point(SPACE, settings)
    assert len(point) == 1 + 1 + 2 + 2 + 3
    assert all(0.0 <= x <= 1.0 for x in point)


def test_numbers_lie_on_the_scale_on_which_they_are_drawn() -> None:
    seats = SearchSpace({"max_num_seqs": Range(8, 512)}, Settings())
    assert [place(seats, max_num_seqs=n)[0] for n in (8, 64, 512)] == pytest.approx([0.0, 0.5, 1.0])
    share = SearchSpace({"gpu_memory_utilization": Range(0.5, 0.9)}, Settings())
    assert [place(share, gpu_memory_utilization=x)[0] for x in (0.5, 0.7, 0.9)] == pytest.approx([0.0, 0.5, 1.0])


def test_numbers_among_choices_keep_their_order() -> None:
    space = SearchSpace({"max_num_seqs": Choices((256, 16, 64))}, Settings())
    assert [place(space, max_num_seqs=n) for n in (16, 64, 256)] == [(0.0,), (pytest.approx(0.5),), (1.0,)]


def test_what_lies_outside_of_a_range_is_put_on_its_nearer_end() -> None:
    space = SearchSpace({"max_num_seqs": Range(8, 512)}, Settings())
    assert (place(space, max_num_seqs=2), place(space, max_num_seqs=4096)) == ((0.0,), (1.0,))


def test_off_is_nearer_to_the_end_that_acts_like_it_than_to_the_other() -> None:
    space = SearchSpace({"chunk_size": Range(128, 2048)}, Settings())
    off, large, small = (place(space, chunk_size=n) for n in (0, 2048, 128))
    assert 0 < math.dist(off, large) < math.dist(off, small)


def test_choices_without_an_order_are_all_equally_far_apart() -> None:
    space = SearchSpace({"policy": Choices(("fcfs", "sjf", "priority"))}, Settings())
    a, b, c = (place(space, policy=policy) for policy in ("fcfs", "sjf", "priority"))
    assert math.dist(a, b) == pytest.approx(1.0) == math.dist(b, c) == math.dist(a, c)


def test_a_dimension_with_one_value_has_one_place() -> None:
    space = SearchSpace({"max_num_seqs": Choices((8,))}, Settings())
    assert place(space, max_num_seqs=8) == (0.0,)
