"""Made-up but plausible runs and studies, seeded, for everything that reads them.

A toy server (seats, token budget, KV blocks, a linear step time) makes the traces, so that latencies, seats and KV use
belong together; summaries and verdicts come from the project's own code.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.trace import IterationRecord
from workloads.metrics import Window, summarize
from workloads.records import RequestRecord, write_run
from workloads.slo import parse_slo

DEFAULTS: dict[str, Any] = {
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "chunk_size": 0,
    "policy": "fcfs",
    "block_size": 16,
    "enable_prefix_caching": True,
}
MODEL = {
    "name": "toy-1b",
    "family": "llama",
    "parameters": 1_100_000_000,
    "dtype": "bfloat16",
    "weights": "pretrained",
    "max_model_len": 4096,
}
DEVICE = {
    "name": "Toy GPU",
    "kind": "cuda",
    "memory_bytes": 24 << 30,
    "torch": "2.13.0",
    "driver": "600.1",
    "threads": None,
}
ENVIRONMENT = {
    "python": "3.11.9",
    "torch": "2.13.0",
    "platform": "Linux-6.8-x86_64",
    "cpu": "Toy CPU",
    "cpu_count": 16,
    "memory_bytes": 128 << 30,
    "git_commit": "0123abc",
}
WORKLOAD = {
    "name": "chat",
    "arrival": "poisson",
    "prompt_tokens": "uniform:500..2000",
    "output_tokens": "uniform:200..800",
}


@dataclass
class ToyRequest:
    index: int
    t_sched: int
    prompt_tokens: int
    max_tokens: int
    computed: int = 0
    output: int = 0
    t_admit: int | None = None
    preemptions: int = 0
    times: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        return -(-(self.prompt_tokens + self.output + 1) // 16)


@cache
def serve(
    setting_items: tuple[tuple[str, Any], ...], rate: float, seed: int, window_s: float = 12.0, num_blocks: int = 420
) -> tuple[list[RequestRecord], list[IterationRecord], Window]:
    """Poisson arrivals through a toy server. 2 s of warm-up, then the window; drains afterwards."""
    settings = dict(setting_items)
    rng = np.random.RandomState(seed)
    window = Window(2_000_000_000, int((2 + window_s) * 1e9))
    arrivals = np.cumsum(rng.exponential(1 / rate, size=int(rate * (window_s + 2) * 2) + 8)) * 1e9
    coming = [
        ToyRequest(i, int(t), int(rng.randint(100, 600)), int(rng.randint(40, 240)))
        for i, t in enumerate(arrivals)
        if t < window.end_ns
    ]
    requests = list(coming)
    waiting: list[ToyRequest] = []
    running: list[ToyRequest] = []
    steps: list[IterationRecord] = []
    now, last_end = 0, None
    while coming or waiting or running:
        while coming and coming[0].t_sched <= now:
            waiting.append(coming.pop(0))
        if not waiting and not running:
            now = coming[0].t_sched
            continue
        budget, preempted = settings["max_num_batched_tokens"], 0
        while len(running) > 1 and sum(r.blocks for r in running) > num_blocks:
            victim = running.pop()
            victim.computed, victim.preemptions, preempted = 0, victim.preemptions + 1, preempted + 1
            waiting.insert(0, victim)
        shares = []
        for request in running:
            want = request.prompt_tokens + request.output - request.computed
            tokens = min(want, budget, settings["chunk_size"] or want)
            if tokens:
                shares.append((request, tokens))
                budget -= tokens
        while waiting and budget and len(running) < settings["max_num_seqs"] and not preempted:
            request = waiting[0]
            if sum(r.blocks for r in running) + request.blocks > num_blocks:
                break
            running.append(waiting.pop(0))
            request.t_admit = request.t_admit or now
            want = request.prompt_tokens + request.output
            tokens = min(want, budget, settings["chunk_size"] or want)
            shares.append((request, tokens))
            budget -= tokens
        prefill = [(r, n) for r, n in shares if r.computed < r.prompt_tokens + r.output - 1]
        decode = [(r, n) for r, n in shares if r.computed >= r.prompt_tokens + r.output - 1]
        prefill_tokens, decode_tokens = sum(n for _, n in prefill), sum(n for _, n in decode)
        execute = int(4e6 + prefill_tokens * 60e3 + decode_tokens * 400e3)
        end = now + execute + 400_000
        steps.append(
            IterationRecord(
                iteration=len(steps),
                t_start=now,
                t_end=end,
                prefill_tokens=prefill_tokens,
                decode_tokens=decode_tokens,
                prefill_seqs=len(prefill),
                decode_seqs=len(decode),
                context_tokens=sum(r.computed + n for r, n in shares),
                cached_tokens=0,
                running=len(running),
                waiting=len(waiting),
                kv_blocks_used=min(num_blocks, sum(r.blocks for r in running)),
                kv_blocks_total=num_blocks,
                preemptions_recompute=preempted,
                preemptions_swap=0,
                swapped_in_blocks=0,
                swapped_out_blocks=0,
                recomputed_tokens=sum(n for r, n in prefill if r.preemptions),
                schedule_time_ns=400_000,
                execute_time_ns=execute,
                device_time_ns=execute,
                gap_ns=0 if last_end is None else now - last_end,
            )
        )
        now = last_end = end
        for request, tokens in shares:
            request.computed += tokens
            if request.computed == request.prompt_tokens + request.output:
                request.output += 1
                request.times.append(now)
        running = [r for r in running if r.output < r.max_tokens]
    return [_record(r, window) for r in requests], steps, window


def _record(request: ToyRequest, window: Window) -> RequestRecord:
    in_window = window.start_ns <= request.t_sched < window.end_ns
    return RequestRecord(
        index=request.index,
        request_id=f"r{request.index}",
        phase="window" if in_window else "warmup",
        status="ok",
        finish_reason="length",
        error=None,
        t_sched=request.t_sched,
        t_send=request.t_sched,
        t_admit=request.t_admit,
        t_first=request.times[0],
        t_last=request.times[-1],
        t_end=request.times[-1],
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        output_tokens=request.output,
        first_chunk_tokens=1,
        cached_tokens=0,
        preemptions=request.preemptions,
        recomputed_tokens=0,
        chunk_times=tuple(request.times),
        chunk_tokens=(1,) * len(request.times),
    )


def run_meta(
    settings: dict[str, Any],
    requests: list[RequestRecord],
    steps: list[IterationRecord],
    window: Window,
    rate: float | None,
    slo_text: str | None,
    seed: int,
) -> dict[str, Any]:
    slo = parse_slo([slo_text]) if slo_text else None
    scheduled = sum(r.phase == "window" for r in requests)
    return {
        "schema_version": 1,
        "kind": "run",
        "tool_version": "0.1.0",
        "created": "2026-11-29T12:00:00Z",
        "simulated": False,
        "model": dict(MODEL),
        "device": dict(DEVICE),
        "settings": dict(settings),
        "memory": None,
        "workload": dict(WORKLOAD),
        "rate": rate,
        "seed": seed,
        "slo": slo_text,
        "window": {"start_ns": window.start_ns, "end_ns": window.end_ns, "requests": scheduled},
        "stopped_early": None,
        "verdict": slo.judge(requests).to_dict() if slo else None,
        "validity": {
            "valid": True,
            "checks": [
                {
                    "name": "offered rate",
                    "ok": True,
                    "value": 5.97,
                    "limit": 6.0,
                    "detail": "offered 5.97 of 6 requests/s",
                },
                {"name": "driver lag", "ok": True, "value": 0.2, "limit": 5.0, "detail": "p99 0.2 ms"},
            ],
        },
        "summary": summarize(requests, steps, window, slo),
        "environment": dict(ENVIRONMENT),
    }


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run's folder and gives its path; `change` may edit run.json's content before."""

    def make(
        name: str = "run",
        *,
        rate: float | None = 6.0,
        slo: str | None = "p95_ttft=1s,p95_tpot=60ms",
        seed: int = 1,
        change: Callable[[dict[str, Any]], None] = lambda meta: None,
        records: Callable[[list[RequestRecord]], list[RequestRecord]] = lambda requests: requests,
        **settings: Any,
    ) -> Path:
        chosen = DEFAULTS | settings
        requests, steps, window = serve(tuple(chosen.items()), rate or 6.0, seed)
        requests = records(requests)
        meta = run_meta(chosen, requests, steps, window, rate, slo, seed)
        change(meta)
        return write_run(tmp_path / name, meta, requests, steps)

    return make


MakeStudy = Callable[..., Path]

BASELINE = DEFAULTS | {"max_num_seqs": 4}
WINNER = DEFAULTS | {"max_num_seqs": 48, "max_num_batched_tokens": 1024, "chunk_size": 256}


@pytest.fixture
def make_study(tmp_path: Path, make_run: MakeRun) -> MakeStudy:
    """Writes a study's folder, of a confirmed better winner unless `change` edits study.json's content."""

    def make(
        name: str = "study", *, trials: int = 10, seed: int = 1, change: Callable[..., None] = lambda study: None
    ) -> Path:
        rng = np.random.RandomState(seed)
        folder = tmp_path / name
        (folder / "runs").mkdir(parents=True)
        paths = {
            "baseline": make_run(f"{name}/runs/000-baseline", rate=3.0, seed=seed, **BASELINE),
            "winner": make_run(f"{name}/runs/001-winner", rate=6.0, seed=seed, **WINNER),
        }
        metas = {side: json.loads((path / "run.json").read_text()) for side, path in paths.items()}
        made = [_trial(0, "baseline", "complete", BASELINE, 3.0, metas["baseline"]["summary"]["request_goodput"])]
        made[0]["runs"] = [_trial_run("runs/000-baseline", 3.0, metas["baseline"])]
        for number in range(1, trials):
            settings = DEFAULTS | {
                "max_num_seqs": int(rng.choice([8, 16, 32, 64, 128])),
                "max_num_batched_tokens": int(rng.choice([512, 1024, 2048, 4096])),
                "chunk_size": int(rng.choice([0, 128, 256, 512])),
                "gpu_memory_utilization": round(float(rng.uniform(0.6, 0.95)), 3),
            }
            state = ("complete", "complete", "infeasible", "failed")[number % 4]
            rate = float(rng.uniform(3, 5.5)) if state == "complete" else None
            trial = _trial(number, "search", state, settings, rate, rate if state != "infeasible" else 1.1)
            made.append(trial)
        made.append(_trial(trials, "search", "complete", WINNER, 6.0, metas["winner"]["summary"]["request_goodput"]))
        made[-1]["runs"] = [_trial_run("runs/001-winner", 6.0, metas["winner"])]
        study = {
            "schema_version": 1,
            "kind": "study",
            "tool_version": "0.1.0",
            "created": "2026-11-29T12:00:00Z",
            "updated": "2026-11-29T12:20:00Z",
            "simulated": False,
            "model": dict(MODEL),
            "device": dict(DEVICE),
            "environment": dict(ENVIRONMENT),
            "workload": dict(WORKLOAD),
            "slo": "p95_ttft=1s,p95_tpot=60ms",
            "seed": seed,
            "command": "tune --slo p95_ttft=1s,p95_tpot=60ms --model toy-1b --workload chat --budget 20m --seed 1",
            "options": {
                "rate": "auto",
                "budget_s": 1200,
                "trials": None,
                "window_s": 12,
                "sampler": "tpe",
                "space": {"max_num_seqs": [8, 128], "chunk_size": [0, 512]},
            },
            "state": "complete",
            "reason": None,
            "elapsed_s": 1180.0,
            "trials": made,
            "importance": {"max_num_seqs": 0.62, "chunk_size": 0.25, "max_num_batched_tokens": 0.13},
            "best": {"trial": trials, "settings": WINNER, "rate": 6.0, "is_default": False},
            "confirmation": _confirmation(metas),
        }
        change(study)
        (folder / "study.json").write_text(json.dumps(study))
        return folder

    return make


def _trial(
    number: int, kind: str, state: str, settings: dict[str, Any], rate: float | None, goodput: float | None
) -> dict[str, Any]:
    return {
        "number": number,
        "kind": kind,
        "state": state,
        "settings": settings,
        "rate": rate,
        "goodput": goodput,
        "constraint": {"complete": -0.1, "infeasible": 0.21}.get(state),
        "error": "out of device memory while profiling" if state == "failed" else None,
        "runs": [],
        "elapsed_s": 60.0,
    }


def _trial_run(path: str, rate: float, meta: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "rate": rate,
        "verdict": meta["verdict"]["state"],
        "goodput": meta["summary"]["request_goodput"],
        "stopped_early": None,
    }


def _confirmation(metas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    def side(label: str, path: str) -> dict[str, Any]:
        meta = metas[label]
        goodput = meta["summary"]["request_goodput"]
        return {
            "settings": meta["settings"],
            "rate": meta["rate"],
            "runs": [path],
            "verdict": meta["verdict"],
            "goodput": goodput,
            "goodput_low": goodput * 0.93,
            "goodput_high": goodput * 1.07,
            "summary": meta["summary"],
        }

    goodputs = {label: meta["summary"]["request_goodput"] for label, meta in metas.items()}
    gain = goodputs["winner"] / goodputs["baseline"] - 1
    return {
        "verdict": "better",
        "metric": "request_goodput",
        "gain": gain,
        "gain_low": gain - 0.08,
        "gain_high": gain + 0.09,
        "baseline": side("baseline", "runs/000-baseline"),
        "winner": side("winner", "runs/001-winner"),
        "text": "3 pairs of runs with the same arrivals.",
    }
