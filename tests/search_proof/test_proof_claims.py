"""Bias and coverage of claimed gains."""

from typing import Any

import pytest

from scripts.search_proof.claims import judge, to_markdown


def entry(gain: float, true_gain: float | None, verdict: str = "better", pair: str = "p") -> dict[str, Any]:
    claim = {"verdict": verdict, "gain": gain, "gain_low": gain - 0.05, "gain_high": gain + 0.05}
    return {"job": {"pair": pair}, "claim": claim, "true_gain": true_gain}


def test_only_claims_of_a_gain_are_judged() -> None:
    found = [entry(0.3, 0.31), entry(0.2, 0.19), entry(0.5, 0.1, "same"), entry(0.9, None)]
    result = judge([*found, {"job": {"pair": "p"}, "claim": None, "true_gain": None}])
    assert result["verdicts"] == {"better": 3, "same": 1, "broken off": 1}
    assert result["all"]["claims"] == 2
    assert result["all"]["bias"] == pytest.approx(0.0)
    assert result["all"]["coverage"] == 1.0
    assert all(goal["met"] for goal in result["goals"])


def test_claims_that_are_too_high_miss_the_goal() -> None:
    result = judge([entry(0.30, 0.22), entry(0.40, 0.34, pair="q")])
    assert result["all"]["bias"] == pytest.approx(0.07)
    assert result["all"]["coverage"] == 0.0
    assert not any(goal["met"] for goal in result["goals"])
    assert result["pairs"]["q"]["bias"] == pytest.approx(0.06)


def test_without_a_claim_nothing_is_proven() -> None:
    result = judge([entry(0.0, None, "same")])
    assert not any(goal["met"] for goal in result["goals"])
    assert "| all | 0 | – |" in to_markdown(result)
