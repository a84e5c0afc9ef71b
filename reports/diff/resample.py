"""What the luck of single requests does to a difference, where there is one run of each side: requests drawn again.

The machine's own noise from run to run does not show in this: requests of one run share it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from reports.diff.estimate import Estimate
from reports.diff.metrics import Metric
from reports.diff.scale import Scale
from reports.diff.side import Recorded
from workloads.metrics import SAMPLES, Sample, in_window
from workloads.records import RequestRecord
from workloads.resampling import circular_blocks

if TYPE_CHECKING:
    import numpy as np

SAMPLES_DRAWN = 1000

_FEWEST = 2


def by_requests(
    metric: Metric, scale: Scale, base: Recorded, new: Recorded, seed: int, *, paired: bool
) -> Estimate | None:
    """The difference of two single runs, with what other requests would have made of it.

    Args:
        seed: of the resamples.
        paired: the runs had the same traffic: requests of the same index are drawn together.

    Returns:
        None for a metric that does not come from single requests, and with fewer than two of them.
    """
    import numpy as np

    of_request = _contribution(metric)
    numbers = metric.read(base), metric.read(new)
    if of_request is None or numbers[0] is None or numbers[1] is None:
        return None
    sides = [{r.index: of_request(r) for r in in_window(run.request_records())} for run in (base, new)]
    if paired:
        shared = sorted(sides[0].keys() & sides[1].keys())
        sides = [{index: side[index] for index in shared} for side in sides]
    sizes = [len(side) for side in sides]
    if min(sizes) < _FEWEST:
        return None
    rng = np.random.default_rng(seed)
    draws = [_multiplicities(size, rng) for size in sizes[:1]]
    draws.append(draws[0] if paired else _multiplicities(sizes[1], rng))
    statistics = [
        _statistic(metric, [sample for _, sample in sorted(side.items())], drawn)
        for side, drawn in zip(sides, draws, strict=True)
    ]
    if scale.unit is None:
        with np.errstate(divide="ignore"):
            values = [np.log(s) for s in statistics]
    else:
        # In units of the base's own statistic, whatever unit that comes in.
        middle = float(np.nanmean(statistics[0]))
        values = [s / middle if middle else s for s in statistics]
    with np.errstate(invalid="ignore"):
        differences = values[1] - values[0]
    differences = differences[np.isfinite(differences)]
    if len(differences) < SAMPLES_DRAWN / 2:
        return None
    return Estimate(
        base=scale.value(numbers[0]),
        new=scale.value(numbers[1]),
        variance=float(differences.var()),
        freedom=math.inf,
        design="requests paired" if paired else "requests",
        units=min(sizes),
        has_noise=False,
        has_sessions=False,
    )


def _contribution(metric: Metric) -> Callable[[RequestRecord], Sample] | None:
    """What one request contributes to a metric."""
    if metric.latency is not None:
        return SAMPLES[metric.latency[1]]
    return _AMOUNTS.get(metric.name)


_AMOUNTS: Mapping[str, Callable[[RequestRecord], Sample]] = {
    "goodput": lambda r: Sample((float(bool(r.good)),)),
    "request_throughput": lambda r: Sample((float(r.status == "ok"),)),
    "output_throughput": lambda r: Sample((float(r.output_tokens if r.status == "ok" else 0),)),
}


def _multiplicities(num_requests: int, rng: "np.random.Generator") -> "np.ndarray":
    """How often each request is drawn, int64 `[samples, requests]`."""
    import numpy as np

    positions = circular_blocks(num_requests, SAMPLES_DRAWN, rng)
    rows = np.arange(SAMPLES_DRAWN)[:, None] * num_requests
    counts = np.bincount((positions + rows).ravel(), minlength=SAMPLES_DRAWN * num_requests)
    return counts.reshape(SAMPLES_DRAWN, num_requests)


def _statistic(metric: Metric, samples: Sequence[Sample], drawn: "np.ndarray") -> "np.ndarray":
    """The metric in each resample, float64 `[samples]`; NaN or infinite where it has none."""
    import numpy as np

    statistic = metric.latency[0] if metric.latency else "mean"
    values = np.array([value for s in samples for value in s.values])
    owners = np.repeat(np.arange(len(samples)), [len(s.values) for s in samples])
    if statistic == "mean":
        sums, counts = (np.bincount(owners, weights=w, minlength=len(samples)) for w in (values, np.ones(len(values))))
        with np.errstate(divide="ignore", invalid="ignore"):
            return (drawn @ sums) / (drawn @ counts)
    missing = np.array([s.missing for s in samples])
    values = np.append(values, np.full(int(missing.sum()), np.inf))
    owners = np.append(owners, np.repeat(np.arange(len(samples)), missing))
    order = np.argsort(values, kind="stable")
    values, owners = values[order], owners[order]
    share = 1.0 if statistic == "max" else float(statistic[1:]) / 100
    found = np.full(len(drawn), np.nan)
    for i, times in enumerate(drawn):
        reached = np.cumsum(times[owners])
        if len(reached) and reached[-1]:
            found[i] = values[np.searchsorted(reached, math.ceil(share * reached[-1] - 1e-9))]
    return found
