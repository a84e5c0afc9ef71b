"""The options of a measurement as texts, and what they mean: one reading for every command and for scripts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.build import behaves_like_cpu, find_device
from engine.config import MAX_CUDAGRAPH_CAPTURE_SIZE
from engine.errors import UserError
from engine.parallel.router import DEFAULT_ROUTER
from tuner.baseline import DEFAULT_STORE
from tuner.earlier import AUTO
from tuner.objectives import Objective, parse_objectives
from tuner.runner import RunLengths
from tuner.settings import Settings, parse_assignment
from tuner.targets.bundled import TargetOptions
from tuner.units import parse_bytes, parse_duration_s
from workloads.slo import Slo, parse_goodput, parse_slo
from workloads.spec import WorkloadSpec, load_spec

WINDOWS_PER_BUDGET = 27
WARMUP_SHARE = 0.4
# Beyond them a run would take days, or the plan more memory than there is.
RATE_LIMITS = (1e-4, 1e5)
WINDOW_LIMITS_S = (10.0, 60.0)


@dataclass(frozen=True)
class TuneArguments:
    """The command line's options, as texts; see `tuner.cli.options` for what each means."""

    slo: Sequence[str] = field(default_factory=list)
    goodput: Sequence[str] = field(default_factory=list)
    workload: str | None = None
    arrival: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    rate: str = "auto"
    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    device_memory: str | None = None
    attention_backend: str = "auto"
    enforce_eager: bool = False
    max_cudagraph_capture_size: int = MAX_CUDAGRAPH_CAPTURE_SIZE
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    router: str = DEFAULT_ROUTER
    set: Sequence[str] = field(default_factory=list)
    search: Sequence[str] = field(default_factory=list)
    strategy: str = "auto"
    warm_start: Sequence[str] = field(default_factory=lambda: [AUTO])
    baseline: str | None = None
    store: str = DEFAULT_STORE
    objective: Sequence[str] = field(default_factory=list)
    budget: str | None = None
    trials: int | None = None
    window: str | None = None
    warmup: str | None = None
    drain_timeout: str = "60s"
    seed: int = 0

    def parse_slo(self) -> Slo | None:
        """The SLO of `--slo` or `--goodput`; None for neither.

        Raises:
            UserError: both, or one that does not parse.
        """
        if self.slo and self.goodput:
            raise UserError("--slo and --goodput say the same thing in two forms: give one of them")
        if self.goodput:
            return parse_goodput(self.goodput)
        return parse_slo(self.slo) if self.slo else None

    def parse_objectives(self) -> tuple[Objective, ...]:
        """What settings are compared by, the main one first.

        Raises:
            UserError: an unknown name, or one twice.
        """
        return parse_objectives(self.objective)

    def parse_rate(self) -> float | None:
        """Requests per second; None for auto.

        Raises:
            UserError: neither auto nor a number above 0.
        """
        if self.rate == "auto":
            return None
        try:
            rate = float(self.rate)
        except ValueError:
            rate = 0.0
        if not RATE_LIMITS[0] <= rate <= RATE_LIMITS[1]:
            raise UserError(
                f"--rate {self.rate!r} is not possible: give requests per second above 0 ({RATE_LIMITS[0]:g} to "
                f"{RATE_LIMITS[1]:g}), or auto"
            )
        return rate

    def one_rate(self, spec: WorkloadSpec, command: str) -> float | None:
        """The rate of a command that measures at one; None for a closed loop.

        Raises:
            UserError: an open loop without one, or a closed loop with one.
        """
        rate = self.parse_rate()
        if rate is None and spec.is_open_loop:
            raise UserError(f"{command} measures at one rate: give --rate in requests per second, such as --rate 6")
        if rate is not None and not spec.is_open_loop:
            raise UserError(
                f"--rate {self.rate} is not possible: arrival={spec.arrival} is a closed loop, which has none"
            )
        return rate

    def settings(self) -> Settings:
        """The default settings with those of `--set`."""
        return Settings().override(self.set)

    def names_set(self) -> list[str]:
        """The settings that `--set` names."""
        return [parse_assignment(text)[0] for text in self.set]

    def load_workload(self) -> WorkloadSpec:
        """The workload with its overrides; the default depends on the device."""
        default = "chat-small" if behaves_like_cpu(find_device(self.device)) else "chat"
        overrides = {"arrival": self.arrival, "prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}
        return load_spec(self.workload or default, [f"{k}={v}" for k, v in overrides.items() if v is not None])

    def target_options(self) -> TargetOptions:
        """Model and device."""
        memory = None if self.device_memory is None else parse_bytes("--device-memory", self.device_memory)
        return TargetOptions(
            self.model,
            self.device,
            self.dtype,
            self.max_model_len,
            memory,
            attention_backend=self.attention_backend,
            enforce_eager=self.enforce_eager,
            max_cudagraph_capture_size=self.max_cudagraph_capture_size,
            tensor_parallel_size=self.tensor_parallel_size,
            data_parallel_size=self.data_parallel_size,
            router=self.router,
            kv_cache_dtype=self.kv_cache_dtype,
        )

    def run_lengths(self, budget_s: float | None) -> RunLengths:
        """Lengths of a run's parts: as asked, else by the budget."""
        if self.window is not None:
            window_s = parse_duration_s("--window", self.window)
        else:
            low, high = WINDOW_LIMITS_S
            # Simulated seconds cost next to nothing, so the budget need not set them.
            follows_budget = budget_s is not None and not self.device.startswith("sim:")
            window_s = min(high, max(low, (budget_s or 0.0) / WINDOWS_PER_BUDGET)) if follows_budget else high
        if self.warmup is None:
            warmup_s = max(3.0, WARMUP_SHARE * window_s)
        else:
            warmup_s = 0.0 if self.warmup.strip() in ("0", "0s") else parse_duration_s("--warmup", self.warmup)
        return RunLengths(warmup_s, window_s, parse_duration_s("--drain-timeout", self.drain_timeout))
