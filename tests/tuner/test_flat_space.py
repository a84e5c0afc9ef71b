"""The space without conditions gives the settings of the space with them, and takes them back."""

import optuna
import pytest
from hypothesis import given
from hypothesis import settings as check
from hypothesis import strategies as st

from tuner.flat_space import FlatSpace
from tuner.settings import Settings
from tuner.space import Range, SearchSpace, default_space, with_search

SPACE = with_search(
    default_space(Settings(), [], on_gpu=False, smallest_utilization=0.5, max_resident_requests=100),
    ["policy=fcfs,sjf", "aging=1s..1m", "preemption_mode=recompute,swap", "swap_space=1GiB..8GiB"],
)
FLAT = FlatSpace(SPACE.dimensions, SPACE.fixed)


def draw(space: SearchSpace, seed: int) -> tuple[Settings, dict[str, object]]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
    return space.suggest(trial), trial.params


@given(seed=st.integers(0, 10_000))
@check(max_examples=60, deadline=None)
def test_every_setting_is_asked_for_and_the_two_spaces_hold_the_same_settings(seed: int) -> None:
    flat, params = draw(FLAT, seed)
    assert set(params) == set(SPACE.dimensions)
    assert flat == flat.canonical()
    assert SPACE.params_of(flat) is not None
    conditional, _ = draw(SPACE, seed)
    assert FLAT.params_of(conditional) is not None


@given(seed=st.integers(0, 10_000))
@check(max_examples=60, deadline=None)
def test_params_of_is_the_inverse_of_suggest(seed: int) -> None:
    settings, _ = draw(FLAT, seed)
    params = FLAT.params_of(settings)
    assert params is not None
    assert FLAT.suggest(optuna.trial.FixedTrial(params)) == settings


@pytest.mark.parametrize(("drawn", "size"), [(32, 32), (1024, 1024), (1025, 0), (3252, 0)])
def test_a_chunk_size_above_the_range_is_no_limit(drawn: int, size: int) -> None:
    params = {"gpu_memory_utilization": 0.9, "max_num_seqs": 8, "max_num_batched_tokens": 4096, "chunk_size": drawn}
    rest = {"policy": "fcfs", "aging": 1.0, "preemption_mode": "recompute", "swap_space": 1 << 30}
    assert FLAT.suggest(optuna.trial.FixedTrial(params | rest)).chunk_size == size


@pytest.mark.parametrize("sizes", [Range(32, 1024), Range(100, 112), Range(128, 4096)])
def test_no_limit_is_drawn_for_a_quarter_of_the_settings_however_wide_the_range(sizes: Range) -> None:
    space = FlatSpace({"chunk_size": sizes}, Settings(max_num_batched_tokens=8192))
    sampler = optuna.samplers.RandomSampler(seed=11)
    study = optuna.create_study(sampler=sampler)
    unlimited = sum(space.suggest(study.ask()).chunk_size == 0 for _ in range(400))
    assert 70 < unlimited < 140
