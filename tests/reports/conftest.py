"""Made-up but plausible runs, studies and comparisons, seeded, for everything that reads them.

A toy server makes the traces; summaries and verdicts come from the project's own code.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.trace import IterationRecord
from tests.reports.toy_server import BLOCK_BYTES, serve
from workloads.metrics import Window, summarize, summarize_classes
from workloads.records import SCHEMA_VERSION, RequestRecord, write_run
from workloads.slo import parse_slo

DEFAULTS: dict[str, Any] = {
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "chunk_size": 0,
    "policy": "fcfs",
    "block_size": 16,
    "enable_prefix_caching": True,
    "aging": 0.0,
    "short_first_tokens": 0,
    "retried_first": False,
    "batching": "continuous",
    "max_queue_delay": 0.0,
    "preferred_batch_size": 0,
    "max_queue_len": 0,
    "max_queue_tokens": 0,
    "queue_timeout": 0.0,
    "max_predicted_wait": 0.0,
    "preemption_mode": "recompute",
    "preemption_victim": "auto",
    "swap_space": 4 << 30,
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
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "tool_version": "0.1.0",
        "created": "2026-11-29T12:00:00Z",
        "simulated": False,
        "model": dict(MODEL),
        "device": dict(DEVICE),
        "settings": dict(settings),
        "memory": {"bytes_per_block": BLOCK_BYTES, "block_size": 16, "num_blocks": 420},
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
        "classes": summarize_classes(requests, steps, window, slo),
        "environment": dict(ENVIRONMENT),
    }


MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def feasible() -> Callable[[dict[str, Any]], None]:
    """Makes a run's content say that every bound holds, as a longer window would."""

    def change(meta: dict[str, Any]) -> None:
        meta["verdict"]["state"] = "feasible"
        for bound in meta["verdict"]["bounds"]:
            bound["state"] = "feasible"

    return change


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run's folder and gives its path; `change` may edit run.json's content before."""

    def make(
        name: str = "run",
        *,
        rate: float | None = 6.0,
        slo: str | None = "p95_ttft=1s,p95_tpot=60ms",
        seed: int = 1,
        classes: bool = False,
        change: Callable[[dict[str, Any]], None] = lambda meta: None,
        records: Callable[[list[RequestRecord]], list[RequestRecord]] = lambda requests: requests,
        **settings: Any,
    ) -> Path:
        chosen = DEFAULTS | settings
        requests, steps, window = serve(tuple(chosen.items()), rate or 6.0, seed, classes)
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
            "schema_version": SCHEMA_VERSION,
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
                "strategy": "tpe",
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


MakeComparison = Callable[..., Path]


@pytest.fixture
def make_comparison(tmp_path: Path, make_run: MakeRun) -> MakeComparison:
    """Writes the folder of a comparison of two batching modes; `change` edits comparison.json,
    `change_run` every run.json."""

    def make(
        name: str = "comparison",
        *,
        repeats: int = 1,
        option: str = "batching",
        values: tuple[Any, ...] = ("continuous", "static"),
        change: Callable[..., None] = lambda comparison: None,
        change_run: Callable[[dict[str, Any]], None] = lambda meta: None,
        **run: Any,
    ) -> Path:
        folder = tmp_path / name
        (folder / "runs").mkdir(parents=True)
        entries: list[dict[str, Any]] = []
        for repeat in range(repeats):
            for value in values:
                path = f"runs/{len(entries):03d}-{value}"
                make_run(f"{name}/{path}", seed=repeat + 1, change=change_run, **run, **{option: value})
                entries.append({"value": value, "repeat": repeat, "seed": repeat + 1, "path": path})
        comparison = {
            "schema_version": SCHEMA_VERSION,
            "kind": "comparison",
            "tool_version": "0.1.0",
            "created": "2026-11-29T12:00:00Z",
            "simulated": False,
            "model": dict(MODEL),
            "device": dict(DEVICE),
            "environment": dict(ENVIRONMENT),
            "workload": dict(WORKLOAD),
            "slo": run.get("slo", "p95_ttft=1s,p95_tpot=60ms"),
            "seed": 1,
            "command": "tune compare batching=continuous,static --rate 6 --workload chat --seed 1",
            "option": option,
            "values": list(values),
            "settings": {name: value for name, value in DEFAULTS.items() if name != option},
            "rate": 6.0,
            "repeats": repeats,
            "runs": entries,
        }
        change(comparison)
        (folder / "comparison.json").write_text(json.dumps(comparison))
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
