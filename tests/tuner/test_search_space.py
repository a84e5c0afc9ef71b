"""What the sampler may suggest, and what becomes of a user's own ranges."""

from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import settings as check
from hypothesis import strategies as st

from engine.errors import UserError
from tuner.settings import NAMES, Settings
from tuner.space import TUNED, Choices, Range, SearchSpace, default_space, round_setting, with_search

SPACES = st.builds(
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
    study = random_study(0)
    study.enqueue_trial(params)
    return space.suggest(study.ask())


def suggestions(space: SearchSpace, seed: int, count: int) -> list[Settings]:
    study = random_study(seed)
    return [space.suggest(study.ask()) for _ in range(count)]


@given(space=SPACES, seed=st.integers(0, 10_000))
@check(max_examples=40, deadline=None)
def test_no_seats_or_chunk_beyond_the_token_budget(space: SearchSpace, seed: int) -> None:
    for settings in suggestions(space, seed, 8):
        assert settings.chunk_size < settings.max_num_batched_tokens
        assert settings.max_num_seqs <= settings.max_num_batched_tokens
        assert settings == settings.canonical()


@given(space=SPACES, seed=st.integers(0, 10_000))
@check(max_examples=40, deadline=None)
def test_only_what_is_searched_differs_from_the_fixed_settings(space: SearchSpace, seed: int) -> None:
    # A budget below the fixed seats or chunk brings those down to what they do anyway.
    budget_bound = {"max_num_seqs", "chunk_size"} if "max_num_batched_tokens" in space.dimensions else set()
    still = set(NAMES) - set(space.dimensions) - budget_bound
    for settings in suggestions(space, seed, 4):
        assert {n: settings.to_dict()[n] for n in still} == {n: space.fixed.to_dict()[n] for n in still}


@given(space=SPACES, seed=st.integers(0, 10_000))
@check(max_examples=40, deadline=None)
def test_params_of_is_the_inverse_of_suggest(space: SearchSpace, seed: int) -> None:
    for settings in suggestions(space, seed, 8):
        params = space.params_of(settings)
        if params is not None:
            assert suggestion_for(params, space) == settings
        else:
            assert any(
                isinstance(d, Range) and not d.low <= getattr(settings, name) <= d.high
                for name, d in space.dimensions.items()
            )


@given(low=st.integers(1, 500), width=st.integers(1, 500), seed=st.integers(0, 10_000))
@check(max_examples=40, deadline=None)
def test_rounding_never_leaves_the_range_that_was_asked(low: int, width: int, seed: int) -> None:
    space = with_search(SearchSpace({}, Settings()), [f"max_num_seqs={low}..{low + width}"])
    for settings in suggestions(space, seed, 8):
        assert low <= settings.max_num_seqs <= low + width


@given(st.integers(1, 1 << 20))
def test_rounding_is_idempotent_and_stays_within_an_eighth(value: int) -> None:
    rounded = round_setting(value)
    assert round_setting(rounded) == rounded
    assert abs(rounded - value) <= value / 8


@given(st.integers(1, 1 << 20))
def test_rounding_keeps_the_order(value: int) -> None:
    assert round_setting(value) <= round_setting(value + 1)


@pytest.mark.parametrize(
    ("value", "rounded"), [(1, 1), (7, 7), (8, 8), (9, 8), (13, 12), (15, 16), (100, 96), (250, 256), (2000, 2048)]
)
def test_rounding_gives_numbers_that_people_type(value: int, rounded: int) -> None:
    assert round_setting(value) == rounded


def test_a_setting_that_the_user_holds_is_not_searched() -> None:
    space = default_space(
        Settings(max_num_seqs=96), ["max_num_seqs"], on_gpu=True, smallest_utilization=0.4, max_resident_requests=100
    )
    assert set(space.dimensions) == set(TUNED) - {"max_num_seqs"}
    assert {s.max_num_seqs for s in suggestions(space, seed=0, count=5)} == {96}


def test_memory_share_is_never_searched_below_what_one_request_needs() -> None:
    space = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.73, max_resident_requests=100)
    low = space.dimensions["gpu_memory_utilization"]
    assert isinstance(low, Range)
    assert 0.73 <= low.low <= 0.74


def test_search_option_gives_ranges_and_choices() -> None:
    base = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.4, max_resident_requests=100)
    space = with_search(base, ["max_num_seqs=8..64", "block_size=16,32", "chunk_size=off,256", "policy=fcfs,priority"])
    assert space.dimensions["max_num_seqs"] == Range(8, 64)
    assert space.dimensions["block_size"] == Choices((16, 32))
    assert space.dimensions["chunk_size"] == Choices((0, 256))
    assert space.dimensions["policy"] == Choices(("fcfs", "priority"))
    assert space.dimensions["max_num_batched_tokens"] == base.dimensions["max_num_batched_tokens"]


@pytest.mark.parametrize(
    "text",
    [
        "seats=8..64",
        "max_num_seqs",
        "max_num_seqs=",
        "max_num_seqs=64..8",
        "max_num_seqs=8..8",
        "max_num_seqs=0..8",
        "max_num_seqs=8..many",
        "max_num_seqs=8,,16",
        "chunk_size=0..512",
        "gpu_memory_utilization=0.5..1.5",
        "policy=fcfs..priority",
        "policy=fcfs,lifo",
        "enable_prefix_caching=off..on",
    ],
)
def test_impossible_search_is_refused(text: str) -> None:
    with pytest.raises(UserError) as refusal:
        with_search(SearchSpace({}, Settings()), [text])
    assert text.partition("=")[0] in str(refusal.value)
