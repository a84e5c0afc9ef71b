"""Arrival processes: the right rate, the right spread, and the same pattern at every rate."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from workloads.arrivals import ARRIVALS, ClosedLoop, OpenLoop
from workloads.kinds import parse_kind
from workloads.streams import stream

OPEN_LOOPS = ["poisson", "gamma:burstiness=0.25", "constant", "spikes:multiplier=4,length_s=2,every_s=20"]


def arrival(text):
    return parse_kind(text, ARRIVALS, "arrival")


def offsets_s(text, rate, seed, count):
    schedule = arrival(text).offsets_ns(rate, stream(seed, "arrivals"))
    return np.array(list(islice(schedule, count))) / 1e9


@pytest.mark.parametrize("text", OPEN_LOOPS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_rate_is_the_long_run_mean(text, seed):
    offsets = offsets_s(text, rate=5.0, seed=seed, count=20_000)
    assert len(offsets) / offsets[-1] == pytest.approx(5.0, rel=0.05)
    assert (np.diff(offsets) >= 0).all()


@pytest.mark.parametrize(("text", "cv2"), [("poisson", 1), ("gamma:0.25", 4), ("gamma:4", 0.25), ("constant", 0)])
def test_the_squared_variation_of_the_gaps_is_one_over_the_burstiness(text, cv2):
    gaps = np.diff(offsets_s(text, rate=2.0, seed=3, count=50_000))
    assert np.var(gaps) / np.mean(gaps) ** 2 == pytest.approx(cv2, rel=0.1, abs=1e-6)


@given(
    seed=st.integers(0, 2**64),
    rates=st.tuples(st.floats(0.01, 1000), st.floats(0.01, 1000)),
    text=st.sampled_from(["poisson", "gamma:burstiness=0.5", "constant"]),
)
def test_the_same_seed_at_another_rate_gives_the_same_pattern_scaled(seed, rates, text):
    slow, fast = (offsets_s(text, rate, seed, 200) * rate for rate in rates)
    np.testing.assert_allclose(slow, fast, rtol=1e-9, atol=max(rates) * 1e-9)


def test_spikes_hold_their_place_and_their_multiple_of_the_plateau():
    offsets = offsets_s("spikes:multiplier=4,length_s=2,every_s=20", rate=10.0, seed=0, count=50_000)
    in_spike = offsets % 20 >= 18
    rate_in_spike = in_spike.mean() / 2
    rate_on_plateau = (~in_spike).mean() / 18
    assert rate_in_spike / rate_on_plateau == pytest.approx(4, rel=0.05)


@given(t_s=st.floats(0, 1e5), text=st.sampled_from(OPEN_LOOPS))
def test_time_and_cumulative_rate_are_inverse(t_s, text):
    process = arrival(text)
    assert isinstance(process, OpenLoop)
    assert process.seconds(process.work_until(t_s)) == pytest.approx(t_s, abs=1e-6)


def test_a_closed_loop_keeps_its_number_or_draws_within_its_bounds():
    fixed, moving = arrival("closed:16"), arrival("closed:8..32,period_s=5")
    assert isinstance(fixed, ClosedLoop)
    assert isinstance(moving, ClosedLoop)
    assert set(islice(fixed.levels(stream(0, "arrivals")), 50)) == {16}
    levels = list(islice(moving.levels(stream(0, "arrivals")), 2000))
    assert set(levels) == set(range(8, 33))
    assert levels == list(islice(moving.levels(stream(0, "arrivals")), 2000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("burst", "unknown kind 'burst'.*poisson, gamma:burstiness=0.5"),
        ("gamma", "'burstiness' is missing"),
        ("gamma:burstiness=0", "burstiness='0' is not possible"),
        ("gamma:burstiness=nan", "burstiness='nan' is not possible"),
        ("poisson:rate=3", "there is no 'rate'"),
        ("spikes:multiplier=4,length_s=20,every_s=20", "length_s=20.0 is not below every_s=20.0"),
        ("closed:32..8", "low=32 is above high=8"),
        ("closed", "either one number or low..high"),
        ("closed:0", "concurrency='0' is not possible"),
    ],
)
def test_an_arrival_that_cannot_be_is_answered_with_the_right_form(text, message):
    with pytest.raises(UserError, match=message):
        arrival(text)
