"""The noisy machines of the gate's proof. To the product they are real ones: it is told nothing of their noise."""

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.engine import Engine
from engine.executor.learnt_device import ASSUMED_LINK_BYTES_PER_S, LearntDevice, LearntExecutor
from engine.executor.step_times import JitteredStepTimes
from engine.model.arch import ModelArch
from engine.scheduler.plan import StepPlan
from scripts.gate_proof.change import Change, Conditions
from scripts.search_proof.pairs import PAIRS, Pair
from scripts.search_proof.truth import Device, TruthExecutor, TruthTimes
from scripts.search_proof.world import WorldTarget
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, Measured, TargetOptions
from workloads.slo import Slo, parse_slo
from workloads.spec import WorkloadSpec, spec_from_dict

LEARNT_CARD = Path(__file__).with_name("cpu.json")
# A learnt device repeats how steps vary within a run. From run to run the real ones differ as a whole, too.
RUN_SPREAD = 0.02


class MadeUpTimes(TruthTimes):
    """A made-up device's step times under conditions."""

    def __init__(self, device: Device, seed: int, now_s: Callable[[], float], conditions: Conditions) -> None:
        super().__init__(device, seed, now_s)
        self._conditions = conditions

    def seconds(self, plan: StepPlan) -> float:
        return super().seconds(plan) * self._conditions.factor(plan)


class MadeUpTarget(WorldTarget):
    """A made-up device of the search's proof: disturbances, slow drift and hiccups, by a law of its own."""

    def __init__(self, pair: Pair, seed: int, conditions: Conditions) -> None:
        self._seed, self._conditions = seed, conditions
        super().__init__(pair, seed)

    def _make_executor(self) -> TruthExecutor:
        times = MadeUpTimes(self.pair.device, self._seed, lambda: self.spent_s, self._conditions)
        return TruthExecutor(self.pair.device, self.source.arch, times, self.spec.max_request_tokens)


class FittedTimes(JitteredStepTimes):
    """A learnt device's step times and jitter under conditions, drawn anew in every run."""

    def __init__(self, device: LearntDevice, seed: int, conditions: Conditions) -> None:
        self._conditions = conditions
        self._noise_seeds = (f"{seed} {run}" for run in itertools.count())
        super().__init__(device.times, device.link_bytes_per_s or ASSUMED_LINK_BYTES_PER_S)

    def restart(self, seed: int) -> None:
        """Begin a run. The seed of its traffic does not matter: a device is not the same twice."""
        noise = random.Random(next(self._noise_seeds))
        self._run_pace = noise.lognormvariate(0.0, RUN_SPREAD)
        super().restart(noise.getrandbits(32))

    def seconds(self, plan: StepPlan) -> float:
        return super().seconds(plan) * self._run_pace * self._conditions.factor(plan)


class FittedExecutor(LearntExecutor):
    """A learnt device that is not the same twice."""

    def __init__(self, device: LearntDevice, arch: ModelArch, times: FittedTimes, max_model_len: int) -> None:
        super().__init__(device, arch, device_name=device.name, max_model_len=max_model_len)
        self._step_time = times


class FittedTarget(BundledTarget):
    """The device of `cpu.json`, learnt from runs of SmolLM2-135M on one thread of a CPU, with the noise they had."""

    def __init__(self, spec: WorkloadSpec, settings: Settings, seed: int, conditions: Conditions) -> None:
        self._device = LearntDevice.load(LEARNT_CARD)
        self._seed, self._conditions = seed, conditions
        super().__init__(TargetOptions(f"random:{self._device.model}", f"sim:{LEARNT_CARD}"), spec, settings)

    @property
    def simulated(self) -> bool:
        return False

    def _load(self, settings: Settings) -> None:
        times = FittedTimes(self._device, self._seed, self._conditions)
        self.executor = FittedExecutor(self._device, self.source.arch, times, self.spec.max_request_tokens)
        self.engine = Engine(self.executor, settings.scheduler(), settings.cache())


class UnderChange:
    """A machine whose code was changed: a `tuner.whole_run.Measurer`."""

    def __init__(self, target: BundledTarget, conditions: Conditions, change: Change) -> None:
        self._target, self._conditions, self._change = target, conditions, change

    def measure(self, settings: Settings, load: Load, slo: Slo | None, **options: Any) -> Measured:
        """See `tuner.targets.bundled.BundledTarget.measure`."""
        self._conditions.change = self._change
        return self._target.measure(settings, load, slo, **options)


@dataclass(frozen=True)
class Machine:
    """A machine under a load of some sixty requests in the window.

    Attributes:
        name, why: for people.
        load: of its runs but for their seed.
        make: the machine with this seed of its noise.
    """

    name: str
    why: str
    settings: Settings
    slo: Slo
    load: Load
    make: Callable[[int, Conditions], BundledTarget]


_MADE_UP = PAIRS["first-token"]
_FITTED_SPEC = spec_from_dict({"name": "short", "prompt_tokens": "uniform:16..64", "output_tokens": "uniform:6..20"})
_FITTED_SETTINGS = Settings(max_num_seqs=16, max_num_batched_tokens=256, enable_prefix_caching=False).canonical()

MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine(
            name="made-up",
            why="an embedded accelerator by a law of its own, with disturbances that last, slow drift and hiccups",
            settings=_MADE_UP.default,
            slo=_MADE_UP.slo,
            load=Load(3.2, 0, 2.0, 20.0, 30.0),
            make=lambda seed, conditions: MadeUpTarget(_MADE_UP, seed, conditions),
        ),
        Machine(
            name="fitted",
            why="SmolLM2-135M on one thread of a CPU: step times and their noise were learnt from real runs, and each "
            f"run is by {100 * RUN_SPREAD:g} % (standard deviation) faster or slower as a whole",
            settings=_FITTED_SETTINGS,
            slo=parse_slo(["p95_ttft=1s,p95_tpot=150ms"]),
            load=Load(3.0, 0, 2.0, 20.0, 30.0),
            make=lambda seed, conditions: FittedTarget(_FITTED_SPEC, _FITTED_SETTINGS, seed, conditions),
        ),
    )
}
