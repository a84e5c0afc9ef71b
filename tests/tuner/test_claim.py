"""The claimed gain, on made-up outcomes whose true gain is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tuner import claim
from tuner.claim import Ceiling, Side, compare
from tuner.settings import Settings
from tuner.store import Run

Flags = tuple[tuple[bool, ...], ...]


def make_side(
    good: Sequence[Sequence[bool]], rate: float | None = 4.0, *, meets: bool = True, duration_s: float = 50.0
) -> Side:
    meta: dict[str, Any] = {"stopped_early": None, "rate": rate}
    return Side(
        settings=Settings(),
        rate=rate,
        runs=tuple(Run(f"runs/{i:03d}", meta) for i in range(len(good))),
        good=tuple(tuple(bool(g) for g in run) for run in good),
        duration_s=duration_s,
        meets=meets,
        verdict={"state": "feasible" if meets else "infeasible", "bounds": []},
        summary={},
        classes={"all": {"requests": sum(map(len, good))}},
    )


def drawn(rng: np.random.Generator, share: float, size: int = 200, runs: int = 2) -> Flags:
    """Independent outcomes, good with probability `share`."""
    return tuple(tuple(rng.random(size) < share) for _ in range(runs))


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "BOOTSTRAP_SAMPLES", 400)


@pytest.mark.parametrize("seed", range(5))
def test_equal_sides_gain_nothing(seed: int) -> None:
    good = drawn(np.random.default_rng(seed), 0.9)
    verdict = compare(make_side(good), make_side(good), seed)
    assert verdict["gain"] == 0.0
    assert verdict["gain_low"] < 0.0 < verdict["gain_high"]
    assert verdict["verdict"] != "better"


@pytest.mark.parametrize("seed", range(10))
def test_a_clear_winner_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    verdict = compare(make_side(drawn(rng, 0.5)), make_side(drawn(rng, 0.95)), seed)
    assert verdict["verdict"] == "better"
    assert 0 < verdict["gain_low"] <= verdict["gain"] <= verdict["gain_high"]


def test_the_interval_of_a_winner_holds_its_true_gain() -> None:
    # Two halves of good requests against a share of exactly nine tenths.
    verdict = compare(make_side([[True, False] * 100] * 2), make_side([([True] * 9 + [False]) * 20] * 2), 0)
    assert verdict["gain"] == pytest.approx(0.9 / 0.5 - 1)
    assert verdict["gain_low"] < 0.9 / 0.5 - 1 < verdict["gain_high"]


@pytest.mark.parametrize("seed", range(10))
def test_a_clear_loser_is_worse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    verdict = compare(make_side(drawn(rng, 0.95)), make_side(drawn(rng, 0.6)), seed)
    assert verdict["verdict"] == "worse"
    assert verdict["gain_high"] < 0


@pytest.mark.parametrize(("share", "size"), [(0.9, 100), (0.97, 60), (0.5, 20)])
def test_a_setting_measured_against_itself_is_called_better_in_at_most_one_of_twenty_studies(
    few_resamples: None, share: float, size: int
) -> None:
    false_claims = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        verdict = compare(make_side(drawn(rng, share, size)), make_side(drawn(rng, share, size)), seed)
        false_claims += verdict["verdict"] == "better"
    assert false_claims <= 10


def test_the_interval_holds_the_true_gain_in_nine_of_ten_studies(few_resamples: None) -> None:
    held = 0
    for seed in range(200):
        rng = np.random.default_rng(1000 + seed)
        verdict = compare(make_side(drawn(rng, 0.8)), make_side(drawn(rng, 0.9)), seed)
        held += verdict["gain_low"] <= 0.9 / 0.8 - 1 <= verdict["gain_high"]
    assert held >= 180


def test_outcomes_that_come_in_clusters_widen_the_interval() -> None:
    rng = np.random.default_rng(7)
    share = rng.random(50) < 0.8
    clustered = np.repeat(share, 8).tolist()
    scattered = rng.permutation(clustered).tolist()
    widths = [np.ptp(np.quantile(claim.bootstrap_good([run], rng), (0.025, 0.975))) for run in (clustered, scattered)]
    assert widths[0] > 1.5 * widths[1]


def test_goodput_is_the_offered_rate_times_the_share_of_good_requests() -> None:
    side = make_side([[True] * 30 + [False] * 10, [True] * 60], rate=5.0)
    assert side.goodput == pytest.approx(5.0 * 90 / 100)


def test_goodput_of_a_closed_loop_is_good_requests_per_second() -> None:
    assert make_side([[True] * 30 + [False] * 10], rate=None, duration_s=20.0).goodput == pytest.approx(1.5)


def test_sides_at_different_rates_are_compared_by_goodput() -> None:
    verdict = compare(make_side([[True] * 100], rate=4.0), make_side([[True] * 100], rate=6.0), 0)
    assert verdict["gain"] == pytest.approx(0.5)
    assert verdict["verdict"] == "better"


def test_a_narrow_interval_around_nothing_is_the_same(few_resamples: None) -> None:
    good = [[True] * 1000]
    good[0][10] = False
    verdict = compare(make_side(good), make_side(good), 0)
    assert verdict["verdict"] == "same"


def test_a_winner_that_misses_the_slo_again_is_never_better() -> None:
    verdict = compare(make_side([[False] * 100]), make_side([[True] * 90 + [False] * 10], meets=False), 0)
    assert verdict["verdict"] == "cannot tell"
    assert "missed the SLO" in verdict["text"]


def test_a_default_without_a_good_request_leaves_no_gain_to_state() -> None:
    verdict = compare(make_side([[False] * 100]), make_side([[True] * 100]), 0)
    assert verdict["verdict"] == "better"
    assert (verdict["gain"], verdict["gain_low"], verdict["gain_high"]) == (None, None, None)
    assert "no good request" in verdict["text"]


def test_two_sides_without_a_good_request_cannot_be_told_apart() -> None:
    nothing = make_side([[False] * 100])
    assert compare(nothing, nothing, 0)["verdict"] == "cannot tell"


def test_a_run_without_requests_counts_nothing() -> None:
    side = make_side([[], [True] * 10], rate=2.0)
    assert side.goodput == pytest.approx(2.0)
    assert compare(side, side, 0)["gain"] == 0.0


def test_the_record_holds_what_study_json_promises() -> None:
    verdict = compare(make_side([[True] * 10], rate=4.0), make_side([[True] * 10], rate=4.0), 0)
    assert set(verdict) == {"verdict", "metric", "gain", "gain_low", "gain_high", "baseline", "winner", "text"}
    promised = {"settings", "rate", "runs", "verdict", "goodput", "goodput_low", "goodput_high", "summary", "classes"}
    for label in ("baseline", "winner"):
        assert set(verdict[label]) == promised
        assert verdict[label]["goodput_low"] <= verdict[label]["goodput"] <= verdict[label]["goodput_high"]


def test_a_winner_that_misses_the_slo_claims_nothing() -> None:
    rng = np.random.default_rng(0)
    verdict = compare(make_side(drawn(rng, 0.9)), make_side(drawn(rng, 0.5), meets=False), 0)
    assert verdict["verdict"] == "cannot tell"
    assert (verdict["gain"], verdict["gain_low"], verdict["gain_high"]) == (None, None, None)


def test_a_lead_within_the_defaults_bracket_is_not_claimed_unless_the_default_is_proven_to_miss() -> None:
    always = ((True,) * 100,) * 2
    default, winner = make_side(always, rate=4.0), make_side(always, rate=4.4)
    open_bracket = compare(default, winner, 0, Ceiling(4.4, proven=False))
    assert open_bracket["verdict"] == "cannot tell"
    assert open_bracket["gain"] == pytest.approx(0.1)
    assert -0.1 < open_bracket["gain_low"] < 0.0
    proven = compare(default, winner, 0, Ceiling(4.4, proven=True))
    assert proven["verdict"] == "better"
    assert proven["gain_low"] >= 0.0


def test_a_lead_beyond_the_defaults_bracket_is_better() -> None:
    always = ((True,) * 100,) * 2
    verdict = compare(make_side(always, rate=4.0), make_side(always, rate=6.0), 0, Ceiling(4.5, proven=False))
    assert verdict["verdict"] == "better"
    assert verdict["gain"] == pytest.approx(0.5)
    assert 0.2 < verdict["gain_low"] < 6.0 / 4.5 - 1
