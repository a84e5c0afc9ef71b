"""Finding what a point is worth: the highest rate held, by a bracket that is widened and then halved."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.search_proof import capacity as capacity_module
from scripts.search_proof.capacity import FINAL, Truth, capacity, find_truth, fingerprint, on_one_scale, settle
from scripts.search_proof.pairs import PAIRS, point_of, settings_at


@given(limit=st.floats(1.0, 30.0), guess=st.floats(1.0, 8.0), tolerance=st.sampled_from([1.01, 1.02, 1.1]))
def test_the_limit_is_bracketed_within_the_tolerance(limit: float, guess: float, tolerance: float) -> None:
    rate, share = capacity(lambda rate: 0.97 if rate <= limit else None, guess, tolerance)
    assert limit / tolerance <= rate * 1.000001
    assert rate <= limit
    assert share == 0.97


def test_a_point_that_holds_no_rate_is_worth_nothing() -> None:
    tried: list[float] = []
    assert capacity(tried.append, 4.0, 1.1, least=1.0) == (0.0, 0.0)
    # Slow runs are long; those that would show nothing of interest are not made.
    assert sum(rate <= 1.0 for rate in tried) == 1


def test_values_of_a_pass_with_kinder_traffic_are_brought_to_the_scale_of_the_next() -> None:
    before = {(1,): 10.0, (2,): 8.0, (3,): 5.0, (4,): 0.0}
    assert on_one_scale(before, {(1,): 9.0, (2,): 7.2}) == pytest.approx({(1,): 9.0, (2,): 7.2, (3,): 4.5, (4,): 0.0})
    assert on_one_scale({}, before) == before


def test_regret_is_the_share_of_the_best_that_is_missing() -> None:
    truth = Truth({(1,): 4.0, (2,): 3.0, (3,): 4.4}, {(1,): 800, (2,): 800, (3,): 100})
    # The value of the third is a guess from a short run.
    assert truth.optimum == 4.0
    assert [truth.regret(point) for point in ((1,), (2,), (3,), None)] == [0.0, 0.25, 0.0, 1.0]
    assert truth.share_within(0.1) == pytest.approx(2 / 3)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_all_points_of_a_pair_behave_differently_and_the_default_is_one(pair) -> None:
    points = list(pair.points())
    assert len({settings_at(pair, point).canonical() for point in points}) == len(points) == 625
    assert all(settings_at(pair, point).canonical() == settings_at(pair, point) for point in points)
    assert point_of(pair, pair.default.to_dict()) in points


def test_the_fingerprints_of_all_pairs_differ() -> None:
    assert len({fingerprint(pair) for pair in PAIRS.values()}) == len(PAIRS)


def test_the_last_word_is_asked_once_of_what_was_recommended_and_of_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = PAIRS["first-token"]
    points = list(pair.points())
    truth = Truth({p: float(i) for i, p in enumerate(points)}, dict.fromkeys(points, 100))
    asked: list[Any] = []

    def value_of(piece: Any) -> list[tuple[float, float]]:
        asked.append(piece.points[0][0])
        return [(1.0, 9000.0)]

    monkeypatch.setattr(capacity_module, "_values", value_of)
    chosen = [points[3], points[0]]
    settled = settle(pair, truth, chosen, tmp_path, processes=1)
    # A point that is worth nothing needs no last word.
    assert set(asked) == {points[3], *points[-20:]}
    assert settled.values[points[3]] == settled.optimum == 9000.0
    assert settled.requests[points[3]] == FINAL.requests
    assert settle(pair, settled, chosen, tmp_path, processes=1) == settled
    assert len(asked) == 21
    assert find_truth(pair, tmp_path, 1, print).values[points[3]] == 9000.0
