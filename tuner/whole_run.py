"""One run from its beginning to its end, for commands whose runs are compared: a part of one would be no match."""

from collections.abc import Callable
from typing import Protocol

from reports.format import milliseconds, request_rate, token_rate
from tuner.interrupt import deferred_interrupts
from tuner.progress import ProgressDisplay
from tuner.settings import Settings
from tuner.targets.bundled import Load, Measured
from workloads.driver import Progress
from workloads.early_stop import INTERRUPTED
from workloads.slo import Slo


class Measurer(Protocol):
    """What can measure settings: the engine in this process, or another checkout's in one of its own."""

    def measure(
        self,
        settings: Settings,
        load: Load,
        slo: Slo | None,
        *,
        stop_when_settled: bool = True,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Measured:
        """See `tuner.targets.bundled.BundledTarget.measure`."""
        ...


def measure_whole(
    target: Measurer,
    settings: Settings,
    load: Load,
    slo: Slo | None,
    *,
    label: str,
    display: ProgressDisplay,
    keep: Callable[[Measured], None],
) -> None:
    """Make a run that nothing cuts short, and keep it.

    Args:
        label: for people.
        keep: takes the run, unless it was interrupted before its end.

    Raises:
        KVCacheTooSmall, SwapSpaceTooSmall, OutOfDeviceMemory: the settings do not fit.
        KeyboardInterrupt: it was interrupted; when that came after its end, the run was kept.
    """
    update = display.run_started(label)
    with deferred_interrupts() as interrupted:
        try:
            measured = target.measure(
                settings, load, slo, stop_when_settled=False, on_progress=update, should_stop=interrupted
            )
        finally:
            display.run_ended()
        if measured.meta["stopped_early"] != INTERRUPTED:
            display.say(f"{label}: {describe(measured)}")
            keep(measured)
        if interrupted():
            raise KeyboardInterrupt


def describe(measured: Measured) -> str:
    """A run in one line."""
    if measured.error is not None:
        return f"broke off: {measured.error}"
    summary, validity = measured.meta["summary"], measured.meta["validity"]
    goodput, p95_ms = summary["request_goodput"], summary["p95_ttft_ms"]
    served = token_rate(summary["output_throughput"]) if goodput is None else f"{request_rate(goodput)} good"
    parts = [served, "no request completed" if p95_ms is None else f"p95 TTFT {milliseconds(p95_ms)}"]
    if not validity["valid"]:
        parts.append("; ".join(check["detail"] for check in validity["checks"] if not check["ok"]))
    return ", ".join(parts)
