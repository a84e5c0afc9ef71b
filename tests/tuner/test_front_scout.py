"""Looking for settings that widen a front: a made-up twin, whose answers are a formula, beside a made-up truth."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import optuna
import pytest

from tuner.objectives import OBJECTIVES, Objective
from tuner.settings import Settings
from tuner.space import Range, SearchSpace
from tuner.store import Run
from tuner.strategies.base import Search
from tuner.strategies.front_scout import Expected, FrontScout
from tuner.trial import Trial
from tuner.twin.twin import Played, Twin, log_excess

DEFAULT = Settings(max_num_seqs=8, max_num_batched_tokens=512)
SPACE = SearchSpace({"max_num_seqs": Range(2, 512), "max_num_batched_tokens": Range(512, 8192)}, DEFAULT)
BOTH = (OBJECTIVES["output_throughput"], OBJECTIVES["p95_tpot"])
SLOWEST_MS = 400.0
# Tokens per second, and the p95 of the TPOT in milliseconds.
Law = Callable[[Settings], tuple[float, float]]


def more_seats_are_faster_and_later(settings: Settings) -> tuple[float, float]:
    """Every number of seats is a member of the front, at 2048 tokens; other budgets only make tokens slower."""
    seats, off = settings.max_num_seqs, abs(math.log2(settings.max_num_batched_tokens / 2048))
    return 20.0 * seats**0.7, (20.0 + seats) * (1 + 0.2 * off)


@dataclass
class MadeUpTwin:
    """Answers by a law."""

    law: Law
    objectives: tuple[Objective, ...] = BOTH
    steps: int = 0

    def play(self, settings: Settings, rate: float | None) -> Played:
        self.steps += 100
        values = dict(zip(BOTH, self.law(settings), strict=True))
        late = values[BOTH[1]] / SLOWEST_MS
        told = tuple(values[objective] for objective in self.objectives)
        return Played(rate, 1.0, held=late <= 1, values=told, excess=math.log(late))


def measured(number: int, settings: Settings, law: Law, **changes: Any) -> Trial:
    tokens, delay = law(settings)
    bound = {"required_share": 0.95, "met_share": 0.99 if delay <= SLOWEST_MS else 0.5}
    summary = {"output_throughput": tokens, "p95_tpot_ms": delay, "completed": 100, "failed": 0, "duration": 10.0}
    meta: dict[str, Any] = {
        "rate": None,
        "summary": summary | {"total_output_tokens": 1000},
        "validity": {"valid": True, "checks": []},
        "stopped_early": None,
        "verdict": {"state": "undecided", "bounds": [bound | {"observed_ms": delay, "bound_ms": SLOWEST_MS}]},
    }
    return Trial(number, "search" if number else "baseline", settings, "complete", runs=[Run("r", meta | changes)])


def scout(twin: MadeUpTwin, *trials: Trial, seed: int = 0) -> Expected | None:
    directions = [objective.direction for objective in twin.objectives]
    study = optuna.create_study(directions=directions)
    search = Search(study, SPACE, seed, trials, lambda: 0.0, lambda text: None, objectives=twin.objectives)
    return FrontScout(search, cast(Twin, twin)).best_of(120, steps=10**9)


@pytest.mark.parametrize("seed", range(3))
def test_what_widens_the_front_most_is_proposed_with_what_to_expect_of_it(seed: int) -> None:
    law = more_seats_are_faster_and_later
    proposal = scout(MadeUpTwin(law), measured(0, DEFAULT, law), seed=seed)
    assert proposal is not None
    tokens, delay = law(proposal.settings)
    assert tokens > 2 * law(DEFAULT)[0]
    assert delay < SLOWEST_MS
    assert proposal.values == pytest.approx({"output_throughput": tokens, "p95_tpot": delay}, rel=0.05)


def test_an_error_that_all_settings_share_is_put_right_in_what_is_expected() -> None:
    law = more_seats_are_faster_and_later

    def wrong(settings: Settings) -> tuple[float, float]:
        return 1.2 * law(settings)[0], 0.85 * law(settings)[1]

    proposal = scout(MadeUpTwin(wrong), measured(0, DEFAULT, law))
    assert proposal is not None
    tokens, delay = law(proposal.settings)
    assert proposal.values == pytest.approx({"output_throughput": tokens, "p95_tpot": delay}, rel=0.15)


def test_what_would_miss_the_slo_promises_nothing() -> None:
    """Beyond 380 seats every token is too late, and only more tokens are asked for."""
    alone = (OBJECTIVES["output_throughput"],)
    proposal = scout(
        MadeUpTwin(more_seats_are_faster_and_later, alone), measured(0, DEFAULT, more_seats_are_faster_and_later)
    )
    assert proposal is not None
    assert 250 < proposal.settings.max_num_seqs < 400


def test_the_gain_shrinks_as_the_front_fills_up() -> None:
    law = more_seats_are_faster_and_later
    trials = [measured(0, DEFAULT, law)]
    gains = []
    for number in range(1, 9):
        proposal = scout(MadeUpTwin(law), *trials, seed=number)
        assert proposal is not None
        gains.append(proposal.gain)
        trials.append(measured(number, proposal.settings, law))
    assert gains[0] > 0.3
    assert gains[-1] < 0.1 * gains[0]


def test_while_nothing_meets_the_slo_what_most_likely_does_is_tried() -> None:
    missing = Settings(max_num_seqs=500, max_num_batched_tokens=2048)
    proposal = scout(MadeUpTwin(more_seats_are_faster_and_later), measured(0, missing, more_seats_are_faster_and_later))
    assert proposal is not None
    assert more_seats_are_faster_and_later(proposal.settings)[1] < 0.8 * SLOWEST_MS


def test_a_run_that_was_stopped_early_teaches_nothing_about_values() -> None:
    law = more_seats_are_faster_and_later
    stopped = measured(1, Settings(max_num_seqs=64), lambda s: (1.0, 9000.0), stopped_early="behind")
    alone, beside = (scout(MadeUpTwin(law), measured(0, DEFAULT, law), *more) for more in ((), (stopped,)))
    assert alone is not None
    assert beside is not None
    assert beside.values == pytest.approx(
        {o.name: v for o, v in zip(BOTH, law(beside.settings), strict=True)}, rel=0.05
    )


def test_no_more_tokens_are_expected_than_arrive() -> None:
    """At 10 requests/s of 10 tokens each, more seats cannot give more than 100 tokens/s."""
    law = more_seats_are_faster_and_later
    alone = (OBJECTIVES["output_throughput"],)
    proposal = scout(MadeUpTwin(law, alone), measured(0, Settings(max_num_seqs=4), law, rate=10.0))
    assert proposal is not None
    assert proposal.values["output_throughput"] <= 100.001


def test_the_excess_is_the_worst_bound_and_a_missing_observation_is_missed() -> None:
    met = {"observed_ms": 50.0, "bound_ms": 100.0}
    assert log_excess([met, {"observed_ms": 90.0, "bound_ms": 100.0}]) == pytest.approx(math.log(0.9))
    assert log_excess([met, {"observed_ms": None, "bound_ms": 100.0}]) > 1


def test_tokens_of_a_baseline_that_was_stopped_set_no_ceiling() -> None:
    """Its short answers ended first."""
    law = more_seats_are_faster_and_later
    alone = (OBJECTIVES["output_throughput"],)
    stopped = measured(0, Settings(max_num_seqs=4), law, rate=10.0, stopped_early="verdict settled")
    proposal = scout(MadeUpTwin(law, alone), stopped)
    assert proposal is not None
    assert proposal.values["output_throughput"] > 110


def cliff_above_20_seats(settings: Settings) -> tuple[float, float]:
    """The truth where more seats miss the SLO, of which the twin knows nothing."""
    tokens, delay = more_seats_are_faster_and_later(settings)
    return tokens, delay if settings.max_num_seqs <= 20 else 5 * SLOWEST_MS


def test_misses_that_were_stopped_early_teach_that_the_twin_is_too_kind() -> None:
    law, trials, gains = more_seats_are_faster_and_later, [measured(0, DEFAULT, cliff_above_20_seats)], []
    for number in range(1, 5):
        proposal = scout(MadeUpTwin(law), *trials, seed=number)
        assert proposal is not None
        gains.append(proposal.gain)
        late = cliff_above_20_seats(proposal.settings)[1] > SLOWEST_MS
        stopped = "verdict settled" if late else None
        trials.append(measured(number, proposal.settings, cliff_above_20_seats, stopped_early=stopped))
    assert trials[1].decisive is not None
    assert trials[1].decisive.constraint > 0
    assert sum(t.decisive is not None and t.decisive.constraint > 0 for t in trials) <= 3
    assert gains[-1] < 0.5 * gains[0]


def test_where_nothing_can_meet_the_slo_the_chance_is_not_worth_a_run() -> None:
    def hopeless(settings: Settings) -> tuple[float, float]:
        return more_seats_are_faster_and_later(settings)[0], 3 * SLOWEST_MS

    trials = [measured(n, Settings(max_num_seqs=2**n, max_num_batched_tokens=1024), hopeless) for n in (2, 4, 6, 8)]
    proposal = scout(MadeUpTwin(hopeless), *trials)
    assert proposal is None or proposal.gain < 0.01


def test_nothing_at_all_teaches_nothing_of_how_many_times_the_twin_is_wrong() -> None:
    law = more_seats_are_faster_and_later
    nothing = measured(1, Settings(max_num_seqs=450), lambda s: (0.0, 5 * SLOWEST_MS))
    proposal = scout(MadeUpTwin(law), measured(0, DEFAULT, law), nothing)
    assert proposal is not None
    assert proposal.values["output_throughput"] == pytest.approx(law(proposal.settings)[0], rel=0.05)


@pytest.mark.parametrize(("observed", "expected"), [(None, 7.0), (0.0, -7.0), (100.0, 0.0)])
def test_nothing_observed_is_the_worst_and_no_time_at_all_the_best(observed: float | None, expected: float) -> None:
    assert log_excess([{"observed_ms": observed, "bound_ms": 100.0}]) == expected
