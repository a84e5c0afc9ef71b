#!/usr/bin/env python
"""Measure the engine's throughput beside transformers' two ways of serving, on the same machine in the same run.

All requests are submitted at once, prompts are random tokens, answers have a fixed length and no stop token. The
contenders take turns, so that a change of the machine's speed meets all of them, and each turn starts with a
measurement of plain matrix multiplication. From that follows the wall: the rate at which the same arithmetic would
be done if every step ran at the speed of the multiplication and nothing else took time.

Usage: bench_engine.py [--requests 64] [--repeats 3] [--json FILE] ...    (see --help)
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.executor.threads import wait_passively

wait_passively()  # as `tune` does, and for every contender alike; torch must not be loaded yet

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import UserError
from engine.executor.torch_executor import TorchExecutor
from engine.model.arch import ModelArch
from engine.model.resolve import ModelSource, resolve_model
from engine.model.weights import load_weights
from engine.request import Request, SamplingParams

PROMPT_TOKENS = (64, 256)
OUTPUT_TOKENS = (32, 128)
STATIC_BATCH = 16
MATMUL_SIZE = 2048


@dataclass(frozen=True)
class Job:
    """One request of the workload."""

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


def arithmetic(arch: ModelArch, jobs: list[Job]) -> float:
    """Floating-point operations that the workload takes when nothing is computed twice."""
    total = 0
    for job in jobs:
        computed = len(job.prompt) + job.output_tokens - 1
        total += sum(arch.flops_per_token(context) for context in range(1, computed + 1))
        total += job.output_tokens * arch.logits_flops
    return total


def matmul_flops_per_s() -> float:
    """Speed of float32 matrix multiplication, the best of a few."""
    a, b = torch.randn(MATMUL_SIZE, MATMUL_SIZE), torch.randn(MATMUL_SIZE, MATMUL_SIZE)
    best = min(_seconds(lambda: torch.mm(a, b)) for _ in range(4))
    return 2 * MATMUL_SIZE**3 / best


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class EngineContender:
    """This project's engine."""

    def __init__(self, executor: TorchExecutor, options: argparse.Namespace) -> None:
        scheduler = SchedulerConfig(
            max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens
        )
        self._engine = Engine(executor, scheduler, CacheConfig())

    def run(self, jobs: list[Job]) -> None:
        self._engine.reset()  # no prefix of the turn before
        for number, job in enumerate(jobs):
            sampling = SamplingParams(max_tokens=job.output_tokens, temperature=0, ignore_eos=True)
            self._engine.add_request(Request(str(number), job.prompt, sampling))
        count = 0
        while self._engine.has_work:
            events, _ = self._engine.step()
            count += sum(len(event.token_ids) for event in events)
        assert count == sum(job.output_tokens for job in jobs)


class StaticContender:
    """transformers' `generate` on left-padded batches in order of arrival; each runs to its longest answer."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model

    def run(self, jobs: list[Job]) -> None:
        for begin in range(0, len(jobs), STATIC_BATCH):
            batch = jobs[begin : begin + STATIC_BATCH]
            width = max(len(job.prompt) for job in batch)
            ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in batch])
            mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in batch])
            longest = max(job.output_tokens for job in batch)
            output: Any = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=longest, do_sample=False, pad_token_id=0
            )
            assert output.shape[1] == width + longest


class ContinuousContender:
    """transformers' continuous batching. Its cache is sized for the workload, because by itself it asks a GPU."""

    def __init__(self, model: LlamaForCausalLM, options: argparse.Namespace) -> None:
        self._model = model
        self._config = ContinuousBatchingConfig(
            page_size=32,
            num_blocks=options.max_num_seqs * 16,
            max_batch_tokens=options.max_num_batched_tokens,
            allow_block_sharing=False,
        )

    def run(self, jobs: list[Job]) -> None:
        generation = GenerationConfig(max_new_tokens=OUTPUT_TOKENS[1], do_sample=False, eos_token_id=-1, pad_token_id=0)
        lengths: dict[str, int] = {}
        with self._model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=self._config
        ) as manager:
            for number, job in enumerate(jobs):
                manager.add_request(job.prompt, request_id=str(number), max_new_tokens=job.output_tokens)
            for result in manager:
                if result.error is not None:
                    raise RuntimeError(f"transformers' continuous batching failed: {result.error}")
                if result.is_finished():
                    lengths[result.request_id] = len(result.generated_tokens)
                if len(lengths) == len(jobs):
                    break
        if lengths != {str(number): job.output_tokens for number, job in enumerate(jobs)}:
            raise RuntimeError(f"transformers' continuous batching answered {len(lengths)} of {len(jobs)} requests")


def transformers_model(source: ModelSource, seed: int) -> LlamaForCausalLM:
    """The same weights in transformers' model."""
    arch = source.arch
    if arch.family != "llama" or arch.rope_scaling is not None:
        raise UserError(f"model {source.name!r} is not possible here: the comparison takes plain Llama models")
    config = LlamaConfig(
        vocab_size=arch.vocab_size,
        hidden_size=arch.hidden_size,
        intermediate_size=arch.intermediate_size,
        num_hidden_layers=arch.num_layers,
        num_attention_heads=arch.num_heads,
        num_key_value_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        max_position_embeddings=arch.max_position_embeddings,
        rms_norm_eps=arch.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
        tie_word_embeddings=arch.tie_word_embeddings,
    )
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config).eval()
    weights = dict(load_weights(source, dtype=torch.float32, device="cpu", seed=seed))
    missing = set(model.load_state_dict(weights, strict=False).missing_keys)
    assert missing <= {"lm_head.weight"}
    model.generation_config.eos_token_id = None
    return model


def measure(contenders: dict[str, Any], jobs: list[Job], flops: float, repeats: int) -> dict[str, list[float]]:
    """Output tokens per second of every contender, and of the wall, by turn."""
    asked = sum(job.output_tokens for job in jobs)
    rates: dict[str, list[float]] = {name: [] for name in (*contenders, "wall", "matmul_gflops")}
    for turn in range(repeats):
        speed = matmul_flops_per_s()
        rates["matmul_gflops"].append(speed / 1e9)
        rates["wall"].append(asked * speed / flops)
        for name, contender in contenders.items():
            rates[name].append(asked / _seconds(lambda run=contender.run: run(jobs)))  # type: ignore[misc]
            print(f"  turn {turn + 1}: {name} {rates[name][-1]:.1f} output tokens/s", flush=True)
    return rates


def summarise(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and range of each rate, and of the engine's rate over it, turn by turn."""
    summary = {}
    for name, values in rates.items():
        summary[name] = {"median": statistics.median(values), "low": min(values), "high": max(values)}
        if name not in ("engine", "matmul_gflops"):
            ratios = [ours / other for ours, other in zip(rates["engine"], values, strict=True)]
            summary[name] |= {
                "engine_ratio": statistics.median(ratios),
                "engine_ratio_low": min(ratios),
                "engine_ratio_high": max(ratios),
            }
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description="Throughput of the engine beside transformers, on this CPU.")
    parser.add_argument("--model", default="smollm2-135m", help="a plain Llama model (default %(default)s)")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["engine", "static", "continuous"], action="append", help="may be repeated")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        source = resolve_model(options.model, say=print)
        executor = TorchExecutor.load(source, dtype="float32", device="cpu", seed=options.seed)
        names = options.only or ["engine", "static", "continuous"]
        reference = transformers_model(source, options.seed) if {"static", "continuous"} & set(names) else None
        make: dict[str, Callable[[], Any]] = {
            "engine": lambda: EngineContender(executor, options),
            "static": lambda: StaticContender(reference),  # type: ignore[arg-type]
            "continuous": lambda: ContinuousContender(reference, options),  # type: ignore[arg-type]
        }
        contenders = {name: make[name]() for name in dict.fromkeys(["engine", *names])}
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    jobs = make_workload(options.requests, source.arch.vocab_size, options.seed)
    print(f"{source.name} float32 on {executor.device_name}, {len(jobs)} requests, seed {options.seed}")
    for contender in contenders.values():
        contender.run(jobs[:2])
    rates = measure(contenders, jobs, arithmetic(source.arch, jobs), options.repeats)
    summary = summarise(rates)
    print(f"\n{'':12} {'median':>8} {'low':>8} {'high':>8}   engine is")
    for name, row in summary.items():
        line = f"{name:12} {row['median']:8.1f} {row['low']:8.1f} {row['high']:8.1f}"
        if "engine_ratio" in row:
            line += f"   {row['engine_ratio']:.2f} x ({row['engine_ratio_low']:.2f} to {row['engine_ratio_high']:.2f})"
        print(line)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key not in ("json", "only")}
        report = {"device": executor.device_name, "torch": torch.__version__, "settings": settings}
        options.json.write_text(json.dumps(report | {"rates": rates, "summary": summary}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
