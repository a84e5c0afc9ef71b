"""Several runs of the same load as one: their windows laid end to end."""

from collections.abc import Sequence
from dataclasses import replace

from engine.trace import IterationRecord
from workloads.metrics import Window, in_window
from workloads.records import RequestRecord
from workloads.waits import Waits, wait_times

_TIMES = ("t_sched", "t_send", "t_admit", "t_first", "t_last", "t_end")

Part = tuple[Sequence[RequestRecord], Sequence[IterationRecord], Window]


def pool(parts: Sequence[Part]) -> tuple[list[RequestRecord], list[IterationRecord], Window]:
    """The window requests and the steps that began in the windows, moved to a common time that starts at 0.

    What `summarize` and `Slo.judge` say of the result is what they would say of one run with that much window; only
    the causes of waiting have to be handed to `summarize` (see `pool_waits`).
    """
    requests: list[RequestRecord] = []
    iterations: list[IterationRecord] = []
    start_ns = 0
    for part_requests, part_iterations, window in parts:
        shift = start_ns - window.start_ns
        for record in in_window(part_requests):
            times = {name: None if (t := getattr(record, name)) is None else t + shift for name in _TIMES}
            chunk_times = tuple(t + shift for t in record.chunk_times)
            history = tuple(replace(event, time_ns=event.time_ns + shift) for event in record.history)
            requests.append(
                replace(record, index=len(requests), chunk_times=chunk_times, history=history, **times)  # type: ignore[arg-type]
            )
        # A step that runs on beyond its window would overlap the next window's first.
        iterations += (
            replace(step, t_start=step.t_start + shift, t_end=min(step.t_end, window.end_ns) + shift)
            for step in part_iterations
            if window.start_ns <= step.t_start < window.end_ns
        )
        start_ns += window.end_ns - window.start_ns
    return requests, iterations, Window(0, start_ns)


def pool_waits(parts: Sequence[Part]) -> Waits:
    """The waits of the requests that `pool` gives, in its order.

    A request may wait on after the end of its window, for what the steps there left behind; pooled, they are gone.
    """
    return Waits.concatenate([wait_times(in_window(requests), iterations) for requests, iterations, _ in parts])
