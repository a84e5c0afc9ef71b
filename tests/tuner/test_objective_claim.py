"""The claim by another number than the goodput, on made-up latencies whose true change is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner import objective_claim
from tuner.claim import Side, compare
from tuner.objective_claim import claim_by, resampled
from tuner.objectives import OBJECTIVES, Objective
from tuner.settings import Settings
from tuner.store import Run, StudyStore
from workloads.metrics import NS_PER_MS
from workloads.records import RequestRecord

TTFT, TOKENS = OBJECTIVES["p95_ttft"], OBJECTIVES["output_throughput"]


def answered(ttft_ms: float, tokens: int = 10) -> RequestRecord:
    ttft = round(ttft_ms * NS_PER_MS)
    return RequestRecord(
        *(0, "r", "window", "ok", "length", None, 0, 0, 0, ttft, ttft, ttft), *(8, tokens, tokens, tokens, 0, 0, 0)
    )


class HeldRuns(StudyStore):
    """A store whose runs lie in memory."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), {})
        self.held: dict[str, list[RequestRecord]] = {}

    def load(self, run: Run) -> Any:
        return HeldRequests(self.held[run.path])


class HeldRequests:
    """The requests of one run."""

    def __init__(self, requests: list[RequestRecord]) -> None:
        self._requests = requests

    def request_records(self) -> list[RequestRecord]:
        return self._requests


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective_claim, "BOOTSTRAP_SAMPLES", 200)


def side_of(
    store: HeldRuns, name: str, requests: list[RequestRecord], *, meets: bool = True, rate: float | None = 5.0
) -> Side:
    """A side with one run of 50 s."""
    store.held[name] = requests
    ttfts_ms = [(r.t_first or 0) / NS_PER_MS for r in requests]
    tokens = sum(r.output_tokens for r in requests)
    summary = {"duration": 50.0, "completed": len(requests), "failed": 0, "output_throughput": tokens / 50.0}
    return Side(
        settings=Settings(),
        rate=rate,
        runs=(Run(name, {"rate": rate, "stopped_early": None}),),
        good=((True,) * len(requests),),
        duration_s=50.0,
        meets=meets,
        verdict={"state": "feasible" if meets else "infeasible", "bounds": []},
        summary=summary | {"p95_ttft_ms": float(np.percentile(ttfts_ms, 95))},
        classes={},
    )


def claimed(objective: Objective, baseline: Side, winner: Side, store: HeldRuns, seed: int) -> dict[str, Any]:
    return claim_by(objective, compare(baseline, winner, seed), baseline, winner, store, seed)


def drawn(seed: int, scale: float = 1.0, size: int = 250) -> list[RequestRecord]:
    return [answered(scale * ms) for ms in np.random.default_rng(seed).lognormal(5.0, 0.6, size)]


@pytest.mark.parametrize("seed", range(4))
def test_a_lower_latency_on_the_same_arrivals_is_better_and_a_higher_one_worse(seed: int) -> None:
    store = HeldRuns()
    slow, fast = side_of(store, "slow", drawn(seed)), side_of(store, "fast", drawn(seed, 0.8))
    claim = claimed(TTFT, slow, fast, store, seed)
    assert claim["verdict"] == "better"
    assert claim["metric"] == "p95_ttft_ms"
    # Every request has the same factor, and both sides are resampled alike.
    assert claim["gain"] == pytest.approx(-0.2, abs=1e-3)
    assert claim["gain_low"] == pytest.approx(-0.2, abs=1e-3)
    assert claim["gain_high"] == pytest.approx(-0.2, abs=1e-3)
    assert claimed(TTFT, fast, slow, store, seed)["verdict"] == "worse"
    assert claimed(TTFT, fast, fast, store, seed)["verdict"] == "same"


@pytest.mark.parametrize("seed", range(4))
def test_a_difference_within_the_noise_is_not_called_better(seed: int) -> None:
    store = HeldRuns()
    one, other = side_of(store, "one", drawn(seed)), side_of(store, "other", drawn(seed + 100))
    claim = claimed(TTFT, one, other, store, seed)
    assert claim["gain_low"] < claim["gain"] < claim["gain_high"]
    assert claim["gain_low"] < 0 < claim["gain_high"]
    assert claim["verdict"] == "cannot tell"


def test_a_default_that_misses_the_slo_is_no_reason_to_keep_it() -> None:
    store = HeldRuns()
    fast, slow = side_of(store, "fast", drawn(1, 0.8), meets=False), side_of(store, "slow", drawn(1))
    assert claimed(TTFT, fast, slow, store, 0)["verdict"] == "better"


def test_a_winner_that_misses_the_slo_claims_nothing() -> None:
    store = HeldRuns()
    slow, fast = side_of(store, "slow", drawn(1)), side_of(store, "fast", drawn(1, 0.8), meets=False)
    claim = claimed(TTFT, slow, fast, store, 0)
    assert (claim["verdict"], claim["gain"]) == ("cannot tell", None)
    assert "missed the SLO" in claim["text"]


@pytest.mark.parametrize("rate", [5.0, None])
def test_more_tokens_are_a_better_throughput_in_an_open_and_a_closed_loop(rate: float | None) -> None:
    store = HeldRuns()
    few = side_of(store, "few", [answered(100.0, 10) for _ in range(250)], rate=rate)
    # In a closed loop the gain may lie in more requests of the same length as well.
    many = [answered(100.0, 12) for _ in range(250)] if rate else [answered(100.0, 10) for _ in range(300)]
    claim = claimed(TOKENS, few, side_of(store, "many", many, rate=rate), store, 0)
    assert claim["gain"] == pytest.approx(0.2)
    assert claim["gain_low"] == pytest.approx(0.2)
    assert claim["verdict"] == "better"


def test_resamples_scatter_around_the_number_itself() -> None:
    values = np.random.default_rng(3).lognormal(5.0, 0.6, 400)
    numbers = resampled(TTFT, [[np.array([v]) for v in values[:200]], [np.array([v]) for v in values[200:]]], 1)
    low, high = np.quantile(numbers, (0.05, 0.95))
    assert low < np.percentile(values, 95) < high
    assert np.isnan(resampled(TTFT, [], 1)).all()
