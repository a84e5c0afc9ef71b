"""The engine as the parts use it: loaded, filled with requests, and run until every one of them decodes."""

import random
from collections.abc import Callable, Sequence

from engine.config import MAX_CUDAGRAPH_CAPTURE_SIZE, CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import resolve_model
from engine.request import Request, SamplingParams
from engine.trace import IterationRecord
from scripts.gpu_proof.modes import Mode
from scripts.gpu_proof.sizes import Sizes

BLOCK_SIZE = 16
# The largest graph of the stand-in on the CPU, in tokens.
_STAND_IN_SIZE = 8


def load(
    sizes: Sizes, model: str, *, max_model_len: int, max_cudagraph_capture_size: int = MAX_CUDAGRAPH_CAPTURE_SIZE
) -> TorchExecutor:
    """A model, run as its device runs it by default."""
    return TorchExecutor.load(
        resolve_model(model),
        dtype=sizes.dtype,
        device=sizes.device,
        max_model_len=max_model_len,
        attention_backend=sizes.attention_backend,
        max_cudagraph_capture_size=max_cudagraph_capture_size,
    )


def load_in_mode(sizes: Sizes, model: str, mode: Mode, *, max_model_len: int, dtype: str) -> TorchExecutor:
    """A model, run in one mode. On the CPU, which has none of them, a stand-in takes the place of graphs."""
    executor = TorchExecutor.load(
        resolve_model(model),
        dtype=dtype,
        device=sizes.device,
        max_model_len=max_model_len,
        enforce_eager=not (mode.graphs or mode.overlaps),
        max_cudagraph_capture_size=max(sizes.host_batches) if mode.graphs else 0,
    )
    if sizes.device == "cpu" and mode.graphs:
        from tests.engine.padded_reference import capture_on_cpu

        capture_on_cpu(executor, _STAND_IN_SIZE)
    executor.overlaps = mode.overlaps
    return executor


def steady_decode(
    executor: TorchExecutor,
    sizes: Sizes,
    *,
    batch: int,
    context: int,
    steps: int,
    between: Callable[[Engine], None] | None = None,
) -> list[IterationRecord]:
    """Run requests of random prompts until all decode, and then on for some steps.

    Args:
        batch: requests.
        context: tokens that each attends to, in the middle of the steps that count.
        steps: steps to return; those of `sizes` that warm up come before them.
        between: called between the two.

    Returns:
        The records of `steps` steps, each of `batch` decodes.

    Raises:
        OutOfDeviceMemory: the KV cache of so many requests does not fit.
    """
    budget = sizes.max_num_batched_tokens
    prompt_tokens = max(1, context - sizes.warmup_steps - steps // 2)
    # The first requests are answered while the prompts of the last ones are filled.
    filling_steps = -(-batch * prompt_tokens // (budget - batch)) + 2
    max_tokens = filling_steps + sizes.warmup_steps + steps + 2
    blocks_each = -(-(prompt_tokens + max_tokens) // BLOCK_SIZE) + 1
    engine = Engine(
        executor,
        SchedulerConfig(max_num_seqs=batch, max_num_batched_tokens=budget),
        CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=batch * blocks_each + 1),
    )
    numbers = random.Random(batch)
    for index in range(batch):
        prompt = [numbers.randrange(executor.vocab_size) for _ in range(prompt_tokens)]
        engine.add_request(greedy(str(index), prompt, max_tokens))
    while engine.has_work and engine.step()[1].decode_seqs < batch:
        pass
    for _ in range(sizes.warmup_steps):
        engine.step()
    if between is not None:
        between(engine)
    records = [engine.step()[1] for _ in range(steps)]
    engine.reset()
    if any(record.decode_seqs != batch or record.prefill_tokens for record in records):
        raise RuntimeError(f"a step of the measurement was not one of {batch} decodes alone")
    return records


def greedy(request_id: str, prompt: Sequence[int], max_tokens: int) -> Request:
    """A request that takes the likeliest token each time, and never stops early."""
    return Request(request_id, list(prompt), SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))


def period_s(record: IterationRecord) -> float:
    """From the end of the step before to the end of this one: by the device's events, on the CPU by the clock."""
    if record.device_time_ns is None:
        return (record.execute_time_ns + record.gap_ns) / 1e9
    return (record.device_time_ns + record.gap_ns) / 1e9


def device_s(record: IterationRecord) -> float:
    """From the first to the last of a step's work."""
    return (record.execute_time_ns if record.device_time_ns is None else record.device_time_ns) / 1e9


def idle_share(records: Sequence[IterationRecord]) -> float:
    """Share of the time in which the device had nothing to do."""
    return sum(record.gap_ns for record in records) / 1e9 / sum(map(period_s, records))


def in_repeats(records: Sequence[IterationRecord], repeats: int) -> list[Sequence[IterationRecord]]:
    """Consecutive records, cut into measurements of the same number of steps."""
    steps = len(records) // repeats
    return [records[begin : begin + steps] for begin in range(0, repeats * steps, steps)]
