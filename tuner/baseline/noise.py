"""How much equal runs of a baseline differ: the noise that a difference has to stand out from."""

from dataclasses import dataclass

from reports.diff.measured import run_noise
from reports.diff.metrics import metrics_of
from reports.diff.side import Side


@dataclass(frozen=True, slots=True)
class Noise:
    """The spread of one metric over runs of the same settings under the same traffic, within a session.

    Attributes:
        metric: its name.
        share: standard deviation of a single run, relative to its value.
        freedom: degrees of freedom behind it.
    """

    metric: str
    share: float
    freedom: int


def measured_noise(side: Side) -> list[Noise]:
    """The noise of every metric that is judged by default; empty where no seed was repeated."""
    judged, _ = metrics_of(side.meta["slo"])
    found = ((metric.name, run_noise(metric, side)) for metric in judged)
    return [Noise(name, *noise) for name, noise in found if noise is not None]
