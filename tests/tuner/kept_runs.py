"""Runs and baselines of a simulated card that take a moment, and that card passed off as a real one that is noisy."""

import itertools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.executor.base import StepResult
from engine.executor.roofline import Roofline
from engine.executor.simulated import SimulatedExecutor
from engine.scheduler.plan import StepPlan
from reports.diff.side import InMemory, SideRun
from tuner.baseline.files import Origin
from tuner.baseline.record import Baseline
from tuner.baseline.store import create
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, Measured, TargetOptions
from workloads.records import write_run
from workloads.slo import parse_slo
from workloads.spec import load_spec

SLO = parse_slo(["p95_ttft=1s,p95_tpot=120ms"])
SPEC = load_spec("chat-small", ["prompt_tokens=uniform:16..64", "output_tokens=uniform:4..16"])
OPTIONS = TargetOptions("random:qwen2.5-7b", "sim:l4")
LOAD = Load(rate=4.0, seed=7, warmup_s=1.0, window_s=6.0, drain_timeout_s=30.0)
SEATS = Settings(max_num_seqs=16)
SESSION = "2026-01-01T00:00:00+00:00"


def make_target(settings: Settings = SEATS) -> BundledTarget:
    return BundledTarget(OPTIONS, SPEC, settings)


@cache
def _simulated(seed: int, settings: Settings) -> Measured:
    return make_target(settings).measure(settings, replace(LOAD, seed=seed), SLO, stop_when_settled=False)


def run(seed: int = 7, settings: Settings = SEATS, session: str = SESSION, **changes: Any) -> SideRun:
    """A simulated run, with changes to its `run.json`."""
    measured = _simulated(seed, settings)
    return SideRun(seed, session, InMemory(measured.meta | changes, measured.requests, measured.iterations))


def stored_run(folder: Path, seed: int = 7, settings: Settings = SEATS, **changes: Any) -> Path:
    record = run(seed, settings, **changes).record
    return write_run(folder, record.meta, record.request_records(), record.iteration_records())


def stored_baseline(folder: Path, seeds: Sequence[int] = (7, 8), **changes: Any) -> Baseline:
    return create(folder, Origin("run", "somewhere"), [run(seed, **changes) for seed in seeds])


@contextmanager
def noisy_machine(seed: int, spread: float = 0.01) -> Iterator[None]:
    """Simulated cards count as real ones inside, and each run is faster or slower as a whole."""
    rng, factor = random.Random(seed), [1.0]
    seconds, restart = Roofline.seconds, SimulatedExecutor.restart

    def noisy(self: Roofline, plan: StepPlan) -> float:
        return seconds(self, plan) * factor[0]

    def begin(self: SimulatedExecutor, seed: int) -> None:
        factor[0] = rng.lognormvariate(0.0, spread)
        restart(self, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedExecutor, "simulated", False)
        patch.setattr(Roofline, "seconds", noisy)
        patch.setattr(SimulatedExecutor, "restart", begin)
        yield


def interrupt_in(monkeypatch: pytest.MonkeyPatch, interrupted_run: int) -> None:
    """Ctrl-C in the middle of that run, from 1."""
    execute, restart = SimulatedExecutor.execute, SimulatedExecutor.restart
    begun, steps = itertools.count(1), itertools.count()
    now = {"run": 0}

    def begin(self: SimulatedExecutor, seed: int) -> None:
        now["run"] = next(begun)
        restart(self, seed)

    def interrupting(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        if now["run"] == interrupted_run and next(steps) == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return execute(self, plan)

    monkeypatch.setattr(SimulatedExecutor, "restart", begin)
    monkeypatch.setattr(SimulatedExecutor, "execute", interrupting)
