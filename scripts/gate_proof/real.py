"""The gate on the real engine: SmolLM2-135M on this machine's CPU, slowed down by a wait after each step."""

import time
from collections.abc import Callable

from engine.executor.base import StepResult
from engine.executor.torch_executor import TorchExecutor
from engine.scheduler.plan import StepPlan
from scripts.gate_proof.change import Conditions
from scripts.gate_proof.machines import Machine
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, TargetOptions
from workloads.slo import parse_slo
from workloads.spec import spec_from_dict

REAL = "real CPU"

_SPEC = spec_from_dict({"name": "short", "prompt_tokens": "uniform:16..64", "output_tokens": "uniform:4..12"})
_SETTINGS = Settings(max_num_seqs=8, max_num_batched_tokens=128, enable_prefix_caching=False).canonical()


Execute = Callable[[StepPlan], StepResult]


def slowed(execute: Execute, conditions: Conditions, clock_s: Callable[[], float] = time.perf_counter) -> Execute:
    """An executor's `execute` whose steps take longer, by a wait at their end."""

    def execute_and_wait(plan: StepPlan) -> StepResult:
        begin_s = clock_s()
        result = execute(plan)
        now_s = clock_s()
        until_s = begin_s + (now_s - begin_s) * conditions.factor(plan)
        # A sleep would be longer than what is asked for by as much as the system likes.
        while now_s < until_s:
            now_s = clock_s()
        return result

    return execute_and_wait


class SlowableTarget(BundledTarget):
    """The engine on the CPU, under conditions."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        super().__init__(TargetOptions("smollm2-135m", "cpu", max_model_len=128), _SPEC, _SETTINGS)

    def _load(self, settings: Settings) -> None:
        super()._load(settings)
        assert isinstance(self.executor, TorchExecutor)
        self.executor.execute = slowed(self.executor.execute, self._conditions)  # type: ignore[assignment, method-assign]


def real_machine() -> Machine:
    """This machine. Its noise is its own: no seed decides it."""
    return Machine(
        name=REAL,
        why="the real engine with SmolLM2-135M; each step is followed by a wait of a tenth of its duration where the "
        "candidate is 10 % slower",
        settings=_SETTINGS,
        slo=parse_slo(["p95_ttft=2s,p95_tpot=200ms"]),
        load=Load(2.0, 0, 1.0, 5.0, 30.0),
        make=lambda seed, conditions: SlowableTarget(conditions),
    )
