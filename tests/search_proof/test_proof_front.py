"""The proof for two objectives: its volume, and how shares of it are judged."""

import math

import pytest

from scripts.search_proof.front import LOOKED_AT, FrontJob, judge, to_markdown, volume

E = math.e


def test_the_volume_is_the_area_before_the_corner() -> None:
    assert volume([(1.0, 1.0)], (E, E)) == pytest.approx(1.0)
    assert volume([(1.0, E), (E, 1.0)], (E**2, E**2)) == pytest.approx(3.0)


def test_what_is_dominated_or_misses_the_slo_adds_no_volume() -> None:
    assert volume([(1.0, 1.0), (2.0, 1.0), None], (E, E)) == pytest.approx(1.0)
    assert volume([None], (E, E)) == 0
    assert volume([(9.0, 1.0)], (E, E)) == 0


def test_a_strategy_that_finds_more_of_the_front_in_every_study_is_told_from_the_others() -> None:
    good, bad = (1,), (2,)
    studies = {
        FrontJob("first-token", strategy, seed): {
            "fronts": [[list(good if strategy == "twin" else bad)]] * len(LOOKED_AT),
            "trials": 4,
            "error": None,
        }
        for strategy in ("twin", "tpe", "random")
        for seed in range(10)
    }
    result = judge(studies, {("first-token", good): (100.0, 50.0), ("first-token", bad): (200.0, 80.0)})
    assert result["goals"][0]["met"]
    assert result["strategies"]["twin"]["medians"] == [pytest.approx(1.0)] * len(LOOKED_AT)
    assert result["strategies"]["tpe"]["medians"][0] < 0.6
    assert "| twin | 100.0 % |" in to_markdown(result)
