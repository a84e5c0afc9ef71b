"""How long requests waited, and for what. `docs/records.md` says what the causes mean.

A request waits from its scheduled arrival to its first admission, and from each preemption to its return. Part of the
former may be its client's own time: from being turned away to being sent again.

Between two steps nothing changes, so the cause that a step left behind holds until the next one begins. With the time
of each cause summed up along the steps, a wait costs two look-ups, however many steps it spans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from engine.scheduler.plan import WaitCause
from engine.trace import IterationRecord
from workloads.records import TURNED_AWAY, RequestRecord

if TYPE_CHECKING:
    import numpy as np

WAIT_CAUSES = ("step", "seats", "budget", "blocks", "behind_head", "batch", "retry")
"""What a request waits for: the end of the step under way, a seat, token budget, blocks, the request at the head of
the queue that lacks blocks, a batch, or its client to send it again."""

_STEP, _BLOCKS, _BEHIND_HEAD, _BATCH, _RETRY = (
    WAIT_CAUSES.index(name) for name in ("step", "blocks", "behind_head", "batch", "retry")
)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """The waits of some requests, in their order.

    Attributes:
        by_cause: nanoseconds, int64 `[requests, causes]`, in the order of `WAIT_CAUSES`. They add up to all the time
            that a request waited.
        after_preemption: nanoseconds between preemptions and returns, int64 `[requests]`; part of `by_cause`.
    """

    by_cause: "np.ndarray"
    after_preemption: "np.ndarray"

    @staticmethod
    def concatenate(parts: "Sequence[Waits]") -> "Waits":
        """The waits of several runs' requests, one run after the other."""
        import numpy as np

        return Waits(
            np.concatenate([np.empty((0, len(WAIT_CAUSES)), np.int64), *(p.by_cause for p in parts)]),
            np.concatenate([np.empty(0, np.int64), *(p.after_preemption for p in parts)]),
        )

    def take(self, chosen: Sequence[int]) -> "Waits":
        """Those of the requests at these positions."""
        return Waits(self.by_cause[chosen], self.after_preemption[chosen])

    def summary(self) -> dict[str, float | None]:
        """The flat numbers of a summary: means over the requests by cause, and the sum after preemptions."""
        number = len(self.after_preemption)
        means = {
            f"mean_wait_{cause}_ms": float(self.by_cause[:, i].mean()) / 1e6 if number else None
            for i, cause in enumerate(WAIT_CAUSES)
        }
        return means | {"preempted_wait_s": float(self.after_preemption.sum()) / 1e9}


def wait_times(requests: Sequence[RequestRecord], iterations: Sequence[IterationRecord]) -> Waits:
    """How long each request waited by cause.

    A wait that never ended counts to the end of the request. What lies before a request was sent, or before the first
    step that began after that, is `step`; but where no step was under way because a batch grew, it is `batch`. The
    same holds for each time it was sent again; what lies between two tries is `retry`.

    Args:
        requests: in any order, with their history.
        iterations: all steps of the run, in order, also those outside its window.
    """
    import numpy as np

    by_cause = np.zeros((len(requests), len(WAIT_CAUSES)), np.int64)
    after_preemption = np.zeros(len(requests), np.int64)
    for replica in dict.fromkeys(request.replica for request in requests):
        served = [i for i, request in enumerate(requests) if request.replica == replica]
        steps = iterations if replica is None else [step for step in iterations if step.replica == replica]
        waits = _wait_times([requests[i] for i in served], steps)
        by_cause[served], after_preemption[served] = waits.by_cause, waits.after_preemption
    return Waits(by_cause, after_preemption)


def _wait_times(requests: Sequence[RequestRecord], iterations: Sequence[IterationRecord]) -> Waits:
    """`wait_times` of one engine."""
    import numpy as np

    spans = np.array([span for i, r in enumerate(requests) for span in _spans(i, r)], np.int64).reshape(-1, 6)
    owner, begin, sent, end, is_return, first_cause = spans.T
    timeline = _Timeline([r.request_id for r in requests], iterations)
    # The step under way when a request comes has yet to end before the scheduler sees it.
    caused_from = np.where(is_return, timeline.start_ns, timeline.first_step_at(sent)).clip(begin, end)

    by_cause = np.zeros((len(requests), len(WAIT_CAUSES)), np.int64)
    of_spans = timeline.elapsed(owner, end) - timeline.elapsed(owner, caused_from)
    unseen_from = sent.clip(begin, caused_from)
    of_spans[:, _STEP] += unseen_from - begin
    of_spans[np.arange(len(spans)), first_cause] += caused_from - unseen_from
    np.add.at(by_cause, owner, of_spans)
    by_cause[:, _RETRY] = [_between_tries_ns(r) for r in requests]
    after_preemption = np.zeros(len(requests), np.int64)
    np.add.at(after_preemption, owner, (end - begin) * is_return)
    return Waits(by_cause, after_preemption)


def _spans(number: int, record: RequestRecord) -> Iterator[tuple[int, int, int, int, bool, int]]:
    """A request's waits for the engine: its number, begin, time of sending, end, whether it waited to return, and the
    cause until the first step after it was sent."""
    for begin, sent, end, first_cause in _tries(record):
        yield number, begin, sent, end, False, first_cause
    preempted_at = None
    for event in record.history:
        if event.kind == "preempted":
            preempted_at = event.time_ns
        elif event.kind == "admitted" and preempted_at is not None:
            yield number, preempted_at, preempted_at, event.time_ns, True, _STEP
            preempted_at = None
    if preempted_at is not None and record.t_end is not None:
        yield number, preempted_at, preempted_at, max(record.t_end, preempted_at), True, _STEP


def _tries(record: RequestRecord) -> Iterator[tuple[int, int, int, int]]:
    """Its waits for the first admission: begin, time of sending, end, and the cause until the first step after that."""
    begin, sent, first_cause = record.t_sched, record.t_send, _STEP
    is_away = False
    for event in record.history:
        if event.kind == "queued":
            begin, sent = (event.time_ns, event.time_ns) if is_away else (begin, sent)
            first_cause = _BATCH if event.detail == "batch" else _STEP
            is_away = False
        elif event.kind == TURNED_AWAY:
            # One that is turned away at the door once more has not waited for the engine again.
            if not is_away:
                yield begin, event.time_ns if sent is None else sent, event.time_ns, first_cause
            is_away = True
    end = record.t_end if record.t_admit is None else record.t_admit
    if end is not None and not is_away:
        yield begin, end if sent is None else sent, max(end, begin), first_cause


def _between_tries_ns(record: RequestRecord) -> int:
    """From each time it was turned away to the next sending, or to its end when that came first."""
    history = record.history
    waited_ns = sum(after.time_ns - event.time_ns for event, after in pairwise(history) if event.kind == TURNED_AWAY)
    if history and history[-1].kind == TURNED_AWAY and record.t_end is not None:
        waited_ns += record.t_end - history[-1].time_ns
    return waited_ns


class _Timeline:
    """Time spent under each cause, since the first step began.

    Attributes:
        start_ns: when the first step began; without steps beyond all times.
    """

    def __init__(self, request_ids: Sequence[str], iterations: Sequence[IterationRecord]) -> None:
        import numpy as np

        numbers = {request_id: i for i, request_id in enumerate(request_ids)}
        self._starts = np.array([s.t_start for s in iterations], np.int64)
        self._causes = np.array([_cause_index(s.wait_cause) for s in iterations], np.int64)
        self._blocked = np.array([numbers.get(s.blocked_request or "", -1) for s in iterations], np.int64)
        self._blocked[self._causes != _BEHIND_HEAD] = -1
        self.start_ns = int(self._starts[0]) if len(self._starts) else np.iinfo(np.int64).max

        # The cause of the last step holds for as long as anyone asks: its time is never a whole one.
        lengths = np.diff(self._starts, append=self._starts[-1:])
        per_cause = np.where(self._causes[:, None] == np.arange(len(WAIT_CAUSES)), lengths[:, None], 0)
        self._before = np.concatenate([np.zeros((1, len(WAIT_CAUSES)), np.int64), per_cause.cumsum(axis=0)])

        # The steps that lacked blocks for one and the same request lie together, in order of time.
        lacking = np.flatnonzero(self._blocked >= 0)
        keys = self._key(self._blocked[lacking], lacking)
        order = np.argsort(keys)
        self._own_keys = keys[order]
        self._own_before = np.concatenate([[0], lengths[lacking[order]].cumsum()])

    def first_step_at(self, times: "np.ndarray") -> "np.ndarray":
        """When the first step began at each time or after it; beyond all times where none did. `[times]`"""
        import numpy as np

        return np.append(self._starts, np.iinfo(np.int64).max)[np.searchsorted(self._starts, times, side="left")]

    def elapsed(self, owner: "np.ndarray", times: "np.ndarray") -> "np.ndarray":
        """Nanoseconds under each cause up to `times[i]`, as request `owner[i]` sees it. int64 `[times, causes]`

        The difference of two times is what lies between them; alone a number means nothing.
        """
        import numpy as np

        elapsed = np.zeros((len(times), len(WAIT_CAUSES)), np.int64)
        if not len(self._starts):
            return elapsed
        step = np.searchsorted(self._starts, times, side="right") - 1
        begun = np.flatnonzero(step >= 0)
        step, owner = step[begun], owner[begun]
        into_step = times[begun] - self._starts[step]
        elapsed[begun] = self._before[step]
        elapsed[begun, self._causes[step]] += into_step
        own = self._own_before[np.searchsorted(self._own_keys, self._key(owner, step))]
        own = own + np.where(self._blocked[step] == owner, into_step, 0)
        elapsed[begun, _BLOCKS] += own
        elapsed[begun, _BEHIND_HEAD] -= own
        return elapsed

    def _key(self, request: "np.ndarray", step: "np.ndarray") -> "np.ndarray":
        return request * len(self._starts) + step


def _cause_index(wait_cause: str | None) -> int:
    """Where a step's cause is counted; a lack of blocks first as others see it, from behind the head."""
    if wait_cause is None:
        return _STEP
    return _BEHIND_HEAD if wait_cause == WaitCause.BLOCKS else WAIT_CAUSES.index(wait_cause)
