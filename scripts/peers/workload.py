"""What every contender is given: requests of random tokens, all at once, with answers of a fixed length."""

import random
from dataclasses import dataclass

PROMPT_TOKENS = (64, 256)
OUTPUT_TOKENS = (32, 128)


@dataclass(frozen=True)
class Job:
    """One request."""

    prompt: list[int]
    output_tokens: int


def make_workload(count: int, vocab_size: int, seed: int) -> list[Job]:
    """`count` jobs with lengths drawn evenly from `PROMPT_TOKENS` and `OUTPUT_TOKENS`."""
    rng = random.Random(seed)
    jobs = []
    for _ in range(count):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(*PROMPT_TOKENS))]
        jobs.append(Job(prompt, rng.randint(*OUTPUT_TOKENS)))
    return jobs
