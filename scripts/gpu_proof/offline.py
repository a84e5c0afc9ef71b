"""Part 6: nano-vllm's own benchmark, so that its published figures have something to stand beside.

Its workload is 256 requests that are all there at the start, drawn with seed 0: prompts and answers of 100 to 1024
tokens, no stop token, temperature 0.6. The same numbers are drawn in the same order here, so the answers have the
133,966 tokens that are published with its results.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.request import Request, SamplingParams
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.served import load
from scripts.gpu_proof.sizes import OfflineLoad, Sizes
from scripts.gpu_proof.timing import Spread

TEMPERATURE = 0.6
_LARGEST_TOKEN_ID = 10000
# Not measured here, and on a card that is a fraction of a server's.
PUBLISHED = {
    "source": "README of nano-vllm: its authors' claim",
    "card": "NVIDIA GeForce RTX 4070 Laptop, 8 GB",
    "output_tokens": 133966,
    "nano_vllm_tokens_per_s": 1434.13,
    "vllm_tokens_per_s": 1361.84,
}


class Job(NamedTuple):
    """One request."""

    prompt: list[int]
    output_tokens: int


def measure(sizes: Sizes, notes: Notes) -> None:
    """The first run captures graphs; then as often as repeats are asked for, and once with greedy sampling."""
    offered = sizes.offline
    executor = load(sizes, sizes.small_model, max_model_len=offered.max_model_len)
    jobs = make_jobs(offered, executor.vocab_size)
    tokens = sum(job.output_tokens for job in jobs)
    notes.set(
        model=sizes.small_model,
        requests=len(jobs),
        input_tokens=sum(len(job.prompt) for job in jobs),
        output_tokens=tokens,
        published=PUBLISHED,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=offered.max_num_seqs, max_num_batched_tokens=offered.max_num_batched_tokens
    )
    engine = Engine(executor, scheduler, CacheConfig())
    for name, temperature, repeats in (
        ("first run", TEMPERATURE, 1),
        ("temperature 0.6, as published", TEMPERATURE, sizes.offline_repeats),
        ("greedy", 0.0, 1),
    ):
        rate = Spread.of([tokens / serve_s(engine, jobs, temperature) for _ in range(repeats)])
        notes.add(
            f"{len(jobs)} requests, {name}",
            f"{rate.median:.0f} output tokens/s",
            temperature=temperature,
            output_tokens_per_s=asdict(rate),
        )


def make_jobs(offered: OfflineLoad, vocab_size: int) -> list[Job]:
    """The requests; the lengths are those of the published benchmark where the load is."""
    numbers = random.Random(0)
    largest = min(_LARGEST_TOKEN_ID, vocab_size - 1)
    prompts = [
        [numbers.randint(0, largest) for _ in range(numbers.randint(offered.shortest, offered.longest))]
        for _ in range(offered.requests)
    ]
    return [Job(prompt, numbers.randint(offered.shortest, offered.longest)) for prompt in prompts]


def serve_s(engine: Engine, jobs: Sequence[Job], temperature: float) -> float:
    """Seconds from the first request to the last token, on a cache without prefixes of earlier runs."""
    engine.reset()
    start = time.perf_counter()
    for index, (prompt, output_tokens) in enumerate(jobs):
        sampling = SamplingParams(max_tokens=output_tokens, temperature=temperature, ignore_eos=True)
        engine.add_request(Request(str(index), prompt, sampling))
    count = 0
    while engine.has_work:
        count += sum(len(event.token_ids) for event in engine.step()[0])
    seconds = time.perf_counter() - start
    asked = sum(job.output_tokens for job in jobs)
    if count != asked:
        raise RuntimeError(f"{count} tokens were produced where {asked} were asked for")
    return seconds
