"""One record per iteration, whoever executes it. The field names are a contract with every report.

Beside it, for whoever looks inside a step, marks of what the host did.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """What one step did. Times are nanoseconds of the engine's clock.

    Attributes:
        iteration: number of the step since the engine was made or reconfigured.
        t_start, t_end: from before scheduling to after the tokens were taken in. Where steps overlap, a step starts
            when the one before it ends, though it was planned and launched before that.
        prefill_tokens, prefill_seqs: tokens of chunks that fill a prompt (or fill it again after a preemption).
        decode_tokens, decode_seqs: tokens of requests that go on producing, one each.
        context_tokens: sum over the step's requests of the tokens each attends to at its last row.
        attended_tokens: sum over the step's tokens of the tokens each attends to, itself among them.
        cached_tokens: tokens that requests admitted in this step found in the prefix cache.
        running, waiting: requests after scheduling.
        kv_blocks_used, kv_blocks_total: blocks owned after scheduling, and usable ones.
        preemptions_recompute, preemptions_swap: victims of this step.
        swapped_in_blocks, swapped_out_blocks, swapped_in_bytes, swapped_out_bytes: traffic from and to host memory.
        recomputed_tokens: tokens of this step that had been computed before.
        schedule_time_ns: planning the step and taking in its results, on the host.
            Where steps overlap, most of it lies in the step before.
        execute_time_ns: the executor's share; where steps overlap, since the tokens of the step before were there.
        device_time_ns: from the first to the last of the step's work on the device; None where it cannot be told (CPU).
        gap_ns: device idle before this step, since the end of the one before; 0 for the first.
        wait_cause: why this step admitted no more of those that waited: `seats`, `budget`, `blocks` or `batch` (the
            batch is closed, or still growing; see `WaitCause`). None when it left nobody waiting.
        blocked_request: with `blocks`, the id of the request at the head, for which there was no room. All others
            waited behind it.
        wasted_rows: tokens of this step computed for requests that had ended when it was done, by a stop token of the
            step before or by an abort. Without overlap only an abort makes any. They are counted as prefill or decode
            all the same.
        replica: number of the engine whose step it was, where there are several; each counts its own iterations.
    """

    iteration: int
    t_start: int
    t_end: int
    prefill_tokens: int
    decode_tokens: int
    prefill_seqs: int
    decode_seqs: int
    context_tokens: int
    attended_tokens: int
    cached_tokens: int
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    preemptions_recompute: int
    preemptions_swap: int
    swapped_in_blocks: int
    swapped_out_blocks: int
    swapped_in_bytes: int
    swapped_out_bytes: int
    recomputed_tokens: int
    schedule_time_ns: int
    execute_time_ns: int
    device_time_ns: int | None
    gap_ns: int
    wait_cause: str | None = None
    blocked_request: str | None = None
    wasted_rows: int = 0
    replica: int | None = None


class Phase(StrEnum):
    """A part of the host's work. On the CPU, which is its own device, LAUNCH is the model's arithmetic.

    SCHEDULE: planning, and taking in the results. INPUT_BATCH: from a plan to arrays. LAUNCH: handing the step to the
    device. SAMPLING: likewise for the choice of tokens outside of a CUDA graph. READ_BACK: waiting for the tokens.
    """

    SCHEDULE = "schedule"
    INPUT_BATCH = "input batch"
    LAUNCH = "launch"
    SAMPLING = "sampling"
    READ_BACK = "read-back"


class PhaseMark(NamedTuple):
    """One phase of one step. Phases do not overlap.

    Attributes:
        iteration: of the step, as in its record.
        begin_ns, end_ns: by the machine's monotonic clock.
    """

    iteration: int
    phase: Phase
    begin_ns: int
    end_ns: int
