"""One study of the product on a made-up device: what it did, and when."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import UserError
from scripts.search_proof.pairs import PAIRS, Pair, Point, point_of
from scripts.search_proof.world import Cost, MemoryStore, Silence, WorldTarget
from tuner.budget import Budget
from tuner.confirmation import EXPECTED_RUNS
from tuner.runner import Runner
from tuner.search import StudyOptions, Tuner

# Of the time that the whole grid takes at one run per point.
SEARCHED_SHARE = 0.06
# A study whose strategy does not look at the time is timed anew for slower starts, where fewer runs end early and more
# of them fit into the same share of the time.
SPARE = 1.15


@dataclass(frozen=True, slots=True)
class Job:
    """Which study to make.

    Attributes:
        seed: of traffic, strategy and noise.
        start_s: that a start of the engine takes.
        share: of the grid's time that baseline and search have together; None for no limit.
        trials: most settings to try beside the baseline; None for no limit.
    """

    pair: str
    strategy: str
    seed: int
    start_s: float = 0.0
    share: float | None = SEARCHED_SHARE
    trials: int | None = None

    @property
    def key(self) -> str:
        """Tells it from all others."""
        limit = f"{self.trials} trials" if self.share is None else f"{self.share:.4g}"
        return f"{self.pair}/{self.strategy}/{self.seed}/{self.start_s:g}/{limit}"


@dataclass
class Played:
    """What a study did.

    Attributes:
        costs: of its runs in order, bursts too.
        bests: whenever the recommendation changed: after how many runs, and to what; None while nothing held.
        trials: settings that were tried beside the baseline.
        thinking_s: core time from the end of each trial to the begin of the next.
        looked_at_time: the strategy asked how much time is left.
        chosen: what it recommended in the end, and at which rate; None where it recommended nothing.
        confirmation: verdict, gain, its interval, and settings, rate and goodput of both sides; None where the study
            never got there.
        error: why it broke off.
    """

    job: Job
    costs: list[Cost] = field(default_factory=list)
    bests: list[tuple[int, Point | None]] = field(default_factory=list)
    trials: int = 0
    thinking_s: float = 0.0
    looked_at_time: bool = False
    chosen: tuple[Point, float] | None = None
    confirmation: dict[str, Any] | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a line of JSON holds it."""
        return asdict(self) | {"costs": [[round(c.seconds, 2), c.started, c.failed] for c in self.costs]}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Played":
        """As read from a line of JSON."""
        bests = [(runs, None if point is None else tuple(point)) for runs, point in stored["bests"]]
        chosen = None if (held := stored["chosen"]) is None else (tuple(held[0]), held[1])
        changes = {
            "chosen": chosen,
            "job": Job(**stored["job"]),
            "costs": [Cost(*cost) for cost in stored["costs"]],
            "bests": bests,
        }
        return cls(**dict(stored) | changes)


class WatchedBudget(Budget):
    """A budget that knows whether anybody asked how much of it is left."""

    __slots__ = ("was_asked",)

    def __post_init__(self) -> None:
        # The two-argument form: dataclasses with slots are made twice, and the plain one finds the first.
        Budget.__post_init__(self)
        self.was_asked = False

    @property
    def left_s(self) -> float | None:
        self.was_asked = True
        return None if self.total_s is None else self.total_s - self.spent_s


class _Watch:
    """Looks at the record of a study whenever it is saved."""

    def __init__(self, played: Played, target: WorldTarget) -> None:
        self._played = played
        self._target = target
        self._saved_s = time.process_time()

    def look(self, record: Mapping[str, Any]) -> None:
        played, num_trials = self._played, len(record["trials"])
        if num_trials - 1 > played.trials:
            played.trials = num_trials - 1
            played.thinking_s += time.process_time() - self._saved_s
        # Once there is a confirmation, the recommendation goes by that.
        if record["confirmation"] is None:
            best = record["best"]
            point = None if best is None else point_of(self._target.pair, best["settings"])
            if not played.bests or played.bests[-1][1] != point:
                played.bests.append((len(self._target.costs), point))
        self._saved_s = time.process_time()


def grid_s(pair: Pair, start_s: float) -> float:
    """Time that the whole grid takes at one run per point."""
    return len(list(pair.points())) * (run_s(pair) + start_s)


def run_s(pair: Pair) -> float:
    """Length of a run without what it takes to drain."""
    return pair.lengths.warmup_s + pair.lengths.window_s


def play(job: Job, target: WorldTarget | None = None) -> Played:
    """Make a study: the product's own loop on a made-up device, with its baseline, search and confirmation.

    Args:
        target: in place of the pair's own.
    """
    target = target or WorldTarget(PAIRS[job.pair], seed=job.seed, start_s=job.start_s)
    pair, played = target.pair, Played(job)
    watch = _Watch(played, target)
    total_s = None
    if job.share is not None:
        # Beside it, what the study keeps for its confirmation, and the run that may begin just before that.
        kept_s = (EXPECTED_RUNS + 1) * (run_s(pair) + job.start_s)
        total_s = job.share * grid_s(pair, job.start_s) + kept_s
    budget = WatchedBudget(total_s, clock=lambda: target.spent_s)
    with tempfile.TemporaryDirectory() as scratch:
        store = MemoryStore(Path(scratch), record_of(target), on_save=watch.look)
        runner = Runner(target, store, budget, Silence(), pair.slo, pair.lengths)
        options = StudyOptions(None, job.trials, job.seed, warmup_follows_service=False, strategy=job.strategy)
        try:
            Tuner(runner, pair.space, options).run()
        except UserError as error:
            played.error = str(error)
    played.costs, played.looked_at_time = target.costs, budget.was_asked
    played.confirmation = _claim(store.record["confirmation"])
    if (best := store.record["best"]) is not None:
        played.chosen = point_of(pair, best["settings"]), best["rate"]
    return played


def record_of(target: WorldTarget) -> dict[str, Any]:
    """What stands in the record of a study before its first run."""
    return {
        "slo": target.pair.slo_text,
        "model": target.describe_model(),
        "device": target.describe_device(),
        "workload": target.spec.to_dict(),
        "simulated": target.simulated,
        "trials": [],
        "best": None,
        "confirmation": None,
    }


def _claim(confirmation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if confirmation is None:
        return None
    sides = {
        side: None
        if (held := confirmation[side]) is None
        else {key: held[key] for key in ("settings", "rate", "goodput")}
        for side in ("baseline", "winner")
    }
    return {key: confirmation[key] for key in ("verdict", "gain", "gain_low", "gain_high")} | sides
