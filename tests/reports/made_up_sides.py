"""Sides of a diff whose numbers are given, without a run behind them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.trace import IterationRecord
from reports.diff.side import InMemory, Side, SideRun
from tests.reports.conftest import DEFAULTS, DEVICE, ENVIRONMENT, MODEL, WORKLOAD
from workloads.records import RequestRecord

S = 1_000_000_000
KEYS = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput")


def made_up_run(
    seed: int = 0,
    session: str = "monday",
    requests: Sequence[RequestRecord] = (),
    iterations: Sequence[IterationRecord] = (),
    /,
    *,
    change: Mapping[str, Any] = {},
    **summary: float | None,
) -> SideRun:
    """A run with these numbers in its summary; `change` replaces keys of its `run.json`."""
    meta: dict[str, Any] = {
        "simulated": False,
        "tool_version": "0.1.0",
        "created": "2026-11-29T12:00:00Z",
        "model": dict(MODEL),
        "device": dict(DEVICE),
        "environment": dict(ENVIRONMENT),
        "settings": dict(DEFAULTS),
        "workload": dict(WORKLOAD),
        "rate": 6.0,
        "seed": seed,
        "load": {"warmup_s": 2.0, "window_s": 12.0, "drain_timeout_s": 60.0},
        "slo": None,
        "window": {"start_ns": 0, "end_ns": 12 * S, "requests": 72},
        "stopped_early": None,
        "verdict": None,
        "validity": {"valid": True, "checks": []},
        "summary": dict(summary),
    }
    return SideRun(seed, session, InMemory(meta | dict(change), requests, iterations))


def made_up_side(name: str, runs: Sequence[SideRun]) -> Side:
    return Side(name, Path(name), runs[0].record.meta, tuple(runs))


def side_of(name: str, by_seed: Mapping[int, Sequence[float]], session: str = "monday", **more: Any) -> Side:
    """A side whose runs have one number, their mean TTFT in ms: by seed, as often as there are numbers."""
    runs = [
        made_up_run(seed, session, mean_ttft_ms=value, **more) for seed, values in by_seed.items() for value in values
    ]
    return made_up_side(name, runs)
