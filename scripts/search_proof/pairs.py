"""The six pairs of a made-up device and a workload with its SLO: in each, other settings matter."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from scripts.search_proof.truth import Device
from tuner.runner import RunLengths
from tuner.settings import Settings
from tuner.space import Choices, SearchSpace
from workloads.slo import Slo, parse_slo
from workloads.spec import WorkloadSpec

MIB = 1 << 20

Point = tuple[Any, ...]
"""Values of the searched settings, in the order of a pair's levels."""


@dataclass(frozen=True)
class Pair:
    """A device, what is asked of it, and the settings that are searched.

    Attributes:
        why: what decides here.
        model: on the device; its shape decides what the KV cache holds.
        workload: fields of the `WorkloadSpec`.
        levels: the values of each searched setting; all combinations behave differently.
        default: the settings to improve on, one of the points.
        guess: a rate near the default's limit, requests per second, where the search for the truth begins.
        lengths: of the runs.
    """

    name: str
    why: str
    model: str
    device: Device
    workload: Mapping[str, Any]
    slo_text: str
    levels: Mapping[str, tuple[Any, ...]]
    default: Settings
    guess: float
    lengths: RunLengths = field(default=RunLengths(warmup_s=5.0, window_s=28.0, drain_timeout_s=20.0))

    @property
    def spec(self) -> WorkloadSpec:
        return WorkloadSpec(name=self.name, **self.workload)

    @property
    def slo(self) -> Slo:
        return parse_slo(self.slo_text)

    @property
    def space(self) -> SearchSpace:
        return SearchSpace({name: Choices(values) for name, values in self.levels.items()}, self.default)

    def points(self) -> Iterator[Point]:
        """Every combination of the levels."""
        return product(*self.levels.values())


def settings_at(pair: Pair, point: Point) -> Settings:
    """The settings of a point."""
    return replace(pair.default, **dict(zip(pair.levels, point, strict=True)))


def point_of(pair: Pair, settings: Mapping[str, Any]) -> Point:
    """The point of settings, as `Settings.to_dict` gives them."""
    return tuple(settings[name] for name in pair.levels)


_MODEL = "random:smollm2-135m"
_SHARES = (0.8, 0.84, 0.88, 0.92, 0.96)
_BUDGETS = (128, 256, 512, 1024, 2048)
_CHUNKS = (0, 16, 32, 64, 112)
_FEW_SEATS, _SEATS, _MANY_SEATS = (2, 4, 8, 16, 32), (4, 8, 16, 32, 64), (8, 16, 32, 64, 128)


def _levels(seats: tuple[int, ...]) -> dict[str, tuple[Any, ...]]:
    return {
        "gpu_memory_utilization": _SHARES,
        "max_num_seqs": seats,
        "max_num_batched_tokens": _BUDGETS,
        "chunk_size": _CHUNKS,
    }


def _default(share: float, seats: int, budget: int, chunk: int = 0) -> Settings:
    return Settings(share, seats, budget, chunk, enable_prefix_caching=False)


# An embedded accelerator: slow arithmetic beside slow memory, a host that is in the way.
_EDGE = Device(
    "edge", weights_s=0.070, context_s=4e-6, token_s=2.6e-4, square_s=1.5e-7, host_s=0.007, host_request_s=4e-4,
    host_power=1.2, disturbance=0.25, tile=32, eager_s=0.02, memory_bytes=530 * MIB, step_bytes_per_token=35_000,
    seat_bytes=400_000,
)  # fmt: skip
# Much arithmetic for its bandwidth: prompts are cheap, context is dear.
_NARROW = Device(
    "narrow", weights_s=0.085, context_s=10e-6, token_s=1.3e-4, square_s=0.8e-7, host_s=0.010, host_request_s=5e-4,
    host_power=1.1, disturbance=0.4, tile=64, eager_s=0.03, memory_bytes=550 * MIB, step_bytes_per_token=40_000,
    seat_bytes=400_000,
)  # fmt: skip
# Much bandwidth, little arithmetic: every prompt token is felt.
_WIDE = Device(
    "wide", weights_s=0.040, context_s=1.5e-6, token_s=2.8e-4, square_s=4e-7, host_s=0.013, host_request_s=2e-4,
    host_power=1.3, disturbance=0.6, tile=16, eager_s=0.015, memory_bytes=540 * MIB, step_bytes_per_token=40_000,
    seat_bytes=400_000,
)  # fmt: skip

PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair(
            name="first-token",
            why="a tight TTFT: requests must not wait for seats, nor for each other's prompts",
            model=_MODEL,
            device=_EDGE,
            workload={"prompt_tokens": "uniform:100..500", "output_tokens": "uniform:8..32"},
            slo_text="p95_ttft=600ms,p95_tpot=400ms",
            levels=_levels(_SEATS),
            default=_default(0.88, 16, 256),
            guess=4.0,
        ),
        Pair(
            name="each-token",
            why="a tight TPOT: prompts that share a step with decodes must be cut small",
            model=_MODEL,
            device=_WIDE,
            workload={"prompt_tokens": "uniform:100..500", "output_tokens": "uniform:8..32"},
            slo_text="p95_ttft=3s,p95_tpot=115ms",
            levels=_levels(_SEATS),
            default=_default(0.92, 64, 1024),
            guess=3.0,
        ),
        Pair(
            name="little-memory",
            why="a KV cache that is soon full: too many seats preempt each other, large steps take its room",
            model=_MODEL,
            device=replace(_NARROW, memory_bytes=520 * MIB),
            workload={"prompt_tokens": "uniform:100..400", "output_tokens": "uniform:16..64"},
            slo_text="p95_ttft=4s,p95_tpot=220ms",
            levels=_levels(_SEATS),
            default=_default(0.84, 16, 1024),
            guess=3.0,
        ),
        Pair(
            name="long-prompts",
            why="prompts far longer than answers: the token budget decides between throughput and a slow first token",
            model=_MODEL,
            device=replace(_NARROW, memory_bytes=640 * MIB),
            workload={"prompt_tokens": "uniform:300..1200", "output_tokens": "uniform:4..16"},
            slo_text="p95_ttft=2500ms,p95_tpot=320ms",
            levels=_levels(_FEW_SEATS),
            default=_default(0.88, 16, 256),
            guess=2.5,
        ),
        Pair(
            name="many-seats",
            why="short prompts and long answers: many seats share the weights, until the host is in the way",
            model=_MODEL,
            device=replace(_EDGE, host_request_s=1e-3, host_power=1.2, memory_bytes=500 * MIB, seat_bytes=250_000),
            workload={"prompt_tokens": "uniform:16..96", "output_tokens": "uniform:20..60"},
            slo_text="p95_ttft=1500ms,p95_tpot=165ms",
            levels=_levels(_MANY_SEATS),
            default=_default(0.84, 128, 2048),
            guess=5.0,
        ),
        Pair(
            name="mixed-classes",
            why="short requests among a few long ones, whose prompts hold the others up",
            model=_MODEL,
            device=_WIDE,
            workload={
                "classes": {
                    "interactive": {
                        "share": 0.9, "priority": 0, "prompt_tokens": "uniform:16..96",
                        "output_tokens": "uniform:8..32",
                    },
                    "batch": {
                        "share": 0.1, "priority": 1, "prompt_tokens": "uniform:600..1200",
                        "output_tokens": "uniform:16..48",
                    },
                }
            },
            slo_text="p95_ttft=1500ms,p95_tpot=150ms",
            levels=_levels(_SEATS),
            default=_default(0.92, 64, 1024),
            guess=4.0,
        ),
    )
}  # fmt: skip
