#!/usr/bin/env python
"""Measure the engine's throughput beside other engines, on the same CPU in the same run, all in float32.

Where a name ends in "KV f16", keys and values are kept in float16; compare those with one another.

All requests are submitted at once, prompts are random tokens, answers have a fixed length and no stop token. The
contenders take turns, so that a change of the machine's speed meets all of them, and each turn starts with a
measurement of plain matrix multiplication. From that follows the wall: the rate at which the same arithmetic would
be done if every step ran at the speed of the multiplication and nothing else took time.

Peers other than transformers get an environment of their own in the cache folder, made when they are first asked for.

Usage: bench_engine.py [--peers openvino,llama,vllm,transformers] [--repeats 3] [--json FILE] ...    (see --help)
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.executor.before_torch import prepare_process

prepare_process()  # as `tune` does, and for every contender alike; torch must not be loaded yet

import torch

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import UserError
from engine.executor.torch_executor import TorchExecutor
from engine.model.arch import ModelArch
from engine.model.resolve import resolve_model
from engine.request import Request, SamplingParams
from scripts.peers.registry import Peer, Setting, choose_peers
from scripts.peers.workload import Job, make_workload

MATMUL_SIZE = 2048
MATMUL_SECONDS = 5.0
ENGINES = {"engine": "auto", "engine, KV f16": "float16"}
"""This project's contenders, and what they keep keys and values in."""


def arithmetic(arch: ModelArch, jobs: list[Job]) -> float:
    """Floating-point operations that the workload takes when nothing is computed twice."""
    total = 0
    for job in jobs:
        computed = len(job.prompt) + job.output_tokens - 1
        total += sum(arch.flops_per_token(context) for context in range(1, computed + 1))
        total += job.output_tokens * arch.logits_flops
    return total


def matmul_flops_per_s() -> float:
    """Speed of float32 matrix multiplication that lasts: bursts run some 5 % faster until the processor is warm."""
    a, b = torch.randn(MATMUL_SIZE, MATMUL_SIZE), torch.randn(MATMUL_SIZE, MATMUL_SIZE)
    begin = time.perf_counter()
    times = []
    while time.perf_counter() - begin < MATMUL_SECONDS:
        times.append(_seconds(lambda: torch.mm(a, b)))
    return 2 * MATMUL_SIZE**3 / statistics.median(times)


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

    def close(self) -> None:
        self._engine.executor.shutdown()


def measure(contenders: dict[str, Peer], jobs: list[Job], flops: float, repeats: int) -> dict[str, list[float]]:
    """Output tokens per second of every contender, and of the wall, by turn."""
    asked = sum(job.output_tokens for job in jobs)
    rates: dict[str, list[float]] = {name: [] for name in (*contenders, "wall", "matmul_gflops")}
    for turn in range(repeats):
        speed = matmul_flops_per_s()
        rates["matmul_gflops"].append(speed / 1e9)
        rates["wall"].append(asked * speed / flops)
        print(f"  turn {turn + 1}: matrices at {speed / 1e9:.0f} GFLOP/s", flush=True)
        for name, contender in contenders.items():
            rates[name].append(asked / _seconds(lambda run=contender.run: run(jobs)))  # type: ignore[misc]
            print(f"  turn {turn + 1}: {name} {rates[name][-1]:.1f} output tokens/s", flush=True)
    return rates


def summarise(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and range of each rate, and of our engines' rates over it, turn by turn."""
    summary = {}
    for name, values in rates.items():
        summary[name] = _spread("", values)
        if name not in (*ENGINES, "matmul_gflops"):
            for engine in ENGINES:
                ratios = [ours / other for ours, other in zip(rates[engine], values, strict=True)]
                summary[name] |= _spread(f"{engine} over it, ", ratios)
    return summary


def _spread(prefix: str, values: list[float]) -> dict[str, float]:
    return {f"{prefix}{what}": of(values) for what, of in (("median", statistics.median), ("low", min), ("high", max))}


def main() -> int:
    parser = argparse.ArgumentParser(description="Throughput of the engine beside other engines, on this CPU.")
    parser.add_argument("--model", default="smollm2-135m", help="a plain Llama model (default %(default)s)")
    parser.add_argument("--peers", default="transformers", help="any of openvino,llama,vllm,transformers")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with ExitStack() as stack:
            compare(options, stack)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def compare(options: argparse.Namespace, stack: ExitStack) -> None:
    """Make the contenders, measure them in turn, print and write the result; `stack` ends them."""
    makers = choose_peers(options.peers)
    source = resolve_model(options.model, say=print)
    jobs = make_workload(options.requests, source.arch.vocab_size, options.seed)
    contenders: dict[str, Peer] = {}
    for name, kept_in in ENGINES.items():
        executor = TorchExecutor.load(source, dtype="float32", kv_cache_dtype=kept_in, device="cpu", seed=options.seed)
        contenders[name] = EngineContender(executor, options)
    setting = Setting(source, options.seed, jobs, options.threads, options.max_num_seqs, options.max_num_batched_tokens)
    for name, make in makers.items():
        contenders[name] = make(setting)
        stack.callback(contenders[name].close)
    print(f"{source.name} float32 on {executor.device_name}, {len(jobs)} requests, seed {options.seed}")
    # Everything, so that no memory is touched for the first time while it is measured.
    for contender in contenders.values():
        contender.run(jobs)
    rates = measure(contenders, jobs, arithmetic(source.arch, jobs), options.repeats)
    summary = summarise(rates)
    print(f"\n{'':24} {'median':>8} {'low':>8} {'high':>8}" + "".join(f"   {name + ' is':22}" for name in ENGINES))
    for name, row in summary.items():
        line = f"{name:24} {row['median']:8.1f} {row['low']:8.1f} {row['high']:8.1f}"
        for engine in ENGINES:
            if f"{engine} over it, median" in row:
                median, low, high = (row[f"{engine} over it, {what}"] for what in ("median", "low", "high"))
                line += f"   {f'{median:.2f} x ({low:.2f} to {high:.2f})':22}"
        print(line)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        report = {
            "device": executor.device_name,
            "torch": torch.__version__,
            "attention_backend": executor.attention_backend,
            "settings": settings,
        }
        options.json.write_text(json.dumps(report | {"rates": rates, "summary": summary}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
