"""What failures teach: nothing without them, much of what takes more, little of what is far away."""

from dataclasses import replace

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.played_strategies import finished
from tuner.failures import RISKY, FailureModel, broke, failure_model
from tuner.prior import Prior
from tuner.settings import Settings
from tuner.space import Range, SearchSpace
from tuner.strategies.base import Search
from tuner.trial import Trial

SPACE = SearchSpace(
    {
        "gpu_memory_utilization": Range(0.5, 0.95),
        "max_num_seqs": Range(8, 512),
        "max_num_batched_tokens": Range(512, 16384),
        "chunk_size": Range(128, 4096),
    },
    Settings(),
)
POINTS = st.builds(
    Settings,
    gpu_memory_utilization=st.floats(0.5, 0.95),
    max_num_seqs=st.integers(8, 512),
    max_num_batched_tokens=st.integers(512, 16384),
    chunk_size=st.sampled_from([0, 128, 512, 4096]),
)
SOME = st.lists(POINTS, max_size=6)
MIDDLE = Settings(gpu_memory_utilization=0.7, max_num_seqs=64, max_num_batched_tokens=2048, chunk_size=512)


@given(SOME, POINTS)
def test_without_failures_nothing_is_at_risk(ok: list[Settings], settings: Settings) -> None:
    assert FailureModel(SPACE, ok, []).risk(settings) == 0.0


@given(SOME, SOME, POINTS)
def test_a_risk_is_a_chance(ok: list[Settings], failed: list[Settings], settings: Settings) -> None:
    assert 0.0 <= FailureModel(SPACE, ok, failed).risk(settings) <= 1.0


@given(SOME, POINTS, st.floats(1.0, 1.5), st.integers(0, 400), st.integers(0, 9000))
def test_what_takes_more_of_everything_than_a_failure_is_avoided(
    failed: list[Settings], failure: Settings, share: float, seats: int, tokens: int
) -> None:
    more = replace(
        failure,
        gpu_memory_utilization=min(1.0, failure.gpu_memory_utilization * share),
        max_num_seqs=failure.max_num_seqs + seats,
        max_num_batched_tokens=failure.max_num_batched_tokens + tokens,
    )
    model = FailureModel(SPACE, [], [failure, *failed])
    assert model.risk(more) >= RISKY
    assert model.risk(replace(more, chunk_size=0)) >= RISKY, "no limit on chunks takes more than any"


@given(POINTS, POINTS)
def test_one_failure_alone_condemns_nothing_that_takes_less_of_something(failure: Settings, other: Settings) -> None:
    failure = replace(failure, max_num_seqs=max(32, failure.max_num_seqs))
    less = replace(other, max_num_seqs=failure.max_num_seqs // 4)
    assert FailureModel(SPACE, [], [failure]).risk(less) < RISKY


def test_what_differs_in_something_else_is_not_condemned_by_what_it_takes() -> None:
    model = FailureModel(SPACE, [], [replace(MIDDLE, block_size=32)])
    assert model.risk(replace(MIDDLE, gpu_memory_utilization=0.95, max_num_seqs=512)) < RISKY


def test_a_setting_that_takes_more_and_served_well_clears_the_failure() -> None:
    served, between = replace(MIDDLE, max_num_seqs=512), replace(MIDDLE, max_num_seqs=256)
    assert FailureModel(SPACE, [], [MIDDLE]).risk(between) >= RISKY
    assert FailureModel(SPACE, [served], [MIDDLE]).risk(between) < RISKY


def test_several_failures_around_a_setting_condemn_it_unless_others_there_served() -> None:
    around = [replace(MIDDLE, max_num_seqs=n, gpu_memory_utilization=0.72) for n in (56, 64, 72)]
    assert FailureModel(SPACE, [], around).risk(MIDDLE) >= RISKY
    served = [replace(MIDDLE, max_num_seqs=n, gpu_memory_utilization=0.69) for n in (52, 56, 60, 68)]
    assert FailureModel(SPACE, served, around).risk(MIDDLE) < RISKY


def test_far_from_all_failures_the_chance_is_small() -> None:
    far = Settings(gpu_memory_utilization=0.5, max_num_seqs=8, max_num_batched_tokens=512, chunk_size=128)
    assert FailureModel(SPACE, [], [replace(far, max_num_seqs=512, gpu_memory_utilization=0.95)]).risk(far) < 0.1


def test_only_running_out_of_memory_and_crashes_are_failures() -> None:
    assert broke("OutOfDeviceMemory")
    assert broke("RuntimeError")
    assert not broke("KVCacheTooSmall")
    assert not broke("SwapSpaceTooSmall")
    assert not broke(None)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_study_learns_from_its_own_failures_and_from_earlier_ones(earlier: bool) -> None:
    trials = [finished(0, replace(MIDDLE, max_num_seqs=8), 1.0, 0.0)]
    if not earlier:
        crashed = Trial(1, "search", MIDDLE)
        crashed.fail("RuntimeError: crash", "RuntimeError")
        trials.append(crashed)
    prior = Prior(failed=(MIDDLE,)) if earlier else Prior()
    search = Search(optuna.create_study(), SPACE, 0, trials, lambda: 0.0, print, prior=prior)
    assert failure_model(search).risk(replace(MIDDLE, max_num_seqs=128)) >= RISKY
