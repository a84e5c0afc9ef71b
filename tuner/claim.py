"""The claim: winner and baseline measured again in turn on fresh seeds, and only that gain is claimed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.settings import Settings
from tuner.store import Run, StudyStore
from workloads.metrics import Window, in_window, summarize, summarize_classes
from workloads.pool import pool, pool_waits
from workloads.resampling import circular_blocks
from workloads.slo import Slo

if TYPE_CHECKING:
    import numpy as np

BOOTSTRAP_SAMPLES = 4000
SAME_WITHIN = 0.02


@dataclass(frozen=True)
class Side:
    """One setting at one rate, over all its confirmation runs together.

    Attributes:
        rate: requests per second; None for a closed loop.
        good: per run, whether each window request was good, in order of arrival.
        meets, verdict: the SLO over all runs together.
        summary, classes: likewise.
        distrust: why runs of it cannot be trusted; empty when all can.
    """

    settings: Settings
    rate: float | None
    runs: tuple[Run, ...]
    good: tuple[tuple[bool, ...], ...]
    duration_s: float
    meets: bool
    verdict: dict[str, Any]
    summary: dict[str, Any]
    classes: dict[str, dict[str, Any]]
    distrust: str = ""

    @property
    def goodput(self) -> float:
        """Good requests per second: the offered rate times the share of good requests.

        The share estimates the same as counting good requests per second of the window, without the noise of how
        many happened to arrive.
        """
        flags = [flag for run in self.good for flag in run]
        return sum(flags) * self._scale(len(flags))

    def _scale(self, num_requests: int) -> float:
        if self.rate is None:
            return 1.0 / self.duration_s if self.duration_s else 0.0
        return self.rate / num_requests if num_requests else 0.0

    def resampled_goodput(self, rng: "np.random.Generator") -> "np.ndarray":
        """Goodput of `BOOTSTRAP_SAMPLES` resamples, float64 `[samples]`; see `bootstrap_good`."""
        flags = sum(len(run) for run in self.good)
        return bootstrap_good(self.good, rng) * self._scale(flags)

    def to_dict(self, low: float, high: float) -> dict[str, Any]:
        """A side of `confirmation` in `study.json`."""
        return {
            "settings": self.settings.to_dict(),
            "rate": self.rate,
            "runs": [run.path for run in self.runs],
            "verdict": self.verdict,
            "goodput": self.goodput,
            "goodput_low": low,
            "goodput_high": high,
            "summary": self.summary,
            "classes": self.classes,
        }


def make_side(store: StudyStore, settings: Settings, runs: Sequence[Run], slo: Slo) -> Side:
    """Read runs of one setting at one rate back and judge them together."""
    records = [store.load(run) for run in runs]
    parts = [(r.request_records(), r.iteration_records(), _window(r.meta)) for r in records]
    requests, iterations, window = pool(parts)
    verdict = slo.judge(requests)
    waits = pool_waits(parts)
    return Side(
        settings=settings,
        rate=runs[0].rate,
        runs=tuple(runs),
        good=tuple(tuple(bool(r.good) for r in in_window(part[0])) for part in parts),
        duration_s=window.duration_s,
        meets=verdict.meets,
        verdict=verdict.to_dict(),
        summary=summarize(requests, iterations, window, slo, waits),
        classes=summarize_classes(requests, iterations, window, slo, waits),
        distrust="; ".join(dict.fromkeys(run.distrust for run in runs if not run.is_valid)),
    )


def _window(meta: dict[str, Any]) -> Window:
    return Window(meta["window"]["start_ns"], meta["window"]["end_ns"])


def bootstrap_good(runs: Sequence[Sequence[bool]], rng: "np.random.Generator") -> "np.ndarray":
    """Number of good requests in resamples of each run, summed over the runs, float64 `[samples]`.

    Drawn in blocks (see `workloads.resampling`).
    """
    import numpy as np

    totals = np.zeros(BOOTSTRAP_SAMPLES)
    for run in runs:
        if not len(run):
            continue
        # One good and one bad request more, after Agresti and Coull (The American Statistician 52(2), 1998): without
        # them a run in which all were good would claim to know that all ever will be.
        flags = np.append(np.asarray(run, dtype=np.int64), (1, 0))
        picked = flags[circular_blocks(len(flags), BOOTSTRAP_SAMPLES, rng)]  # [samples, requests]
        totals += picked[:, : len(run)].sum(axis=1)
    return totals


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What is known of how far the default could go beyond the rate at which it was measured.

    Attributes:
        rate: the lowest rate at which it missed the SLO; its true limit may lie anywhere below.
        proven: it missed the winner's rate by more than chance, while the winner held it.
    """

    rate: float
    proven: bool


def compare(baseline: Side, winner: Side, seed: int, ceiling: Ceiling | None = None) -> dict[str, Any]:
    """The `confirmation` of `study.json` for two sides that were both measured again.

    Args:
        ceiling: given when the sides ran at different rates. The interval then reaches down to what the gain would
            be if the default held every rate below its lowest miss, since the search knows its limit no finer.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    ours, theirs = winner.resampled_goodput(rng), baseline.resampled_goodput(rng)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = ours / theirs - 1.0
    gains = gains[np.isfinite(gains)]
    gain = low = high = None
    # A winner that misses the SLO has nothing to claim, and its runs may have been cut short by their misses.
    # The same goes for a default that missed its own rate: its goodput there would flatter the winner.
    stopped = any(run.meta["stopped_early"] for run in baseline.runs)
    cut_short = stopped or (ceiling is not None and not baseline.meets)
    if winner.meets and not cut_short and baseline.goodput > 0 and len(gains):
        gain = winner.goodput / baseline.goodput - 1.0
        low, high = (float(np.quantile(gains, q)) for q in (0.025, 0.975))
        if ceiling is not None:
            low = min(low, float(np.quantile(ours, 0.025)) / ceiling.rate - 1.0)
            low = max(low, 0.0) if ceiling.proven else low
    verdict = _verdict(baseline, winner, low, high, ceiling)
    return {
        "verdict": verdict,
        "metric": "request_goodput",
        "gain": gain,
        "gain_low": low,
        "gain_high": high,
        "baseline": baseline.to_dict(*_interval(theirs)),
        "winner": winner.to_dict(*_interval(ours)),
        "text": _text(baseline, winner, gain, low, high, ceiling),
    }


def _interval(samples: "np.ndarray") -> tuple[float, float]:
    import numpy as np

    low, high = np.quantile(samples, (0.025, 0.975))
    return float(low), float(high)


def _verdict(baseline: Side, winner: Side, low: float | None, high: float | None, ceiling: Ceiling | None) -> str:
    if not winner.meets:
        return "cannot tell"
    if low is None or high is None:
        missed = baseline.goodput == 0 or baseline.verdict["state"] == "infeasible"
        proven = missed or (ceiling is not None and ceiling.proven)
        return "better" if winner.goodput > 0 and proven else "cannot tell"
    if low > 0 or (ceiling is not None and ceiling.proven):
        return "better"
    if high < 0:
        return "worse"
    return "same" if high - low <= 2 * SAME_WITHIN else "cannot tell"


def _text(
    baseline: Side,
    winner: Side,
    gain: float | None,
    low: float | None,
    high: float | None,
    ceiling: Ceiling | None,
) -> str:
    at = "" if winner.rate is None else f" at {winner.rate:.3g} requests/s"
    if not winner.meets:
        return f"Measured again{at}, the best setting of the search missed the SLO; its lead is not confirmed."
    if gain is None or low is None or high is None:
        why = "held no rate to compare it with" if baseline.goodput else "had no good request to compare with"
        return f"Measured again{at}, the best setting met the SLO; the default {why}."
    text = f"Measured again in turn on fresh seeds: {gain:+.1%} goodput (95 % interval {low:+.1%} to {high:+.1%})"
    if ceiling is not None:
        # A default that missed its own rate as well has left no gain to speak of above.
        text += f"; the default missed the SLO at {ceiling.rate:.3g} requests/s and was compared at its own rate"
    return f"{text}."
