"""A run against the best so far, under the same arrivals: slice by slice of the window, until it is clearly behind."""

from collections.abc import Iterable, Sequence

from workloads.inflight import InFlight
from workloads.metrics import Window, in_window
from workloads.records import RequestRecord
from workloads.verdict import ALPHA

SLICES = 24
FEWEST_SLICES = 6


def good_by_slice(requests: Iterable[RequestRecord], window: Window) -> tuple[int, ...]:
    """How many good requests were scheduled in each of the `SLICES` equal slices of a window.

    Args:
        requests: of the whole run, judged by an SLO.
    """
    good = [0] * SLICES
    for record in in_window(requests):
        good[_slice_of(record.t_sched, window)] += bool(record.good)
    return tuple(good)


def _slice_of(t_sched: int, window: Window) -> int:
    return min(SLICES - 1, (t_sched - window.start_ns) * SLICES // (window.end_ns - window.start_ns))


class RaceWatch:
    """Says when a run is behind another one by more than chance.

    After each slice whose requests have all ended, from the sixth to the last but one, a one-sided Wilcoxon signed-rank
    test compares the good requests of all such slices in pairs. (In an open loop the same requests come in the same
    slice of both runs; in a closed loop the time is the same.) The level is divided by the number of looks, so that
    all of them together err at most once in twenty times where slices are independent; requests that queue behind each
    other make neighbouring ones alike, and a setting that is dropped in error is one that was not ahead by much.

    Optuna's `WilcoxonPruner` is not used: it tests at the full level after each report, compares with the best value
    of the study whether or not that met the SLO, and each report would be a write to the storage in the middle of the
    measurement.

    Args:
        best: of the best run so far, see `good_by_slice`.
    """

    LEVEL = ALPHA / (SLICES - FEWEST_SLICES)

    def __init__(self, best: Sequence[int], window: Window) -> None:
        self._best = best
        self._window = window
        self._good = [0] * SLICES
        self._under_way = [0] * SLICES
        self._complete = 0

    def sent(self, inflight: InFlight) -> None:
        """A request of the window was sent."""
        self._under_way[_slice_of(inflight.t_sched, self._window)] += 1

    def ended(self, record: RequestRecord) -> None:
        """A request of the window ended."""
        position = _slice_of(record.t_sched, self._window)
        self._under_way[position] -= 1
        self._good[position] += bool(record.good)

    def is_behind(self, now: int) -> bool:
        """Take a look if a slice is complete that was not at the last one."""
        span_ns = (self._window.end_ns - self._window.start_ns) / SLICES
        complete = self._complete
        while (
            complete < SLICES
            and now >= self._window.start_ns + (complete + 1) * span_ns
            and not self._under_way[complete]
        ):
            complete += 1
        if complete == self._complete:
            return False
        self._complete = complete
        if not FEWEST_SLICES <= complete < SLICES:
            return False
        return _is_less([ours - best for ours, best in zip(self._good[:complete], self._best, strict=False)])


def _is_less(differences: Sequence[int]) -> bool:
    from scipy.stats import wilcoxon

    if not any(differences):
        return False
    # The normal limit with a correction for continuity errs on the safe side in so far a tail, and takes no time from
    # the run, as counting all signs would where differences are equal.
    test = wilcoxon(differences, alternative="less", correction=True, method="approx")
    return bool(test.pvalue <= RaceWatch.LEVEL)
