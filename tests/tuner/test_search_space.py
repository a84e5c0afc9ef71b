"""What the sampler may suggest, and what it is told of settings that were measured already."""

from dataclasses import replace
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import settings as check
from hypothesis import strategies as st

from tests.tuner.drawn_settings import SETTINGS
from tuner.catalogue import CATALOGUE
from tuner.kinds import Count, NumberKind
from tuner.settings import NAMES, Settings
from tuner.space import TUNED, Choices, Dimension, Range, SearchSpace, default_space

NUMBERS = [name for name in NAMES if isinstance(CATALOGUE[name].kind, NumberKind)]
# The budget brings them down; a value that limits nothing is off.
BOUND_BY_OTHERS = {"max_num_seqs", "chunk_size", "preferred_batch_size"}
# Another name for the same behaviour may be the plainer one.
RENAMED = {"batching", "preemption_mode", "preemption_victim"}


@st.composite
def dimensions(draw: st.DrawFn, name: str) -> Dimension:
    """A range or choices that `--search` would accept for a setting."""
    kind = CATALOGUE[name].kind
    if kind.choices is not None:
        return Choices(tuple(draw(st.lists(st.sampled_from(kind.choices), min_size=1, unique=True))))
    values = SETTINGS.map(lambda s: getattr(s, name))
    if draw(st.booleans()):
        return Choices(tuple(draw(st.lists(values, min_size=1, max_size=3, unique=True))))
    ends = draw(st.lists(values.filter(lambda v: v > 0), min_size=2, max_size=2, unique=True))
    return Range(min(ends), max(ends))


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=5))
    return SearchSpace({name: draw(dimensions(name)) for name in sorted(names)}, draw(SETTINGS))


DEFAULT_SPACES = st.builds(
    default_space,
    st.just(Settings()),
    st.sets(st.sampled_from(TUNED), max_size=3),
    on_gpu=st.booleans(),
    smallest_utilization=st.floats(0.05, 1.2),
    max_resident_requests=st.integers(0, 5000),
)


def random_study(seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))


def suggestion_for(params: dict[str, Any], space: SearchSpace) -> Settings:
    return space.suggest(optuna.trial.FixedTrial(params))


def suggestions(space: SearchSpace, seed: int, count: int) -> list[tuple[Settings, dict[str, Any]]]:
    """Settings that were drawn, each with what was asked of the sampler for them."""
    study = random_study(seed)
    trials = [study.ask() for _ in range(count)]
    return [(space.suggest(trial), trial.params) for trial in trials]


@given(space=spaces() | DEFAULT_SPACES, seed=st.integers(0, 10_000))
@check(max_examples=80, deadline=None)
def test_whatever_is_drawn_is_canonical_and_in_its_range(space: SearchSpace, seed: int) -> None:
    for settings, params in suggestions(space, seed, 4):
        assert settings == settings.canonical()
        for name in set(params) & set(NAMES) - BOUND_BY_OTHERS - RENAMED:
            value, dimension = getattr(settings, name), space.dimensions[name]
            if settings.inert_beside(name):
                continue  # without room in host memory nothing is swapped, whatever was drawn
            if isinstance(dimension, Choices):
                assert value in dimension.values
            else:
                assert dimension.low <= value <= dimension.high


@given(space=spaces() | DEFAULT_SPACES, seed=st.integers(0, 10_000))
@check(max_examples=80, deadline=None)
def test_what_others_bound_is_in_its_range_or_limits_nothing(space: SearchSpace, seed: int) -> None:
    for settings, params in suggestions(space, seed, 4):
        for name in set(params) & BOUND_BY_OTHERS:
            value, dimension = getattr(settings, name), space.dimensions[name]
            inside = value in dimension.values if isinstance(dimension, Choices) else value >= dimension.low
            assert inside or value == (settings.max_num_batched_tokens if name == "max_num_seqs" else 0)


@given(space=spaces() | DEFAULT_SPACES, seed=st.integers(0, 10_000))
@check(max_examples=80, deadline=None)
def test_params_of_is_the_inverse_of_suggest(space: SearchSpace, seed: int) -> None:
    for settings, _ in suggestions(space, seed, 4):
        params = space.params_of(settings)
        assert params is not None
        assert suggestion_for(params, space) == settings


@given(space=DEFAULT_SPACES, seed=st.integers(0, 10_000))
@check(max_examples=40, deadline=None)
def test_only_what_is_searched_differs_from_the_fixed_settings(space: SearchSpace, seed: int) -> None:
    # A budget below the fixed seats or chunk brings those down to what they do anyway.
    budget_bound = {"max_num_seqs", "chunk_size"} if "max_num_batched_tokens" in space.dimensions else set()
    still = set(NAMES) - set(space.dimensions) - budget_bound
    for settings, _ in suggestions(space, seed, 4):
        assert {n: getattr(settings, n) for n in still} == {n: getattr(space.fixed, n) for n in still}


CONDITIONAL = {
    "aging": ("policy", Choices(("fcfs", "sjf"))),
    "max_queue_delay": ("batching", Choices(("continuous", "dynamic"))),
    "preferred_batch_size": ("batching", Choices(("static", "dynamic"))),
    "swap_space": ("preemption_mode", Choices(("recompute", "swap", "auto"))),
}


@pytest.mark.parametrize("name", CONDITIONAL)
def test_an_option_is_drawn_only_where_it_acts(name: str) -> None:
    decider, choices = CONDITIONAL[name]
    space = SearchSpace({name: Range(4, 64), decider: choices}, Settings(max_queue_delay=0.5))
    drawn = {False: 0, True: 0}
    for _, params in suggestions(space, seed=1, count=30):
        acts = not replace(space.fixed, **{decider: params[decider]}).inert_beside(name)
        assert (name in params) is acts
        drawn[acts] += 1
    assert min(drawn.values()) > 0


def test_settings_outside_the_space_have_no_params() -> None:
    space = SearchSpace({"max_num_seqs": Range(8, 64), "policy": Choices(("sjf", "tiered"))}, Settings())
    assert space.params_of(Settings(max_num_seqs=32)) is None
    assert space.params_of(Settings(max_num_seqs=128, policy="sjf")) is None
    assert space.params_of(Settings(max_num_seqs=32, policy="sjf", block_size=32)) is None
    assert space.params_of(Settings(max_num_seqs=32, policy="sjf")) == {"max_num_seqs": 32, "policy": "sjf"}


@st.composite
def spaces_around_a_start(draw: st.DrawFn) -> SearchSpace:
    """As `--search` beside a `--set` value that lies within."""
    space = draw(spaces())
    values: dict[str, Any] = {}
    for name, dimension in space.dimensions.items():
        if isinstance(dimension, Choices):
            values[name] = draw(st.sampled_from(dimension.values))
        elif isinstance(dimension.low, int):
            values[name] = draw(st.integers(dimension.low, int(dimension.high)))
        else:
            values[name] = draw(st.floats(dimension.low, dimension.high))
    return replace(space, fixed=replace(space.fixed, **values))


@given(space=spaces_around_a_start())
@check(max_examples=150, deadline=None)
def test_the_sampler_can_be_told_of_any_start_within_the_space(space: SearchSpace) -> None:
    start = space.fixed.canonical()
    params = space.params_of(start)
    assert params is not None
    assert suggestion_for(params, space) == start


@pytest.mark.parametrize(
    ("name", "value", "low", "high"),
    [
        ("max_num_seqs", 100, 16, 200), ("gpu_memory_utilization", 0.905, 0.8, 0.95), ("queue_timeout", 1.25, 1.0, 9.0),
        ("chunk_size", 300, 32, 1024),
    ],
)  # fmt: skip
def test_a_start_that_is_no_round_number_is_told_as_it_is(name: str, value: float, low: float, high: float) -> None:
    space = SearchSpace({name: Range(low, high)}, Settings.from_dict({name: value}))
    params = space.params_of(space.fixed)
    assert params is not None
    assert params[name] == value


def test_seats_that_the_budget_bounds_are_told_as_the_most_there_can_be() -> None:
    space = SearchSpace({"max_num_seqs": Range(16, 250)}, Settings(max_num_seqs=225, max_num_batched_tokens=201))
    assert space.params_of(space.fixed.canonical()) == {"max_num_seqs": 250}


def test_aging_is_drawn_beside_a_drawn_victim_by_priority() -> None:
    victims = Choices(("last", "lowest_priority"))
    space = SearchSpace({"aging": Range(1.0, 60.0), "preemption_victim": victims}, Settings())
    drawn = {params["preemption_victim"]: "aging" in params for _, params in suggestions(space, seed=1, count=20)}
    assert drawn == {"last": False, "lowest_priority": True}


def test_durations_and_sizes_are_drawn_as_people_type_them() -> None:
    sizes, timeouts = Range(1 << 28, 1 << 33), Range(0.5, 60.0)
    space = SearchSpace({"queue_timeout": timeouts, "swap_space": sizes}, Settings(preemption_mode="swap"))
    for settings, _ in suggestions(space, seed=2, count=20):
        assert settings.queue_timeout == float(f"{settings.queue_timeout:.2g}")
        assert settings.swap_space % (1 << 20) == 0


def test_a_setting_that_the_user_holds_is_not_searched() -> None:
    space = default_space(
        Settings(max_num_seqs=96), ["max_num_seqs"], on_gpu=True, smallest_utilization=0.4, max_resident_requests=100
    )
    assert set(space.dimensions) == set(TUNED) - {"max_num_seqs"}
    assert {s.max_num_seqs for s, _ in suggestions(space, seed=0, count=5)} == {96}


def test_memory_share_is_never_searched_below_what_one_request_needs() -> None:
    space = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.73, max_resident_requests=100)
    low = space.dimensions["gpu_memory_utilization"]
    assert isinstance(low, Range)
    assert 0.73 <= low.low <= 0.74


@given(st.integers(1, 1 << 20))
def test_rounding_is_idempotent_and_stays_within_an_eighth(value: int) -> None:
    rounded = Count().rounded(value)
    assert Count().rounded(rounded) == rounded
    assert abs(rounded - value) <= value / 8


@given(st.integers(1, 1 << 20))
def test_rounding_keeps_the_order(value: int) -> None:
    assert Count().rounded(value) <= Count().rounded(value + 1)


@pytest.mark.parametrize(
    ("value", "rounded"), [(1, 1), (7, 7), (8, 8), (9, 8), (13, 12), (15, 16), (100, 96), (250, 256), (2000, 2048)]
)
def test_rounding_gives_numbers_that_people_type(value: int, rounded: int) -> None:
    assert Count().rounded(value) == rounded


@given(st.sampled_from(NUMBERS), st.floats(0.01, 1e6))
def test_every_kind_of_number_rounds_once(name: str, value: float) -> None:
    kind = CATALOGUE[name].kind
    assert isinstance(kind, NumberKind)
    rounded = kind.rounded(round(value) if kind.whole else value)
    assert kind.rounded(rounded) == rounded
