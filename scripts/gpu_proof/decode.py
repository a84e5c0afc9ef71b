"""Part 3: decode steps, by the bytes that they cannot do without moving, beside a plain copy."""

import statistics
from dataclasses import asdict

from engine.errors import OutOfDeviceMemory
from engine.executor.torch_executor import TorchExecutor
from engine.model.arch import ModelArch
from engine.trace import IterationRecord
from scripts.gpu_proof.ceilings import copy_ceiling
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.served import idle_share, in_repeats, load, period_s, steady_decode
from scripts.gpu_proof.sizes import Sizes
from scripts.gpu_proof.timing import Spread


def measure(sizes: Sizes, notes: Notes) -> None:
    """Batches of several sizes, at one context length."""
    copy_ceiling(sizes, notes)
    notes.set(
        model=sizes.model,
        counts="every weight once (of the input embedding only where it is the output layer, too), keys and values of "
        "all contexts, and those that are new; activations are left out",
        time="from the end of one step to the end of the next, by events on the device",
    )
    executor = load(sizes, sizes.model, max_model_len=2 * sizes.decode_context + 512)
    for batch in sizes.decode_batches:
        with notes.attempt(f"decode, batch {batch}", batch=batch):
            _measure_batch(sizes, notes, executor, batch)


def _measure_batch(sizes: Sizes, notes: Notes, executor: TorchExecutor, batch: int) -> None:
    what = f"decode, batch {batch}"
    try:
        records = steady_decode(
            executor,
            sizes,
            batch=batch,
            context=sizes.decode_context,
            steps=sizes.decode_steps * sizes.repeats,
        )
    except OutOfDeviceMemory as error:
        notes.add(what, f"not possible: {error}", batch=batch, gb_per_s=None)
        return
    element = executor.kv_bytes_per_block(1) // executor.arch.kv_bytes_per_token(1)
    moved = step_bytes(executor.arch, element, records)
    step = Spread.of([sum(map(period_s, part)) / len(part) for part in in_repeats(records, sizes.repeats)])
    rate = step.rate(moved / 1e9)
    idle = idle_share(records)
    notes.add(
        what,
        f"{step.median * 1e3:.3f} ms a step, {batch / step.median:.0f} tokens/s, {rate.median:.0f} GB/s, "
        f"device idle {100 * idle:.1f} %",
        batch=batch,
        context=statistics.mean(record.context_tokens / batch for record in records),
        bytes=moved,
        step_s=asdict(step),
        gb_per_s=asdict(rate),
        tokens_per_s=batch / step.median,
        idle_share=idle,
    )


def step_bytes(arch: ModelArch, bytes_per_element: int, records: list[IterationRecord]) -> int:
    """Bytes that a step of these moves at the least, in the mean."""
    rows_only = 0 if arch.tie_word_embeddings else arch.vocab_size * arch.hidden_size
    weights = (arch.num_parameters - rows_only) * bytes_per_element
    tokens = statistics.mean(record.context_tokens + record.decode_tokens for record in records)
    return weights + round(tokens * arch.kv_bytes_per_token(bytes_per_element))
