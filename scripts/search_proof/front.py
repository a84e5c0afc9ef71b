"""Part 6 of the proof: how much of the front of two objectives each strategy has found after how many settings."""

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from scripts.search_proof.capacity import fingerprint
from scripts.search_proof.comparison import holm, paired_p
from scripts.search_proof.goals import goal, p_value, percent, table
from scripts.search_proof.pairs import PAIRS, Pair, Point, point_of, settings_at
from scripts.search_proof.pool import Ledger, Say, make_all
from scripts.search_proof.study import record_of
from scripts.search_proof.world import MemoryStore, Silence, WorldTarget
from tuner.budget import Budget
from tuner.front import search_front
from tuner.objectives import OBJECTIVES
from tuner.runner import Runner
from tuner.search import StudyOptions, Tuner

# What makes one better tends to make the other worse.
BOTH = (OBJECTIVES["p95_ttft"], OBJECTIVES["p95_tpot"])
STRATEGIES = ("twin", "tpe", "random")
# Of the pair's guess at what its default holds: where the SLO leaves room to choose by the objectives.
LOAD = 0.75
TRIALS = 10
# After how many the fronts are compared, beside the baseline; the goal is about the one in the middle.
LOOKED_AT, DECIDES = (2, 5, TRIALS), 5
MOST_P = 0.01
TRUTH_REQUESTS, TRUTH_SEEDS = 1500, 8_000_000
# A point that misses the SLO in truth is no member of anything.
Values = tuple[float, float] | None
LEDGER = "front.jsonl"


@dataclass(frozen=True)
class FrontJob:
    """A study to make, or (without a strategy) a point of which the truth is wanted."""

    pair: str
    strategy: str = ""
    seed: int = 0
    point: Point = ()

    @property
    def key(self) -> str:
        what = f"{self.strategy}/{self.seed}/{TRIALS}" if self.strategy else f"{self.point}"
        return f"{fingerprint(PAIRS[self.pair])}/{self.pair}/{what}"


def run(*, quick: bool, say: Say, folder: Path, processes: int = 1, front_seeds: int = 4) -> dict[str, Any]:
    """Make the studies, then measure every setting of their fronts at length.

    Args:
        quick: one pair, one seed: whether it works, not what is so.
        folder: of what is finished.
        processes: to work in.
        front_seeds: studies per pair and strategy.
    """
    names, seeds = (list(PAIRS)[:1], 1) if quick else (list(PAIRS), front_seeds)
    ledger = Ledger(folder / LEDGER)
    jobs = [FrontJob(name, strategy, seed) for seed in range(seeds) for name in names for strategy in STRATEGIES]
    studies = make_all(_work, {job: job.key for job in jobs}, ledger, processes, "fronts, {}")
    for job, study in studies.items():
        if study["error"]:
            say(f"{job.key} broke off: {study['error']}")
    seen = {
        FrontJob(job.pair, point=tuple(point))
        for job, study in studies.items()
        for front in study["fronts"]
        for point in front
    }
    points = {job: job.key for job in sorted(seen, key=lambda job: job.key)}
    truths = make_all(_work, points, ledger, processes, "true values, {}")
    return judge(studies, {(job.pair, job.point): _values(found["values"]) for job, found in truths.items()})


def _work(job: FrontJob) -> dict[str, Any]:
    return study_of(job) if job.strategy else {"values": true_values(PAIRS[job.pair], job.point)}


def study_of(job: FrontJob) -> dict[str, Any]:
    """The front after each of `LOOKED_AT`, as points, by what the search had measured; and how many it tried."""
    pair, error = PAIRS[job.pair], None
    target = WorldTarget(pair, seed=job.seed)
    with tempfile.TemporaryDirectory() as scratch:
        store = MemoryStore(Path(scratch), record_of(target), on_save=lambda record: None)
        runner = Runner(target, store, Budget(None, clock=lambda: target.spent_s), Silence(), pair.slo, pair.lengths)
        options = StudyOptions(
            LOAD * pair.guess,
            TRIALS,
            job.seed,
            warmup_follows_service=False,
            strategy=job.strategy,
            objectives=BOTH,
        )
        tuner = Tuner(runner, pair.space, options)
        try:
            tuner.run()
        except UserError as caught:
            error = str(caught)
    fronts = [
        [point_of(pair, trial.settings.to_dict()) for trial in search_front(tuner.trials[: 1 + tried], BOTH)]
        for tried in LOOKED_AT
    ]
    return {"fronts": fronts, "trials": len(tuner.trials) - 1, "error": error}


def true_values(pair: Pair, point: Point) -> Values:
    """The objectives in one long run on fresh traffic; None where that misses the SLO."""
    rate = LOAD * pair.guess
    load = replace(pair.lengths.load(rate, TRUTH_SEEDS), window_s=TRUTH_REQUESTS / rate)
    target = WorldTarget(pair, seed=TRUTH_SEEDS)
    measured = target.measure(settings_at(pair, point), load, pair.slo, stop_when_settled=False)
    if measured.error is not None or not pair.slo.judge(measured.requests).meets:
        return None
    ttft, tpot = (objective.measured(measured.meta["summary"]) for objective in BOTH)
    return None if ttft is None or tpot is None else (ttft, tpot)


def volume(members: Iterable[Values], behind: tuple[float, float]) -> float:
    """Area that latencies dominate, both as logarithms, before a corner; 0 for those beyond it."""
    area, lowest = 0.0, math.log(behind[1])
    for ttft, tpot in sorted(value for value in members if value is not None):
        wide, high = math.log(behind[0] / ttft), lowest - math.log(tpot)
        if wide > 0 and high > 0:
            area += wide * high
            lowest = math.log(tpot)
    return area


def judge(studies: Mapping[FrontJob, Mapping[str, Any]], truths: Mapping[tuple[str, Point], Values]) -> dict[str, Any]:
    """Shares of the volume that all studies together found, and whether the twin's are larger."""
    import numpy as np

    shares: dict[str, dict[tuple[str, int], list[float]]] = {}
    whole: dict[str, tuple[tuple[float, float], float]] = {}
    for name in dict.fromkeys(job.pair for job in studies):
        found = [value for (pair, _), value in truths.items() if pair == name and value is not None]
        if not found:
            continue  # nobody recommended anything that truly meets the SLO
        # A factor e behind the worst that anybody recommended.
        behind = math.e * max(ttft for ttft, _ in found), math.e * max(tpot for _, tpot in found)
        whole[name] = behind, volume(found, behind)
    for job, study in ((job, study) for job, study in studies.items() if job.pair in whole):
        behind, all_of_it = whole[job.pair]
        shares.setdefault(job.strategy, {})[job.pair, job.seed] = [
            volume((truths[job.pair, tuple(point)] for point in front), behind) / all_of_it for front in study["fronts"]
        ]
    place = LOOKED_AT.index(DECIDES)
    left = {
        strategy: {study: 1 - values[place] for study, values in by_study.items()}
        for strategy, by_study in shares.items()
    }
    tests = holm({other: paired_p(left["twin"], left[other]) for other in left if other != "twin"})
    tried = {s: [study["trials"] for job, study in studies.items() if job.strategy == s] for s in shares}
    met = all(p is not None and p < MOST_P for p in tests.values())
    return {
        "studies": len(studies),
        "strategies": {
            strategy: {
                "medians": np.median(list(by_study.values()), axis=0).tolist(),
                "worst": np.min(list(by_study.values()), axis=0).tolist(),
                "trials": float(np.mean(tried[strategy])),
            }
            for strategy, by_study in shares.items()
        },
        "p_holm": tests,
        "goals": [
            goal(
                f"two objectives: after {DECIDES} settings twin has more of the front than the others at p < {MOST_P}",
                met=met,
                found=", ".join(f"{other} {p_value(p)}" for other, p in tests.items()),
            )
        ],
    }


def to_markdown(result: Mapping[str, Any]) -> str:
    """The table of the results."""
    rows = [
        [
            *(strategy, *(percent(share) for share in s["medians"]), percent(s["worst"][-1])),
            *(f"{s['trials']:.1f}", p_value(result["p_holm"].get(strategy))),
        ]
        for strategy, s in result["strategies"].items()
    ]
    head = ["strategy", *(f"after {tried}" for tried in LOOKED_AT), "worst in the end", "settings tried", "p (Holm)"]
    lines = [
        "## Two objectives",
        "",
        f"`--objective {','.join(objective.name for objective in BOTH)}` at {percent(LOAD, 0)} of what the default "
        f"about holds, {result['studies']} studies. Share of the volume that all studies together found (latencies as "
        f"logarithms, from a factor e behind the worst), by true values: runs of {TRUTH_REQUESTS} fresh requests. "
        f"The median after so many settings beside the default; the test is after {DECIDES}:",
        "",
        *table(head, rows),
        "",
    ]
    return "\n".join(lines)


def _values(stored: Sequence[float] | None) -> Values:
    return None if stored is None else (stored[0], stored[1])
