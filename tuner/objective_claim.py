"""The claim where the main objective is not the goodput: winner and default compared by that number instead."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuner.claim import SAME_WITHIN, Side
from tuner.objectives import Objective
from tuner.store import StudyStore
from workloads.metrics import SAMPLES, in_window
from workloads.records import RequestRecord
from workloads.resampling import circular_blocks

if TYPE_CHECKING:
    import numpy as np

# Fewer than for a goodput: a quantile over all gaps between tokens takes a millisecond.
BOOTSTRAP_SAMPLES = 1000

_AMOUNTS: Mapping[str, Callable[[RequestRecord], float]] = {
    "request_throughput": lambda record: 1.0,
    "output_throughput": lambda record: record.output_tokens,
}


def claim_by(
    objective: Objective, claim: Mapping[str, Any], baseline: Side, winner: Side, store: StudyStore, seed: int
) -> dict[str, Any]:
    """A `confirmation` by goodput, made into one by another number; `gain` is the relative change of that number.

    The interval is from a circular block bootstrap over requests, as for a goodput (see `claim.bootstrap_good`), with
    the same blocks for both sides where they served the same arrivals: what a hard stretch of them costs both cancels.

    Args:
        claim: what `claim.compare` says of the sides, both at one load.
    """
    import numpy as np

    theirs, ours = (_resampled_side(objective, side, store, seed) for side in (baseline, winner))
    before, after = (objective.at_offered_rate(side.summary, side.rate) for side in (baseline, winner))
    gain = low = high = None
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = ours / theirs - 1.0
    gains = gains[np.isfinite(gains)]
    if winner.meets and before and after is not None and len(gains):
        gain = after / before - 1.0
        low, high = (float(np.quantile(gains, q)) for q in (0.025, 0.975))
    return {
        **claim,
        "verdict": _verdict(objective, baseline, winner, low, high),
        "metric": objective.key,
        "gain": gain,
        "gain_low": low,
        "gain_high": high,
        "text": claim["text"] if gain is None or low is None or high is None else _text(objective, gain, low, high),
    }


def resampled(objective: Objective, runs: Sequence[Sequence["np.ndarray"]], seed: int) -> "np.ndarray":
    """The number in resamples of each run's requests, all runs together, float64 `[samples]`.

    Args:
        runs: for every request of a run, in order of arrival, what it contributes to the number, float64 `[values]`.
            A throughput comes out as the amount per request.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    whole = [run for run in runs if len(run)]
    numbers = np.full(BOOTSTRAP_SAMPLES, np.nan)
    for sample in range(BOOTSTRAP_SAMPLES):
        picked = [run[i] for run in whole for i in circular_blocks(len(run), 1, rng)[0]]
        values = np.concatenate(picked) if picked else np.empty(0)
        if len(values):
            numbers[sample] = _number(objective, values)
    return numbers


def _number(objective: Objective, values: "np.ndarray") -> float:
    import numpy as np

    statistic = "mean" if objective.latency is None else objective.latency[0]
    return float(values.mean() if statistic == "mean" else np.percentile(values, float(statistic[1:])))


def _resampled_side(objective: Objective, side: Side, store: StudyStore, seed: int) -> "np.ndarray":
    runs = [in_window(store.load(run).request_records()) for run in side.runs]
    numbers = resampled(objective, [[_contribution(objective, r) for r in run] for run in runs], seed)
    if objective.latency is None and side.rate is None and side.duration_s:
        # In a closed loop the faster setting serves more requests in the same time.
        return numbers * sum(map(len, runs)) / side.duration_s
    return numbers


def _contribution(objective: Objective, record: RequestRecord) -> "np.ndarray":
    import numpy as np

    if objective.latency is None:
        return np.array([_AMOUNTS[objective.key](record) if record.status == "ok" else 0.0])
    _, metric = objective.latency
    return np.array(SAMPLES[metric](record).values if record.status == "ok" else (), dtype=np.float64)


def _verdict(objective: Objective, baseline: Side, winner: Side, low: float | None, high: float | None) -> str:
    if not winner.meets:
        return "cannot tell"
    if not baseline.meets and baseline.verdict["state"] == "infeasible":
        return "better"
    if low is None or high is None:
        return "cannot tell"
    worst, best = (low, high) if objective.larger_is_better else (-high, -low)
    if worst > 0:
        return "better"
    if not baseline.meets:
        # A default that may not do at all is no reason to keep it, however good its number is.
        return "cannot tell"
    if best < 0:
        return "worse"
    return "same" if high - low <= 2 * SAME_WITHIN else "cannot tell"


def _text(objective: Objective, gain: float, low: float, high: float) -> str:
    return (
        f"Measured again in turn on fresh seeds: {gain:+.1%} {objective.title} "
        f"(95 % interval {low:+.1%} to {high:+.1%})."
    )
