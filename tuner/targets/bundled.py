"""The bundled engine as a thing to measure: settings and load in, the record of a run out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.build import (
    behaves_like_cpu,
    find_device,
    find_learnt_device,
    say_nothing,
)
from engine.config import EngineConfig, ModelConfig
from engine.engine import kv_budget
from engine.errors import KVCacheTooSmall, OutOfDeviceMemory, RankFailed, ReplicaFailed, SwapSpaceTooSmall, UserError
from engine.executor.simulated import SimulatedExecutor
from engine.model.resolve import resolve_model
from engine.parallel.replicas import ReplicatedEngine
from engine.trace import IterationRecord
from tuner.environment import cuda_driver, environment
from tuner.settings import Settings
from tuner.targets.engines import load_engine
from tuner.targets.options import TargetOptions
from tuner.targets.run_meta import describe_run
from workloads.driver import DriveError, Progress, drive
from workloads.plan import make_plan
from workloads.records import RequestRecord
from workloads.slo import Slo
from workloads.spec import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Load:
    """What is offered to the engine in one run.

    Attributes:
        rate: requests per second; None for a closed loop.
        seed: of arrivals, lengths and prompts.
        warmup_s, window_s: load before the measured part, and that part.
        drain_timeout_s: how long after the window its requests may take.
    """

    rate: float | None
    seed: int
    warmup_s: float
    window_s: float
    drain_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, ready to be written.

    Attributes:
        meta: content of `run.json`.
        error: why it broke off; None when it did not.
    """

    meta: dict[str, Any]
    requests: list[RequestRecord]
    iterations: list[IterationRecord]
    error: str | None = None


DOES_NOT_FIT = (KVCacheTooSmall, SwapSpaceTooSmall, OutOfDeviceMemory)
"""What says of one setting that it cannot run here, and nothing of any other."""

GPU_DEFAULT_MODEL = "random:qwen2.5-7b"
CPU_DEFAULT_MODEL = "smollm2-135m"


def default_model(device: str) -> str:
    """The model to run where the user names none, on a device as `find_device` names it."""
    learnt = find_learnt_device(device)
    if learnt is not None:
        return learnt.model
    return CPU_DEFAULT_MODEL if device == "cpu" else GPU_DEFAULT_MODEL


class BundledTarget:
    """The bundled engine with a model on a device.

    Args:
        options: model and device.
        spec: the workload; decides how long requests may get.
        settings: those that the engine starts with.
        say: told in one line what takes long, and what the user should know.

    Raises:
        UserError: a model, device or length that cannot be, or memory for less than one request.
    """

    def __init__(
        self,
        options: TargetOptions,
        spec: WorkloadSpec,
        settings: Settings,
        say: Callable[[str], None] = say_nothing,
    ) -> None:
        device = find_device(options.device)
        model = options.model or default_model(device)
        self.options = replace(options, model=model, device=device)
        self.spec = spec
        self.source = resolve_model(model, say)
        if self.source.note:
            say(self.source.note)
        self._say = say
        self.environment = environment()
        self._load(settings)

    def _load(self, settings: Settings) -> None:
        config = EngineConfig(
            model=ModelConfig(
                model=self.source.name,
                dtype=self.options.dtype,  # type: ignore[arg-type]  # ModelConfig checks it
                max_model_len=self.options.max_model_len,
                seed=self.options.weights_seed,
                kv_cache_dtype=self.options.kv_cache_dtype,  # type: ignore[arg-type]  # likewise
            ),
            cache=settings.cache(),
            scheduler=settings.scheduler(),
            device=self.options.device,
            device_memory_bytes=self.options.device_memory_bytes,
            tensor_parallel_size=self.options.tensor_parallel_size,
            attention_backend=self.options.attention_backend,
            enforce_eager=self.options.enforce_eager,
            max_cudagraph_capture_size=self.options.max_cudagraph_capture_size,
        )
        self.engine, self.executor = load_engine(
            config,
            self.source,
            replicas=self.options.data_parallel_size,
            router=self.options.router,
            longest_request=self.spec.max_request_tokens,
            say=self._say,
        )

    @property
    def simulated(self) -> bool:
        return self.executor.simulated

    @property
    def on_gpu(self) -> bool:
        """Ranges and defaults that suit a GPU apply, real or simulated."""
        return not behaves_like_cpu(self.options.device)

    def measure(
        self,
        settings: Settings,
        load: Load,
        slo: Slo | None,
        *,
        stop_when_settled: bool = True,
        stop_when_held: bool = False,
        race: Sequence[int] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Measured:
        """Run one load under one setting.

        A run that breaks off is returned with its error and what it had measured; the engine is usable again.

        Args:
            stop_when_settled, stop_when_held, race, on_progress, should_stop: see `workloads.driver.drive`.

        Raises:
            KVCacheTooSmall: the settings leave no room for one longest request.
            SwapSpaceTooSmall: their swap space holds not one block.
            OutOfDeviceMemory: they do not fit into the device's memory.
        """
        self.restart(load.seed)
        self.prepare(settings)
        plan = make_plan(
            self.spec,
            rate=load.rate,
            seed=load.seed,
            vocab_size=self.source.arch.vocab_size,
            warmup_s=load.warmup_s,
            window_s=load.window_s,
        )
        error = None
        try:
            result = drive(
                self.engine,
                plan,
                slo=slo,
                drain_timeout_s=load.drain_timeout_s,
                stop_when_settled=stop_when_settled,
                stop_when_held=stop_when_held,
                race=race,
                on_progress=on_progress,
                should_stop=should_stop,
            )
        except DriveError as failure:
            result, error = failure.partial, str(failure)
            self._recover(settings)
        meta = describe_run(self, settings, load, slo, result, plan, error)
        return Measured(meta, result.requests, result.iterations, error)

    def restart(self, seed: int) -> None:
        """Let a simulated device begin a run at time 0, as `SimulatedExecutor.restart`; a real one goes on."""
        if isinstance(self.engine, ReplicatedEngine):
            self.engine.restart(seed)
        elif isinstance(self.executor, SimulatedExecutor):
            self.executor.restart(seed)

    def prepare(self, settings: Settings) -> None:
        """Make the engine ready for a run under these settings; requests that a failed step left are dropped.

        Where one of its processes is lost, everything is loaded again.

        Raises:
            KVCacheTooSmall, SwapSpaceTooSmall, OutOfDeviceMemory: as `measure`.
        """
        try:
            if self.engine.has_work:  # left by a step that failed
                self.engine.reset()
            self.engine.reconfigure(scheduler=settings.scheduler(), cache=settings.cache())
        except (RankFailed, ReplicaFailed) as loss:
            self._load_again(settings, str(loss))

    def _recover(self, settings: Settings) -> None:
        """Make the engine usable after a failed step; load everything again when dropping the requests does not."""
        try:
            self.prepare(settings)
        except UserError:
            raise
        except Exception:
            self._load_again(settings, "the engine does not recover in place")

    def _load_again(self, settings: Settings, reason: str) -> None:
        self._say(f"{reason}: loading it again")
        self.executor.shutdown()
        self._load(settings)

    def burst(self, settings: Settings, num_requests: int, seed: int) -> tuple[float, float]:
        """Serve requests that all arrive at once: a first idea of capacity and service time. Warms the engine up too.

        Nobody is turned away and no batch waits to grow: what the engine can serve is the question here.

        Returns:
            Requests served per second, and the mean time in seconds from a request's admission to its end.
        """
        from engine.request import Request, SamplingParams

        self.prepare(settings.unrestrained())
        plan = make_plan(
            self.spec, rate=1.0 if self.spec.is_open_loop else None, seed=seed,
            vocab_size=self.source.arch.vocab_size, warmup_s=0, window_s=1,
        )  # fmt: skip
        requests = []
        for planned, _ in zip(plan, range(num_requests), strict=False):
            sampling = SamplingParams(max_tokens=planned.max_tokens, temperature=0, ignore_eos=True)
            request = Request(f"burst-{planned.index}", planned.prompt_token_ids, sampling, priority=planned.priority)
            requests.append(request)
            self.engine.add_request(request)
        start_ns = self.engine.clock.now_ns()
        while self.engine.has_work:
            self.engine.step()
        # Of several admissions the first: a request that was preempted is being served all the same.
        events = [{event.kind: event.time_ns for event in reversed(request.history)} for request in requests]
        served_s = sum(times["finished"] - times["admitted"] for times in events) / 1e9 / num_requests
        return num_requests / ((self.engine.clock.now_ns() - start_ns) / 1e9), served_s

    def smallest_utilization(self, settings: Settings, max_num_batched_tokens: int) -> float:
        """The least memory share with which one longest request fits beside a step of that many tokens."""
        profile = self.executor.profile_memory(max_num_batched_tokens, settings.max_num_seqs)
        bytes_per_block = self.executor.kv_bytes_per_block(settings.block_size)
        longest_blocks = -(-self.executor.max_model_len // settings.block_size)
        taken = profile.weights + profile.other + profile.peak_activation
        return (taken + longest_blocks * bytes_per_block) / profile.total

    def max_resident_requests(self, settings: Settings, utilization: float) -> int:
        """Requests of mean length that the KV cache holds at that memory share."""
        profile = self.executor.profile_memory(settings.max_num_batched_tokens, settings.max_num_seqs)
        bytes_per_block = self.executor.kv_bytes_per_block(settings.block_size)
        budget = kv_budget(profile, replace(settings, gpu_memory_utilization=utilization).cache(), bytes_per_block)
        mean_tokens = self.spec.mean_prompt_tokens + self.spec.mean_output_tokens
        return int(budget.num_blocks * settings.block_size / mean_tokens)

    def describe_model(self) -> dict[str, Any]:
        """The `model` of `run.json`."""
        arch = self.source.arch
        dtype = getattr(self.executor, "dtype", self.options.dtype)
        kv_cache_dtype = getattr(self.executor, "kv_cache_dtype", dtype)
        return {
            "name": self.source.name,
            "family": arch.family,
            "parameters": arch.num_parameters,
            "dtype": dtype,
            **({} if kv_cache_dtype == dtype else {"kv_cache_dtype": kv_cache_dtype}),
            "weights": "pretrained" if self.source.pretrained else "random",
            "max_model_len": self.executor.max_model_len,
        }

    def describe_device(self) -> dict[str, Any]:
        """The `device` of `run.json`."""
        kind = "sim" if self.simulated else self.options.device.partition(":")[0]
        budget = self.engine.kv_budget
        threads = None
        if kind == "cpu":
            import torch

            threads = getattr(self.executor, "threads", torch.get_num_threads())
        return (
            {
                "name": self.executor.device_name,
                "kind": kind,
                "memory_bytes": budget.total if budget else None,
                "torch": None if self.simulated else self.environment["torch"],
                "driver": cuda_driver() if kind == "cuda" else None,
                "threads": threads,
                "attention_backend": getattr(self.executor, "attention_backend", None),
                "overlap": getattr(self.executor, "overlaps", False),
            }
            | self.options.launching()
            | self.options.several_devices()
        )
