"""Looking for settings on a twin: a made-up one, whose answers are a formula, beside a made-up truth."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import optuna
import pytest

from tuner.objectives import DEFAULT_OBJECTIVES, rank
from tuner.settings import Settings
from tuner.space import Range, SearchSpace
from tuner.store import Run
from tuner.strategies.base import Search
from tuner.strategies.scout import Proposal, Scout
from tuner.targets.bundled import Load
from tuner.trial import Trial
from tuner.twin.twin import RUNG, Played, Twin

DEFAULT = Settings(max_num_seqs=8, max_num_batched_tokens=512)
SPACE = SearchSpace({"max_num_seqs": Range(8, 512), "max_num_batched_tokens": Range(512, 8192)}, DEFAULT)
Limit = Callable[[Settings], float]


def peak_at_64_seats(settings: Settings) -> float:
    """Requests per second held: best at 64 seats and 2048 tokens."""
    seats = math.log2(settings.max_num_seqs / 64)
    tokens = math.log2(settings.max_num_batched_tokens / 2048)
    return 10 * math.exp(-0.1 * seats**2 - 0.05 * tokens**2)


@dataclass
class MadeUpTwin:
    """Holds every rate up to what a formula says, under other traffic than the study's what another says."""

    limit: Limit
    elsewhere: Limit | None = None
    steps: int = 0
    asked: list[Settings] = field(default_factory=list)
    load: Load = field(default_factory=lambda: Load(5.0, 0, 1.0, 10.0, 10.0))

    def under(self, seed: int, requests: int) -> "MadeUpTwin":
        return replace(self, limit=self.elsewhere or self.limit, load=replace(self.load, seed=seed))

    def play(self, settings: Settings, rate: float | None) -> Played:
        raise AssertionError("rates are searched here")

    def climb(self, settings: Settings, start: float, *, down: bool = True) -> Played | None:
        self.asked.append(settings)
        self.steps += 100
        limit = self.limit(settings)
        if not down and limit < start:
            return Played(None, 0.5 * limit, held=False)
        rung = RUNG ** math.floor(math.log(limit, RUNG))
        return Played(rung, rung, held=True)


def trial_at(number: int, settings: Settings, held: float | None, missed: float | None) -> Trial:
    """A trial that held one rate and missed another."""
    rates = [(rate, was_held) for rate, was_held in ((held, True), (missed, False)) if rate is not None]
    runs = []
    for rate, was_held in rates:
        bound = {"required_share": 0.95, "met_share": 1.0 if was_held else 0.5}
        meta: dict[str, Any] = {
            "rate": rate,
            "summary": {
                "request_goodput": rate if was_held else 0.5 * rate,
                "completed": 100,
                "failed": 0,
                "duration": 100 / rate,
            },
            "validity": {"valid": True, "checks": []},
            "stopped_early": None,
            "verdict": {"state": "undecided", "bounds": [bound]},
        }
        runs.append(Run(f"runs/{number}-{rate}", meta))
    trial = Trial(number, "search" if number else "baseline", settings, runs=runs)
    trial.state = "complete" if trial.held else "infeasible"
    return trial


def measured(number: int, settings: Settings, limit: Limit) -> Trial:
    """A trial that bracketed the true limit."""
    return trial_at(number, settings, limit(settings) / 1.02, limit(settings) * 1.02)


def scout(twin: MadeUpTwin, *trials: Trial, seed: int = 0) -> Proposal | None:
    study = optuna.create_study(direction="maximize")
    search = Search(study, SPACE, seed, trials, lambda: 0.0, lambda text: None)
    return Scout(search, cast(Twin, twin)).best_of(120, steps=10**9)


@pytest.mark.parametrize("seed", range(5))
def test_a_twin_that_is_right_leads_to_the_best_settings_at_once(seed: int) -> None:
    proposal = scout(MadeUpTwin(peak_at_64_seats), measured(0, DEFAULT, peak_at_64_seats), seed=seed)
    assert proposal is not None
    assert peak_at_64_seats(proposal.settings) > 9.7
    assert proposal.rate == pytest.approx(peak_at_64_seats(proposal.settings), rel=0.05)
    assert proposal.gain > 0.5


def test_an_error_that_all_settings_share_changes_the_rate_that_is_expected_and_not_the_choice() -> None:
    twice = MadeUpTwin(lambda settings: 2 * peak_at_64_seats(settings))
    proposal = scout(twice, measured(0, DEFAULT, peak_at_64_seats))
    assert proposal is not None
    assert peak_at_64_seats(proposal.settings) > 9.7
    assert proposal.rate is not None
    assert proposal.rate < 1.4 * peak_at_64_seats(proposal.settings)


@pytest.mark.parametrize("seed", range(3))
def test_where_the_twin_has_flattered_settings_it_is_not_believed_again(seed: int) -> None:
    """It thinks that more than 100 seats hold half as much again; one such setting was measured, and does not."""

    def flattering(settings: Settings) -> float:
        return peak_at_64_seats(settings) * (1.8 if settings.max_num_seqs > 100 else 1.0)

    known = [measured(0, DEFAULT, peak_at_64_seats), measured(1, Settings(max_num_seqs=48), peak_at_64_seats)]
    first = scout(MadeUpTwin(flattering), *known, seed=seed)
    assert first is not None
    assert first.settings.max_num_seqs > 100
    tried = [measured(2 + i, Settings(max_num_seqs=seats), peak_at_64_seats) for i, seats in enumerate((128, 224))]
    second = scout(MadeUpTwin(flattering), *known, *tried, seed=seed)
    assert second is not None
    assert second.gain < 0.5 * first.gain


def test_a_rate_that_was_missed_bounds_what_is_expected_near_it() -> None:
    """The twin says 10 for 64 seats; a run there missed 6, and nothing was held."""
    known = measured(0, DEFAULT, peak_at_64_seats)
    best = Settings(max_num_seqs=64, max_num_batched_tokens=2048)
    before = scout(MadeUpTwin(peak_at_64_seats), known)
    after = scout(MadeUpTwin(peak_at_64_seats), known, trial_at(1, best, None, 6.0))
    assert before is not None
    assert after is not None
    assert after.gain < before.gain


def test_nothing_is_promised_where_the_best_is_known_and_the_twin_was_right() -> None:
    around = [
        (64, 2048),
        (56, 2048),
        (80, 2048),
        (64, 1536),
        (64, 3072),
        (48, 1536),
        (96, 3072),
        (40, 2048),
        (112, 2048),
    ]
    tried = [
        measured(1 + i, Settings(max_num_seqs=seats, max_num_batched_tokens=tokens), peak_at_64_seats)
        for i, (seats, tokens) in enumerate(around)
    ]
    proposal = scout(MadeUpTwin(peak_at_64_seats), measured(0, DEFAULT, peak_at_64_seats), *tried)
    assert proposal is None or proposal.gain < 0.02


def test_neighbours_of_what_failed_are_passed_over() -> None:
    failed = Trial(1, "search", Settings(max_num_seqs=64, max_num_batched_tokens=2048))
    failed.fail("no memory left", "OutOfDeviceMemory")
    failed.state = "failed"
    twin = MadeUpTwin(peak_at_64_seats)
    proposal = scout(twin, measured(0, DEFAULT, peak_at_64_seats), failed)
    assert proposal is not None
    more = (s.max_num_seqs >= 64 and s.max_num_batched_tokens >= 2048 for s in (proposal.settings, *twin.asked))
    assert not any(more)


def test_while_nothing_holds_the_slo_what_the_twin_thinks_best_is_tried() -> None:
    proposal = scout(MadeUpTwin(peak_at_64_seats), trial_at(0, DEFAULT, None, 5.0))
    assert proposal is not None
    assert peak_at_64_seats(proposal.settings) > 9.5
    assert proposal.gain > 1


def test_the_same_seed_and_the_same_results_lead_to_the_same_proposal() -> None:
    known = measured(0, DEFAULT, peak_at_64_seats)
    assert scout(MadeUpTwin(peak_at_64_seats), known, seed=3) == scout(MadeUpTwin(peak_at_64_seats), known, seed=3)


def test_a_proposal_ends_when_its_steps_are_played() -> None:
    twin = MadeUpTwin(peak_at_64_seats)
    study = optuna.create_study(direction="maximize")
    known = (measured(0, DEFAULT, peak_at_64_seats),)
    looking = Scout(Search(study, SPACE, 0, known, lambda: 0.0, lambda text: None), cast(Twin, twin))
    looking.best_of(120, steps=1000)
    assert looking.num_played == 10


def kind_to_many_seats(settings: Settings) -> float:
    """The few requests of the study's runs are kind to many seats, and unkind to 64."""
    kindness = 1.3 if settings.max_num_seqs > 100 else 0.9 if settings.max_num_seqs >= 40 else 1.0
    return kindness * peak_at_64_seats(settings)


@pytest.mark.parametrize("seed", range(3))
def test_settings_that_only_the_studys_own_traffic_is_kind_to_are_not_proposed(seed: int) -> None:
    twin = MadeUpTwin(kind_to_many_seats, elsewhere=peak_at_64_seats)
    proposal = scout(twin, measured(0, DEFAULT, kind_to_many_seats), seed=seed)
    assert proposal is not None
    assert peak_at_64_seats(proposal.settings) > 9.5
    assert proposal.rate == pytest.approx(kind_to_many_seats(proposal.settings), rel=0.05), "runs see that traffic"


def test_the_best_is_what_holds_most_under_much_traffic_not_the_luckiest() -> None:
    lucky, good = Settings(max_num_seqs=128), Settings(max_num_seqs=64)
    trials = [measured(i, s, kind_to_many_seats) for i, s in enumerate((DEFAULT, lucky, good))]
    assert max(trials, key=lambda t: rank(t, DEFAULT_OBJECTIVES)).settings == lucky
    scout(MadeUpTwin(kind_to_many_seats, elsewhere=peak_at_64_seats), *trials)
    assert max(trials, key=lambda t: rank(t, DEFAULT_OBJECTIVES)).settings == good
    assert trials[1].luck == pytest.approx(math.log(1.3), abs=0.04)
    assert [t.expected for t in trials] == [pytest.approx(peak_at_64_seats(t.settings), rel=0.06) for t in trials]
