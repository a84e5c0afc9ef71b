"""Part 5 of the proof: a small grid on the real engine, on a CPU, and how soon strategies find its best point.

Every point of the grid is measured once at the rungs of a ladder of rates around its limit. Studies are then played on
what was measured: a run asks for a setting and a rate, and gets the stored run of the nearest rung, with its own
duration and its own steps. So all strategies meet the same measurements, and many seeds cost no machine time.
"""

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from scripts.search_proof.goals import percent, table
from scripts.search_proof.pool import Say
from scripts.search_proof.world import MemoryStore, Silence
from tuner.arguments import TuneArguments
from tuner.budget import Budget
from tuner.rate_search import readable
from tuner.runner import Runner
from tuner.search import StudyOptions, Tuner
from tuner.settings import Settings
from tuner.space import Choices, SearchSpace
from tuner.store import Run
from tuner.targets.bundled import BundledTarget, Load, Measured
from workloads.records import RunRecord, write_run
from workloads.slo import Slo

ARGUMENTS = TuneArguments(
    device="cpu",
    slo=["p95_ttft=2s,p95_tpot=150ms"],
    prompt_tokens="uniform:16..64",
    output_tokens="uniform:32..96",
    max_model_len=256,
    window="24s",
    warmup="8s",
    drain_timeout="30s",
)
LEVELS: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (2, 4, 8, 16, 32),
    "max_num_batched_tokens": (32, 128, 512),
    "chunk_size": (0, 32),
}
# A default with too few seats, so that there is something to find.
DEFAULT = Settings(max_num_seqs=4, max_num_batched_tokens=128).canonical()
# Requests per second of the first rung, and the ratio from rung to rung.
LOWEST_RATE, RUNG, RUNGS = 0.4, 1.15, 16
FIRST_RUNG = 3
# A rate that lies less than this share of a rung above one is taken for it.
_SLACK = 0.15
STRATEGIES = ("twin", "tpe", "random")
SHARES = (0.2, 0.3, 0.4, 0.6, 1.0)
_SEED = 0


def points() -> list[Settings]:
    """The points of the grid, each once."""
    combinations: Iterable[dict[str, Any]] = (
        dict(zip(LEVELS, values, strict=True)) for values in product(*LEVELS.values())
    )
    return list(dict.fromkeys(replace(DEFAULT, **values).canonical() for values in combinations))


def rate_of(rung: int) -> float:
    """Requests per second of a rung."""
    return readable(LOWEST_RATE * RUNG**rung)


def rung_of(rate: float) -> int:
    """The rung that stands for a rate: the next above, unless one lies just below."""
    return max(0, math.ceil(math.log(rate / LOWEST_RATE, RUNG) - _SLACK))


class Table:
    """What was measured: the runs of every point, by rung.

    Args:
        folder: of the runs; those that are missing are measured.
        say: told of each.
    """

    def __init__(self, folder: Path, say: Say) -> None:
        self.target = BundledTarget(ARGUMENTS.target_options(), ARGUMENTS.load_workload(), DEFAULT, say)
        slo = ARGUMENTS.parse_slo()
        assert slo is not None
        self.slo: Slo = slo
        self.lengths = ARGUMENTS.run_lengths(None)
        self.runs: dict[Settings, dict[int, RunRecord]] = {}
        self._folder, self._say = folder, say
        rung = FIRST_RUNG
        for number, settings in enumerate(points()):
            rung = self._measure(number, settings, rung)

    def _measure(self, number: int, settings: Settings, rung: int) -> int:
        """Climb or descend from a rung to the limit; the highest one held, or the lowest."""
        runs = self.runs.setdefault(settings, {})

        def held(at: int) -> bool:
            path = self._folder / f"c{number:02d}-r{at:02d}"
            if not path.exists():
                measured = self.target.measure(settings, self.lengths.load(rate_of(at), _SEED), self.slo)
                write_run(path, measured.meta, measured.requests, measured.iterations)
                self._say(f"point {number + 1} of {len(points())}, {rate_of(at)} requests/s")
            runs[at] = RunRecord.load(path)
            return Run("", runs[at].meta).held

        if held(rung):
            while rung < RUNGS and held(rung + 1):
                rung += 1
            return rung
        while rung > 0:
            rung -= 1
            if held(rung):
                break
        return rung

    def value(self, settings: Settings) -> float:
        """Good requests per second at the highest rate held; 0 where none was."""
        held = [run for record in self.runs[settings].values() if (run := Run("", record.meta)).held]
        return max((run.goodput for run in held), default=0.0)

    def find(self, settings: Settings, rung: int) -> tuple[int, RunRecord]:
        """The run nearest to a rung; whoever holds a rung holds those below, and misses those above what was missed."""
        runs = self.runs[settings]
        nearest = min(runs, key=lambda known: abs(known - rung))
        return nearest, runs[nearest]


class TableTarget(BundledTarget):
    """The engine as it was measured.

    Attributes:
        spent_s: time of the runs so far; the same run again is free.
    """

    def __init__(self, measured: Table) -> None:
        self.__dict__ |= measured.target.__dict__
        self._table = measured
        self._known: set[tuple[Settings, int]] = set()
        self.spent_s = 0.0

    def measure(self, settings: Settings, load: Load, slo: Slo | None, **options: Any) -> Measured:
        """See `BundledTarget.measure`; at the rung that stands for the rate."""
        assert load.rate is not None
        rung = rung_of(load.rate)
        nearest, record = self._table.find(settings, rung)
        if (settings, nearest) not in self._known:
            self._known.add((settings, nearest))
            steps = record.iterations
            self.spent_s += (steps["t_end"].max() - steps["t_start"].min()) / 1e9
        ratio = rate_of(rung) / rate_of(nearest) if Run("", record.meta).held else 1.0
        summary = record.meta["summary"]
        changes = {
            "rate": rate_of(rung),
            "load": {key: value for key, value in asdict(load).items() if key not in ("rate", "seed")},
            "summary": summary | {"request_goodput": (summary["request_goodput"] or 0.0) * ratio},
        }
        return Measured(record.meta | changes, record.request_records(), record.iteration_records())

    def burst(self, settings: Settings, num_requests: int, seed: int) -> tuple[float, float]:
        """A burst was not measured: the middle of the ladder stands for it, free of charge."""
        return rate_of(RUNGS // 3), 0.0


def study(measured: Table, strategy: str, seed: int, budget_s: float | None) -> list[tuple[float, Settings | None]]:
    """A study on the table: what it would have recommended, from which second on."""
    target = TableTarget(measured)
    changes: list[tuple[float, Settings | None]] = []

    def look(record: Mapping[str, Any]) -> None:
        best = record["best"]
        settings = None if best is None else Settings.from_dict(best["settings"])
        if record["confirmation"] is None and (not changes or changes[-1][1] != settings):
            changes.append((target.spent_s, settings))

    space = SearchSpace({name: Choices(values) for name, values in LEVELS.items()}, DEFAULT)
    with tempfile.TemporaryDirectory() as scratch:
        store = MemoryStore(Path(scratch), _record(target, measured.slo), on_save=look)
        budget = Budget(budget_s, clock=lambda: target.spent_s)
        runner = Runner(target, store, budget, Silence(), measured.slo, measured.lengths)
        options = StudyOptions(None, None, seed, warmup_follows_service=False, strategy=strategy)
        _SearchAlone(runner, space, options).run()
    changes.append((target.spent_s, changes[-1][1]))
    return changes


class _SearchAlone(Tuner):
    """A study that ends before its confirmation, whose fresh seeds the table does not have."""

    def _confirm(self) -> dict[str, Any]:
        return {"verdict": "skipped", "text": "", "baseline": None, "winner": None}

    def _confirmation_s(self) -> float:
        return 0.0


def _record(target: TableTarget, slo: Slo) -> dict[str, Any]:
    described = {"model": target.describe_model(), "device": target.describe_device()}
    workload = {"workload": target.spec.to_dict(), "slo": str(slo), "simulated": False}
    return described | workload | {"trials": [], "best": None, "confirmation": None}


def run(*, quick: bool, say: Say, folder: Path, seeds: int = 30) -> dict[str, Any]:
    """Measure the grid where that was not done yet (three quarters of an hour), and play studies on it.

    Args:
        folder: the runs lie in its `cpu_grid`.
        seeds: studies of each strategy.
    """
    import numpy as np

    measured = Table(folder / "cpu_grid", say)
    values = {settings: measured.value(settings) for settings in points()}
    optimum = max(values.values())
    whole_s = study(measured, "grid", 0, None)[-1][0]
    curves: dict[str, np.ndarray] = {}
    for strategy in STRATEGIES:
        say(f"{strategy}: {seeds} studies on the table")
        regrets = []
        for seed in range(2 if quick else seeds):
            changes = study(measured, strategy, seed, whole_s)
            regrets.append([_regret(changes, share * whole_s, values, optimum) for share in SHARES])
        curves[strategy] = np.array(regrets)
    return {
        "device": measured.target.describe_device(),
        "points": [{name: getattr(s, name) for name in LEVELS} | {"goodput": value} for s, value in values.items()],
        "optimum": optimum,
        "default": values[DEFAULT],
        "grid_s": whole_s,
        "shares": list(SHARES),
        "seeds": 2 if quick else seeds,
        "strategies": {
            name: {"median": np.median(curve, axis=0).tolist(), "worst": curve.max(axis=0).tolist(),
                   "mean": curve.mean(axis=0).tolist()}
            for name, curve in curves.items()
        },
        "tests": {name: _p_values(curves["twin"], curves[name]) for name in STRATEGIES if name != "twin"},
        "goals": [],
    }  # fmt: skip


def _regret(
    changes: Sequence[tuple[float, Settings | None]], at_s: float, values: Mapping[Settings, float], optimum: float
) -> float:
    known = [settings for since_s, settings in changes if since_s <= at_s]
    chosen = known[-1] if known else None
    return 1.0 if chosen is None else 1.0 - values[chosen] / optimum


def _p_values(ours: Any, theirs: Any) -> list[float]:
    from scripts.search_proof.comparison import paired_p

    return [
        p if (p := paired_p(dict(enumerate(ours[:, i])), dict(enumerate(theirs[:, i])))) is not None else 1.0
        for i in range(ours.shape[1])
    ]


def to_markdown(result: Mapping[str, Any]) -> str:
    """The section of the page."""
    head = ["median regret (mean) after", *(f"{percent(share, 0)} of the grid's time" for share in result["shares"])]
    rows = [
        [name, *(f"{percent(m)} ({percent(a)})" for m, a in zip(found["median"], found["mean"], strict=True))]
        for name, found in result["strategies"].items()
    ]
    tests = "; ".join(
        f"against {name} p = {', '.join(f'{p:.2g}' for p in p_values)}" for name, p_values in result["tests"].items()
    )
    lines = [
        "## The real engine: a small grid on a CPU",
        "",
        f"{len(result['points'])} points, measured one by one on {result['device']['name']} "
        f"({result['grid_s'] / 60:.0f} minutes as `--strategy grid` goes through them); "
        f"{result['seeds']} studies of each strategy were played on these measurements, rates rounded to rungs of "
        f"{RUNG:g}. The best point gives {result['optimum']:.2f} good requests/s, the default {result['default']:.2f}. "
        "The values are single runs: a rung up or down is within their noise.",
        "",
        *table(head, rows),
        "",
        f"Wilcoxon, one-sided, twin at the same times: {tests}.",
        "",
        *table(
            ["seats", "token budget", "chunk", "good requests/s"],
            [
                [str(p["max_num_seqs"]), str(p["max_num_batched_tokens"]), str(p["chunk_size"] or "off"),
                 f"{p['goodput']:.2f}"]
                for p in result["points"]
            ],
        ),
        "",
    ]  # fmt: skip
    return "\n".join(lines)
