"""What every point of a pair's grid is worth in truth: the rate that it holds in long runs, times its good share there.

In three passes, since only among the best do small differences matter: all points by short runs, the better ones by
long runs, the best by very long ones. Every point meets the same traffic, so that their order is known better than
their values.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.search_proof.pairs import PAIRS, Pair, Point, settings_at
from scripts.search_proof.pool import Say, each
from scripts.search_proof.world import WorldTarget
from tuner.settings import Settings
from tuner.targets.bundled import DOES_NOT_FIT
from workloads.driver import drive
from workloads.metrics import in_window
from workloads.plan import make_plan
from workloads.records import write_atomic

_SEED = 5_000_000
_WARMUP_S, _DRAIN_S = 10.0, 30.0
_FIRST_STEP, _LARGEST_STEP = 1.3, 2.0
# Of the rate that the default about holds: what holds less is never recommended, and counts as holding nothing.
_LEAST_SHARE = 0.4
_MOST_RUNS = 24
_POINTS_PER_PIECE = 25


@dataclass(frozen=True, slots=True)
class Pass:
    """How closely points are looked at.

    Attributes:
        share: of the best value so far that a point needs in order to be looked at.
        requests: that each run measures.
        tolerance: ratio between a rate that is held and one that is not.
    """

    share: float
    requests: int
    tolerance: float


PASSES = (Pass(0.0, 100, 1.1), Pass(0.9, 400, 1.03), Pass(0.97, 1000, 1.015))
# What studies recommended, and the best besides, are told apart by runs of their own.
FINAL = Pass(0.0, 2000, 1.01)
_BEST_BESIDES = 20
ROUGH_PASSES = (Pass(0.0, 40, 1.3),)


@dataclass(frozen=True)
class Truth:
    """The values of all points of a pair.

    Attributes:
        values: good requests per second; 0 for settings that do not fit or hold no rate.
        requests: that the runs behind each value measured.
    """

    values: dict[Point, float]
    requests: dict[Point, int]

    @property
    def optimum(self) -> float:
        """The best value, of those that are known best."""
        most = max(self.requests.values())
        return max(value for point, value in self.values.items() if self.requests[point] == most)

    def regret(self, point: Point | None) -> float:
        """How much less than the best a point is worth, as a share of it; 1 for none."""
        return 1.0 if point is None else max(0.0, 1.0 - self.values[point] / self.optimum)

    def share_within(self, regret: float) -> float:
        """Share of all points with at most that regret."""
        return sum(self.regret(point) <= regret for point in self.values) / len(self.values)


@dataclass(frozen=True)
class _Piece:
    """Some points of a pair, each with a rate near its limit, or None where nothing is known yet."""

    pair: str
    points: tuple[tuple[Point, float | None], ...]
    requests: int
    tolerance: float
    seed: int


def good_share(target: WorldTarget, settings: Settings, rate: float, requests: int, seed: int) -> tuple[float, bool]:
    """The share of good requests in one long run to its end, and whether the SLO held; 0 where the settings do not fit.

    No rule of the product's may end it early: those are right in most runs, and the truth is to be right in all.
    """
    target.restart(seed)
    try:
        target.prepare(settings)
    except DOES_NOT_FIT:
        return 0.0, False
    plan = make_plan(
        target.spec,
        rate=rate,
        seed=seed,
        vocab_size=target.source.arch.vocab_size,
        warmup_s=_WARMUP_S,
        window_s=requests / rate,
    )
    slo = target.pair.slo
    result = drive(target.engine, plan, slo=slo, drain_timeout_s=_DRAIN_S, stop_when_settled=False)
    window = in_window(result.requests)
    return sum(bool(request.good) for request in window) / max(1, len(window)), slo.judge(result.requests).meets


def capacity(
    held_at: Callable[[float], float | None], guess: float, tolerance: float, least: float = 0.0
) -> tuple[float, float]:
    """The highest rate held, and the share of good requests there; zeros where none is held that is worth anything.

    Args:
        held_at: the share of good requests at a rate, None where it is not held.
        guess: where to begin.
        tolerance: ratio between the ends of the bracket at which it is narrow enough.
        least: rates below it are of no interest.
    """
    held, missed, share, rate = 0.0, math.inf, 0.0, guess
    # Where much is asked, the guess comes from a pass before and is near.
    step = min(_FIRST_STEP, tolerance**4)
    for _ in range(_MOST_RUNS):
        found = held_at(rate)
        if found is None:
            missed = rate
        else:
            held, share = rate, found
        if missed <= least or (held and missed / held <= tolerance):
            break
        if not held:
            rate, step = missed / step, min(step**2, _LARGEST_STEP)
        elif missed == math.inf:
            rate, step = held * step, min(step**2, _LARGEST_STEP)
        else:
            rate = math.sqrt(held * missed)
    return held, share


def _values(piece: _Piece) -> list[tuple[float, float]]:
    """Rate and value of each point of a piece."""
    pair = PAIRS[piece.pair]
    found: list[tuple[float, float]] = []
    nearby = pair.guess
    for point, guess in piece.points:
        # Like every other point: the same noise and the same traffic.
        target = WorldTarget(pair, seed=piece.seed)
        settings = settings_at(pair, point)

        def held_at(rate: float, target: WorldTarget = target, settings: Settings = settings) -> float | None:
            share, held = good_share(target, settings, rate, piece.requests, piece.seed)
            return share if held else None

        rate, share = capacity(held_at, guess or nearby, piece.tolerance, _LEAST_SHARE * pair.guess)
        found.append((rate, rate * share))
        # Neighbours in the grid hold much the same.
        nearby = max(rate, pair.guess / 2)
    return found


def find_truth(pair: Pair, folder: Path, processes: int, say: Say, *, rough: bool = False) -> Truth:
    """The truth of a pair, from its file where that was made for this very pair, else found now and kept there.

    Args:
        folder: of the files.
        processes: to work in.
        rough: a rough one will do, where there is no other.
    """
    kept = _read_truth(_truth_file(pair, folder), pair)
    if kept is None and rough:
        kept = _read_truth(_truth_file(pair, folder, "rough-"), pair)
    if kept is not None:
        return kept
    truth = search_truth(pair, processes, ROUGH_PASSES if rough else PASSES)
    say(f"{pair.name}: the best of {len(truth.values)} points holds {truth.optimum:.3g} good requests/s")
    _write_truth(_truth_file(pair, folder, "rough-" if rough else ""), pair, truth)
    return truth


def settle(pair: Pair, truth: Truth, points: Iterable[Point], folder: Path, processes: int) -> Truth:
    """The truth with the last word on some points and on the best: all of them by long runs under the same traffic.

    A point that is not among them may be worth more than it seems, but none of the best of three passes is left out.

    Args:
        points: that were recommended.
        folder: of the truth's file, which is written anew.
    """
    best = sorted(truth.values, key=lambda point: truth.values[point], reverse=True)[:_BEST_BESIDES]
    chosen = [p for p in dict.fromkeys([*points, *best]) if truth.values[p] > 0 and truth.requests[p] < FINAL.requests]
    if not chosen:
        return truth
    pieces = [
        _Piece(pair.name, ((point, truth.values[point]),), FINAL.requests, FINAL.tolerance, _SEED + len(PASSES))
        for point in chosen
    ]
    found: dict[Point, float] = {}
    for piece, ((_, value),) in each(_values, pieces, processes, f"{pair.name}, last word"):
        found[piece.points[0][0]] = value
    settled = Truth(truth.values | found, truth.requests | dict.fromkeys(found, FINAL.requests))
    _write_truth(_truth_file(pair, folder), pair, settled)
    return settled


def _write_truth(path: Path, pair: Pair, truth: Truth) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [[*point, round(value, 4), truth.requests[point]] for point, value in truth.values.items()]
    lines = ",\n".join(json.dumps(row) for row in rows)
    names = json.dumps([*pair.levels, "good requests per second", "requests per run"])
    head = f'{{"made_for": "{fingerprint(pair)}", "columns": {names}, "points": ['
    write_atomic(path, f"{head}\n{lines}\n]}}\n")


def _truth_file(pair: Pair, folder: Path, kind: str = "") -> Path:
    return folder / f"{kind}truth-{pair.name}.json"


def _read_truth(path: Path, pair: Pair) -> Truth | None:
    """A truth that was kept; None where there is none, or the pair was another then."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if stored.get("made_for") != fingerprint(pair):
        return None
    return Truth(
        {tuple(point): value for *point, value, _ in stored["points"]},
        {tuple(point): requests for *point, _, requests in stored["points"]},
    )


def search_truth(pair: Pair, processes: int, passes: Sequence[Pass] = PASSES) -> Truth:
    """Find the truth of a pair, pass by pass."""
    rates: dict[Point, float] = {}
    values: dict[Point, float] = {}
    requests: dict[Point, int] = {}
    points = list(pair.points())
    for number, look in enumerate(passes):
        best = max(values.values(), default=0.0)
        chosen = [point for point in points if values.get(point, 0.0) >= look.share * best]
        guesses = [(point, rates.get(point)) for point in chosen]
        pieces = [
            _Piece(pair.name, some, look.requests, look.tolerance, _SEED + number)
            for some in (tuple(guesses[i : i + _POINTS_PER_PIECE]) for i in range(0, len(guesses), _POINTS_PER_PIECE))
        ]
        seen: dict[Point, float] = {}
        for piece, found in each(_values, pieces, processes, f"truth of {pair.name}, {len(chosen)}"):
            for (point, _), (rate, value) in zip(piece.points, found, strict=True):
                rates[point], seen[point], requests[point] = rate, value, look.requests
        values = on_one_scale(values, seen)
    return Truth(values, requests)


def on_one_scale(before: Mapping[Point, float], after: Mapping[Point, float]) -> dict[Point, float]:
    """The values of two passes together, those of the first brought to the scale of the second.

    The traffic of a pass is kinder or less kind to all points alike, so the median ratio of the points that both have
    seen holds for those that only the first has seen.
    """
    ratios = [after[point] / before[point] for point in after if before.get(point)]
    scale = median(ratios) if ratios else 1.0
    return {point: value * scale for point, value in before.items()} | dict(after)


def fingerprint(pair: Pair) -> str:
    """Changes when the pair does."""
    return hashlib.sha256(repr(pair).encode()).hexdigest()[:12]
