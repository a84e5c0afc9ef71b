"""The contract between the loop and whatever executes a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from engine.clock import Clock
from engine.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came out of a step.

    Attributes:
        token_ids: one per scheduled request whose `samples` is true, in the plan's order.
        device_time_ns: from the first to the last of the step's work on the device, launch gaps between its kernels
            included; None where it cannot be told.
        gap_ns: how long the device had nothing to do before it, since the end of the step before; None likewise.
    """

    token_ids: list[int]
    device_time_ns: int | None = None
    gap_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What a profiling step found, in bytes.

    Attributes:
        total: the device's total memory.
        weights: held by the weights.
        other: held by anything else that is not the KV cache (CUDA context, CUDA graphs, other processes).
        peak_activation: the most that a step of the profiled size held for itself, and gave back.
    """

    total: int
    weights: int
    other: int
    peak_activation: int

    @classmethod
    def worst(cls, profiles: "Sequence[MemoryProfile]") -> "MemoryProfile":
        """Of each number the worst that several devices found."""
        return cls(
            total=min(p.total for p in profiles),
            weights=max(p.weights for p in profiles),
            other=max(p.other for p in profiles),
            peak_activation=max(p.peak_activation for p in profiles),
        )


class Executor(Protocol):
    """Carries out steps. It never decides what runs.

    Attributes:
        device_name: for people, e.g. `NVIDIA H200` or `CPU (AMD EPYC, 2 threads)`.
        simulated: no real device ran; everything that comes out must say so.
        max_model_len: longest request in tokens.
        vocab_size: token ids lie below it.
        eos_token_ids: tokens that end a request unless `ignore_eos`.
    """

    device_name: str
    simulated: bool
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @property
    def clock(self) -> Clock:
        """The time that this executor's steps take place in."""
        ...

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """How fast blocks travel to host memory or back; None before swap space was allocated."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step: copy blocks out (`swap_out`), then in (`swap_in`), then write the keys and values of its
        tokens, and sample where asked. A plan may hold copies alone.

        Raises:
            OutOfDeviceMemory: the device's memory did not suffice.
        """
        ...

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of keys and values, over all layers, of one block."""
        ...

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """Measure a step of the largest size these limits allow. Remembers what it has measured."""
        ...

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        """Make room for block ids 0 .. num_blocks - 1, and in host memory for swapped ones 0 .. num_swap_blocks - 1.

        Keeps what need not change.

        Raises:
            OutOfDeviceMemory: the device, or the host, has less.
        """
        ...

    def shutdown(self) -> None:
        """Give back the device."""
        ...


class StepHandle(Protocol):
    """A step under way."""

    def wait(self) -> StepResult:
        """Return when its tokens are known. Called once, in the order of launches.

        Raises:
            OutOfDeviceMemory: the device's memory did not suffice.
        """
        ...


class OverlappingExecutor(Executor, Protocol):
    """An executor that can take the next step while one is under way."""

    @property
    def overlaps(self) -> bool:
        """Whether it does, on this device and with these options."""
        ...

    def launch(self, plan: StepPlan) -> StepHandle:
        """Begin a step with work, as `execute`, and return without its tokens.

        Steps are carried out in the order of their launches, and at most one other is under way. A request's last
        token may be `PENDING_TOKEN`: it is the one that the launch before samples for it. What the plan's requests
        hold is read now, and may change when this returns.
        """
        ...


def as_overlapping(executor: Executor) -> OverlappingExecutor | None:
    """The executor, if it overlaps steps."""
    return cast(OverlappingExecutor, executor) if getattr(executor, "overlaps", False) else None
