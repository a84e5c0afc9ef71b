"""Part 3 of the proof: what strategies do where much of the space fails, at the engine's start or under load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import OutOfDeviceMemory
from engine.executor.base import StepResult
from engine.scheduler.plan import StepPlan
from scripts.search_proof.capacity import fingerprint
from scripts.search_proof.goals import goal, percent, table
from scripts.search_proof.pairs import PAIRS, Pair, Point, point_of, settings_at
from scripts.search_proof.pool import Ledger, Say, make_all
from scripts.search_proof.study import SEARCHED_SHARE, Job, Played, grid_s, play
from scripts.search_proof.trajectory import run_ends_s
from scripts.search_proof.truth import TruthExecutor
from scripts.search_proof.world import WorldTarget
from tuner.settings import Settings

PAIR_NAMES = ("first-token", "long-prompts")
STRATEGIES = ("twin", "random", "tpe", "staged")
START_S = 30.0
# A start fails from these levels on (counted from 0) of memory share and token budget together.
START_FAILS_AT = {"gpu_memory_utilization": 3, "max_num_batched_tokens": 3}
# A step fails that has more tokens than this while more requests run than seats at that level.
MOST_STEP_TOKENS, MOST_RUNNING_LEVEL = 256, 2
MOST_WASTE = 0.5
LEDGER = "crashes.jsonl"
# Of the pair's guess: about what its best points hold.
_TRIED_RATE = 1.3
_CHECKS = 10
_FRESH_SEEDS = 9_000_000


class CrashingExecutor(TruthExecutor):
    """Breaks on steps that are too large while too many requests run."""

    most_running = 0

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.num_running > self.most_running and plan.num_tokens > MOST_STEP_TOKENS:
            raise RuntimeError(f"a step of {plan.num_tokens} tokens beside {plan.num_running} requests is too much")
        return super().execute(plan)


class CrashingTarget(WorldTarget):
    """A made-up device on which many settings fail."""

    def prepare(self, settings: Settings) -> None:
        if start_fails(self.pair, point_of(self.pair, settings.to_dict())):
            raise OutOfDeviceMemory("out of memory while the engine starts")
        super().prepare(settings)

    def _make_executor(self) -> TruthExecutor:
        executor = CrashingExecutor(self.pair.device, self.source.arch, self._times, self.spec.max_request_tokens)
        executor.most_running = self.pair.levels["max_num_seqs"][MOST_RUNNING_LEVEL]
        return executor


def start_fails(pair: Pair, point: Point) -> bool:
    """Whether the engine does not start with these settings."""
    values = dict(zip(pair.levels, point, strict=True))
    return all(values[name] >= pair.levels[name][level] for name, level in START_FAILS_AT.items())


def run(*, quick: bool, say: Say, folder: Path, processes: int = 1, crash_seeds: int = 10) -> dict[str, Any]:
    """Make the studies, and look at their failures and choices.

    Args:
        quick: one pair, two seeds: whether it works, not what is so.
        folder: of what is finished.
        processes: to work in.
        crash_seeds: studies per pair and strategy.
    """
    names, seeds = (PAIR_NAMES[:1], min(2, crash_seeds)) if quick else (PAIR_NAMES, crash_seeds)
    ledger = Ledger(folder / LEDGER)
    spaces = {name: _Space(name) for name in names}
    jobs = [Job(name, strategy, seed, START_S) for seed in range(seeds) for name in names for strategy in STRATEGIES]
    made = _make([*spaces.values(), *jobs], ledger, processes)
    studies = [(Played.from_dict(found["study"]), found["chosen_fails"]) for found in made[len(spaces) :]]
    for broken in (played for played, _ in studies if played.error is not None):
        say(f"{broken.job.key} broke off: {broken.error}")
    shares = {name: found["fails"] for name, found in zip(spaces, made, strict=False)}
    return judge(studies, shares)


@dataclass(frozen=True)
class _Space:
    """The share of a pair's points that fail is to be found."""

    pair: str


def _make(pieces: Sequence[_Space | Job], ledger: Ledger, processes: int) -> list[dict[str, Any]]:
    keys = {
        piece: f"{fingerprint(PAIRS[piece.pair])}/{piece.key if isinstance(piece, Job) else piece.pair}"
        for piece in pieces
    }
    return list(make_all(_work, keys, ledger, processes, "crashes, {} pieces").values())


def _work(piece: _Space | Job) -> dict[str, Any]:
    return _study(piece) if isinstance(piece, Job) else _failing_share(PAIRS[piece.pair])


def _failing_share(pair: Pair) -> dict[str, Any]:
    """Shares of the points that fail at the start, and under the load that the best of them hold."""
    points = list(pair.points())
    at_start = {point for point in points if start_fails(pair, point)}
    target = CrashingTarget(pair, seed=0)
    load = pair.lengths.load(_TRIED_RATE * pair.guess, 0)
    under_load = [
        point
        for point in points
        if point not in at_start and target.measure(settings_at(pair, point), load, pair.slo).error is not None
    ]
    return {"fails": {"at start": len(at_start) / len(points), "under load": len(under_load) / len(points)}}


def _study(job: Job) -> dict[str, Any]:
    pair = PAIRS[job.pair]
    target = CrashingTarget(pair, seed=job.seed, start_s=job.start_s)
    played = play(job, target)
    return {"study": played.to_dict(), "chosen_fails": None if played.chosen is None else _fails(pair, played.chosen)}


def _fails(pair: Pair, chosen: tuple[Point, float]) -> bool:
    """Whether settings fail at their rate in any of several runs on fresh traffic."""
    point, rate = chosen
    if start_fails(pair, point):
        return True
    target = CrashingTarget(pair, seed=_FRESH_SEEDS)
    loads = (pair.lengths.load(rate, _FRESH_SEEDS + check) for check in range(_CHECKS))
    return any(target.measure(settings_at(pair, point), load, pair.slo).error is not None for load in loads)


def waste_s(played: Played, until_s: float) -> float:
    """Time up to `until_s` that went into runs and starts that failed."""
    wasted = begin = 0.0
    for cost, end in zip(played.costs, run_ends_s(played, played.job.start_s), strict=True):
        if cost.failed:
            wasted += max(0.0, min(end, until_s) - begin)
        begin = end
    return wasted


def judge(studies: Sequence[tuple[Played, bool | None]], shares: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Choices that fail and time wasted, by strategy; waste is compared at equal time."""
    found: dict[str, dict[str, Any]] = {}
    for strategy in dict.fromkeys(played.job.strategy for played, _ in studies):
        own = [(played, fails) for played, fails in studies if played.job.strategy == strategy]
        limits = [SEARCHED_SHARE * grid_s(PAIRS[played.job.pair], START_S) for played, _ in own]
        wasted = [waste_s(played, limit) for (played, _), limit in zip(own, limits, strict=True)]
        spent = [min(limit, run_ends_s(played, START_S)[-1]) for (played, _), limit in zip(own, limits, strict=True)]
        found[strategy] = {
            "studies": len(own),
            "chosen_fails": sum(bool(fails) for _, fails in own),
            "chosen_none": sum(fails is None for _, fails in own),
            "failed_runs": sum(cost.failed for played, _ in own for cost in played.costs) / len(own),
            "wasted_s": sum(wasted) / len(own),
            "wasted_share": sum(wasted) / sum(spent),
            "broken": sum(played.error is not None for played, _ in own),
        }
    ours, random = found["twin"], found["random"]
    ratio = ours["wasted_s"] / random["wasted_s"] if random["wasted_s"] else None
    return {
        "fails": dict(shares),
        "strategies": found,
        "goals": [
            goal(
                "settings that fail are never chosen by twin",
                met=ours["chosen_fails"] == 0 and ours["chosen_none"] == 0,
                found=f"{ours['chosen_fails']} of {ours['studies']} studies; {ours['chosen_none']} chose nothing",
            ),
            goal(
                "twin wastes at most half of the time that random does on failures",
                met=ratio is not None and ratio <= MOST_WASTE,
                found="random wasted none" if ratio is None else percent(ratio, 0),
            ),
        ],
    }


def to_markdown(result: Mapping[str, Any]) -> str:
    """The tables of the results."""
    spaces = "; ".join(
        f"{name}: {', '.join(f'{percent(share, 0)} {when}' for when, share in shares.items())}"
        for name, shares in result["fails"].items()
    )
    rows = [
        [
            *(name, str(s["studies"]), str(s["broken"]), str(s["chosen_fails"]), f"{s['failed_runs']:.1f}"),
            *(f"{s['wasted_s']:.0f}", percent(s["wasted_share"])),
        ]
        for name, s in result["strategies"].items()
    ]
    head = ["strategy", "studies", "broken off", "chosen settings fail", "failed runs", "seconds wasted", "of its time"]
    lines = [
        "## Crashes",
        "",
        f"Points that fail: {spaces}. Starts take {START_S:g} s. Per study, up to {percent(SEARCHED_SHARE, 0)} of the "
        "grid's time:",
        "",
        *table(head, rows),
        "",
    ]
    return "\n".join(lines)
