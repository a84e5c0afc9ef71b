"""The two reports that `field_reports.py` replays: what was told, and what we take for what was not.

Lengths, arrivals and the meaning of a timeout are ours wherever a report does not say; docs/field_reports.md says why
these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports import format as text
from tuner.settings import Settings
from workloads.spec import WorkloadSpec, spec_from_dict

# A smaller relative difference is none.
NO_CHANGE = 0.02

Row = Mapping[str, float | None]
"""Figures of one step; a key is `LOAD FIGURE`, such as `busy p95_ttft`."""


COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "tokens_s": ("output tokens/s", text.count),
    "requests_min": ("requests/min", text.count),
    "mean_ttft": ("mean TTFT", text.milliseconds),
    "p95_ttft": ("p95 TTFT", text.milliseconds),
    "p99_ttft": ("p99 TTFT", text.milliseconds),
    "p95_first": ("p95 TTFT after admission", text.milliseconds),
    "p95_tpot": ("p95 TPOT", text.milliseconds),
    "p99_itl": ("p99 ITL", text.milliseconds),
    "kv": ("KV use", text.percent),
    "timeouts": ("timeouts", text.percent),
    "hits": ("prompt tokens from the cache", text.percent),
}
"""Figure to its title, and how it is written."""


def title(column: str) -> str:
    """A column's name for people."""
    load, figure = column.split()
    return f"{load}: {COLUMNS[figure][0]}"


def written(column: str, value: float | None) -> str:
    """A value of the column for people."""
    return COLUMNS[column.split()[1]][1](value)


@dataclass(frozen=True)
class Offered:
    """A load. `name` stands before its columns."""

    name: str
    meaning: str
    arrival: str
    rate: float | None = None


@dataclass(frozen=True)
class Change:
    """What was told to have changed, `before` and `after` in the column's own unit.

    Attributes:
        first: from which step on; None for the first of all. The last is the report's last.
    """

    told: str
    before: float
    after: float
    column: str
    first: str | None = None

    @property
    def label(self) -> str:
        """What of ours stands beside it."""
        return title(self.column)

    def judge(self, rows: Mapping[str, Row]) -> tuple[str, str]:
        """Ours, and whether the direction is the same."""
        steps = list(rows)
        before = rows[self.first or steps[0]][self.column]
        after = rows[steps[-1]][self.column]
        shown = f"{written(self.column, before)} → {written(self.column, after)}"
        if before is None or after is None:
            return shown, text.DASH
        if abs(after - before) <= NO_CHANGE * abs(before):
            return shown, "no change"
        return shown, "same" if (after > before) == (self.after > self.before) else "opposite"


@dataclass(frozen=True)
class Optimum:
    """Which of several values was told to be the right one.

    Attributes:
        steps: step to value, in rising order.
        knee: the right one is where a curve bends; else the smallest that reaches the least.
    """

    told: str
    column: str
    steps: Mapping[str, int]
    value: int
    knee: bool

    @property
    def label(self) -> str:
        """What of ours stands beside it."""
        return title(self.column)

    def judge(self, rows: Mapping[str, Row]) -> tuple[str, str]:
        """Ours, and whether it is the same value."""
        curve = {value: rows[step][self.column] for step, value in self.steps.items()}
        shown = ", ".join(f"{value}: {written(self.column, ours)}" for value, ours in curve.items())
        known = {value: ours for value, ours in curve.items() if ours is not None}
        if len(known) < len(curve):
            return shown, text.DASH
        if max(known.values()) - min(known.values()) <= NO_CHANGE * max(known.values()):
            return shown, "no difference"
        ours = _knee(known) if self.knee else _least(known)
        return shown, "same" if ours == self.value else f"{ours} here"


def _knee(curve: Mapping[int, float]) -> int:
    """The value at which the curve lies farthest above the line between its ends (Satopää and others, "Finding a
    'Kneedle' in a Haystack", 2011)."""
    (first, low), (last, high) = min(curve.items()), max(curve.items())
    return max(curve, key=lambda value: curve[value] - low - (high - low) * (value - first) / (last - first))


def _least(curve: Mapping[int, float]) -> int:
    least = min(curve.values())
    return min(value for value, ours in curve.items() if ours <= least * (1 + NO_CHANGE))


def _changes(told: str, before: float, after: float, *columns: str, first: str | None = None) -> list[Change]:
    """One claim, held against several of our figures."""
    return [Change(told, before, after, column, first) for column in columns]


@dataclass(frozen=True)
class Report:
    """A report from the field.

    Attributes:
        workload: prompts, outputs and shared prefixes; each load brings its arrivals.
        steps: what each changes of the start, in the report's order.
        columns: the figures to show.
        slos, study_arrival, search: what `tune` is asked; the service that they began with, and ended with.
    """

    title: str
    device: str
    workload: Mapping[str, Any]
    loads: Sequence[Offered]
    start: Settings
    steps: Mapping[str, Mapping[str, Any]]
    columns: Sequence[str]
    claims: Sequence[Change | Optimum]
    slos: Sequence[str]
    study_arrival: str
    search: Sequence[str]

    def spec(self, arrival: str, name: str) -> WorkloadSpec:
        """Its workload with these arrivals."""
        return spec_from_dict({"name": name, "arrival": arrival, **self.workload})

    def settings(self, step: str) -> Settings:
        """Those of a step."""
        return replace(self.start, **self.steps[step])


_92 = {"gpu_memory_utilization": 0.92}
_128_SEATS = {**_92, "max_num_seqs": 128}
_SPIKES = "spikes:multiplier=4,length_s=5,every_s=30"

A100 = Report(
    title="A 7B model on one 80 GB card",
    device="sim:a100-80g",
    workload={"prompt_tokens": "uniform:500..2000", "output_tokens": "uniform:200..800"},
    loads=(
        Offered("busy", "50 to 200 requests under way at all times, a new number every 10 s", "closed:50..200"),
        Offered("plateau", "3 requests/s, in spikes of 5 s every 30 s four times as many as between", _SPIKES, 3.0),
    ),
    start=Settings(gpu_memory_utilization=0.85, max_num_seqs=64, max_num_batched_tokens=2048),
    steps={
        "start": {},
        "memory 0.92": _92,
        "seats 128": _128_SEATS,
        "budget 4096": {**_128_SEATS, "max_num_batched_tokens": 4096},
        "chunk 256": {**_128_SEATS, "max_num_batched_tokens": 4096, "chunk_size": 256},
    },
    columns=(
        *("busy tokens_s", "busy kv", "busy p95_ttft", "busy p95_first", "busy p95_tpot", "busy p99_itl"),
        *("busy timeouts", "plateau p95_ttft", "plateau p95_tpot", "plateau p99_itl"),
    ),
    claims=(
        *_changes("p95 TTFT 1.8 → 0.6 s", 1800, 600, "busy p95_ttft", "busy p95_first", "plateau p95_ttft"),
        *_changes("1500 → 3200 tokens/s", 1500, 3200, "busy tokens_s"),
        *_changes("p95 TPOT from peaks over 100 to 40 to 55 ms", 100, 55, "busy p95_tpot", "busy p99_itl"),
        *_changes("p95 TPOT from peaks over 100 to 40 to 55 ms", 100, 55, "plateau p95_tpot", "plateau p99_itl"),
        *_changes("KV use 37 → 82 %", 0.37, 0.82, "busy kv"),
        *_changes("timeouts 2.3 → 0.2 %", 0.023, 0.002, "busy timeouts"),
    ),
    slos=("p95_ttft=1.8s,p95_tpot=100ms", "p95_ttft=600ms,p95_tpot=55ms"),
    study_arrival=_SPIKES,
    search=(
        *("gpu_memory_utilization=0.8..0.95", "max_num_seqs=32..256", "max_num_batched_tokens=1024..8192"),
        "chunk_size=0,128,256,512,1024",
    ),
)

_48_SEATS = {**_92, "max_num_seqs": 48}

A10 = Report(
    title="Qwen2.5-7B on one 24 GB A10",
    device="sim:a10",
    workload={
        "prompt_tokens": "uniform:400..750",
        "output_tokens": "uniform:30..90",
        "shared_prefix": {"share": 0.8, "tokens": "fixed:432", "count": 8},
    },
    loads=(
        Offered("busy", "96 requests under way at all times", "closed:96"),
        Offered("steady", "280 requests/min, Poisson", "poisson", 280 / 60),
    ),
    start=Settings(
        gpu_memory_utilization=0.85, max_num_seqs=16, max_num_batched_tokens=4096, enable_prefix_caching=False
    ),
    steps={
        "start": {},
        "memory 0.92": _92,
        "seats 32": {**_92, "max_num_seqs": 32},
        "seats 48": _48_SEATS,
        "seats 64": {**_92, "max_num_seqs": 64},
        "budget 6144": {**_48_SEATS, "max_num_batched_tokens": 6144},
        "budget 8192": {**_48_SEATS, "max_num_batched_tokens": 8192},
        "prefix caching": {**_48_SEATS, "max_num_batched_tokens": 6144, "enable_prefix_caching": True},
    },
    columns=(
        *("busy requests_min", "busy tokens_s", "busy kv", "busy p99_ttft", "busy p95_tpot", "busy hits"),
        *("steady mean_ttft", "steady p99_ttft", "steady p95_tpot", "steady hits"),
    ),
    claims=(
        *_changes("280 → 620 requests/min", 280, 620, "busy requests_min"),
        *_changes("p99 700 → 280 ms", 700, 280, "steady p99_ttft", "busy p99_ttft"),
        Optimum(
            "seats 16 → 64, knee near 48", "busy requests_min",
            {"memory 0.92": 16, "seats 32": 32, "seats 48": 48, "seats 64": 64}, 48, knee=True,
        ),
        Optimum(
            "budget 4096 → 8192, 6144 best", "steady p99_ttft",
            {"seats 48": 4096, "budget 6144": 6144, "budget 8192": 8192}, 6144, knee=False,
        ),
        *_changes("prefix caching, 60 % hits: TTFT 180 → 110 ms", 180, 110, "steady mean_ttft", first="budget 6144"),
    ),
    slos=("p99_ttft=700ms", "p99_ttft=280ms"),
    study_arrival="poisson",
    search=(
        *("gpu_memory_utilization=0.82..0.95", "max_num_seqs=16..64", "max_num_batched_tokens=2048..8192"),
        "enable_prefix_caching=true,false",
    ),
)  # fmt: skip

REPORTS = {"a100": A100, "a10": A10}
