"""Part 4: whole prompts in one step, by their arithmetic, beside a plain matrix product."""

import random
from dataclasses import asdict

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import OutOfDeviceMemory
from engine.executor.torch_executor import TorchExecutor
from engine.model.arch import ModelArch
from scripts.gpu_proof.ceilings import product_ceiling
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.served import BLOCK_SIZE, device_s, greedy, load
from scripts.gpu_proof.sizes import Sizes
from scripts.gpu_proof.timing import Spread

_WARMUPS = 2


def measure(sizes: Sizes, notes: Notes) -> None:
    """One prompt at a time, of several lengths."""
    product_ceiling(sizes, notes)
    notes.set(
        model=sizes.model,
        counts="2 x parameters of the layers' matrices x tokens, 4 x layers x heads x head size for each pair of a "
        "token and one that it attends to (causal), and the output layer for the one token that is sampled; what "
        "follows the last layer's attention is computed, and counted, for that token alone",
        time="of the step's work on the device, by its events",
    )
    longest = max(sizes.prefill_tokens)
    # A prompt is no captured step, and to capture takes as long as all prompts together.
    executor = load(sizes, sizes.model, max_model_len=longest + BLOCK_SIZE, max_cudagraph_capture_size=0)
    for tokens in sizes.prefill_tokens:
        what = f"prefill of {tokens} tokens"
        try:
            taken = _prompt_s(executor, tokens, sizes.repeats)
        except OutOfDeviceMemory as error:
            notes.add(what, f"not possible: {error}", tokens=tokens, tflops=None)
            continue
        flops = prompt_flops(executor.arch, tokens)
        rate = taken.rate(flops / 1e12)
        notes.add(
            what,
            f"{taken.median * 1e3:.1f} ms, {tokens / taken.median:.0f} tokens/s, {rate.median:.4g} TFLOP/s",
            tokens=tokens,
            flops=flops,
            step_s=asdict(taken),
            tflops=asdict(rate),
            tokens_per_s=tokens / taken.median,
        )


def prompt_flops(arch: ModelArch, tokens: int) -> int:
    """Floating-point operations of a prompt of so many tokens."""
    whole = sum(arch.flops_per_token(context) for context in range(1, tokens + 1))
    # The decoder drops the rows that do not sample once the last layer has attended.
    after_attention = 2 * arch.hidden_size * (arch.num_heads * arch.head_dim + 3 * arch.intermediate_size)
    return whole - (tokens - 1) * after_attention + arch.logits_flops


def _prompt_s(executor: TorchExecutor, tokens: int, repeats: int) -> Spread:
    num_blocks = -(-tokens // BLOCK_SIZE) + 2
    engine = Engine(
        executor,
        SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=tokens),
        CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=num_blocks, enable_prefix_caching=False),
    )
    numbers = random.Random(tokens)
    times = []
    for index in range(_WARMUPS + repeats):
        prompt = [numbers.randrange(executor.vocab_size) for _ in range(tokens)]
        engine.add_request(greedy(str(index), prompt, max_tokens=1))
        _, record = engine.step()
        if record.prefill_tokens != tokens:
            raise RuntimeError(f"a prompt of {tokens} tokens was computed in pieces of {record.prefill_tokens}")
        times.append(device_s(record))
    return Spread.of(times[_WARMUPS:])
