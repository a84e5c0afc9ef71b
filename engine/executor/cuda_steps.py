"""Steps on a card: launched without waiting, timed by events, their tokens read back into pinned memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.executor.base import StepResult
from engine.executor.device import memory_errors_translated
from engine.host_phases import HostPhases
from engine.scheduler.plan import StepPlan
from engine.trace import Phase


class DoneStep:
    """A step that was over when its launch returned."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def wait(self) -> StepResult:
        """See `StepHandle.wait`."""
        return self._result


class CudaStep:
    """A step whose work on the device begins now. Made and completed on the stream that the work is launched on.

    Args:
        before: the end of the last step's work; None for the first.
        doing: for the error when memory ran out.
    """

    def __init__(self, device: torch.device, before: torch.cuda.Event | None, doing: str, phases: HostPhases) -> None:
        self._device = device
        self._before = before
        self._doing = doing
        self._phases = phases
        self._begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self._tokens: torch.Tensor | None = None
        self._begin.record()

    def complete(self, tokens: torch.Tensor | None) -> None:
        """All of its work is launched.

        Args:
            tokens: int64 `[samples]` on the device; None when it has none.
        """
        if tokens is not None:
            self._tokens = torch.empty(len(tokens), dtype=torch.int64, pin_memory=True)
            self._tokens.copy_(tokens, non_blocking=True)
        self.end.record()

    def wait(self) -> StepResult:
        """See `StepHandle.wait`."""
        with memory_errors_translated(self._device, self._doing), self._phases.during(Phase.READ_BACK):
            self.end.synchronize()
            token_ids = [] if self._tokens is None else self._tokens.tolist()
            return StepResult(
                token_ids,
                device_time_ns=int(self._begin.elapsed_time(self.end) * 1e6),
                gap_ns=None if self._before is None else max(0, int(self._before.elapsed_time(self._begin) * 1e6)),
            )


@contextmanager
def nvtx_range(plan: StepPlan) -> Iterator[None]:
    """Show a step's launch as a range in NVIDIA's tools, its prefill and decode tokens in the name."""
    num_decodes = sum(share.is_decode for share in plan.scheduled)
    torch.cuda.nvtx.range_push(f"step prefill={plan.num_tokens - num_decodes} decode={num_decodes}")
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
