"""`--objective`: which names there are, at which load they can be compared, and what Optuna is told of them."""

import math
from dataclasses import dataclass, field
from typing import Any

import optuna
import pytest

from engine.errors import UserError
from tests.tuner.played_strategies import crashed, finished, seats_up_to_a_knee
from tuner.objectives import (
    DEFAULT_OBJECTIVES,
    GOODPUT,
    OBJECTIVES,
    parse_objectives,
    rank,
    require_one_load,
    told_values,
)
from tuner.settings import Settings
from tuner.space import default_space
from tuner.strategies.base import Search
from tuner.strategies.registry import STRATEGIES, WITH_ANY_OBJECTIVES, chosen, require_objectives
from tuner.trial import Trial
from workloads.metrics import Window, summarize
from workloads.spec import load_spec

TTFT = OBJECTIVES["p95_ttft"]
BOTH = (GOODPUT, TTFT)
OPEN = load_spec("chat-small")
CLOSED = load_spec("chat-small", ["arrival=closed:8"])


def test_objectives_are_read_comma_separated_and_repeated_in_the_given_order() -> None:
    assert parse_objectives([]) == DEFAULT_OBJECTIVES == (GOODPUT,)
    assert parse_objectives(["p95_ttft, goodput", "output_throughput"]) == (
        TTFT, GOODPUT, OBJECTIVES["output_throughput"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "naming"),
    [
        (["latency"], "write for example --objective goodput,p95_ttft"),
        (["p95_ttfft"], "did you mean p95_ttft"),
        (["p95_queue"], "p95_queue"),
        (["goodput,goodput"], "goodput twice"),
        (["p95_ttft", "p95_ttft"], "p95_ttft twice"),
        (["goodput,"], "empty name"),
        ([""], "empty name"),
    ],
)
def test_impossible_objectives_are_refused(texts: list[str], naming: str) -> None:
    with pytest.raises(UserError, match=naming):
        parse_objectives(texts)


def test_every_objective_is_a_number_that_a_summary_has() -> None:
    summary = summarize([], [], Window(0, 1))
    for objective in OBJECTIVES.values():
        assert objective.key in summary
        assert (objective.latency is None) == objective.larger_is_better


@pytest.mark.parametrize("names", ["goodput,p95_ttft", "p95_ttft", "output_throughput"])
def test_other_objectives_need_one_load(names: str) -> None:
    objectives = parse_objectives([names])
    with pytest.raises(UserError, match=f"--objective {names} .*give --rate"):
        require_one_load(objectives, None, OPEN)
    require_one_load(objectives, 6.0, OPEN)
    require_one_load(objectives, None, CLOSED)
    require_one_load(DEFAULT_OBJECTIVES, None, OPEN)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_that_go_by_goodput_alone_refuse_other_objectives(name: str) -> None:
    require_objectives(name, DEFAULT_OBJECTIVES)
    if name in WITH_ANY_OBJECTIVES:
        require_objectives(name, BOTH)
    else:
        with pytest.raises(UserError, match=f"--strategy {name} .*choose one of twin"):
            require_objectives(name, BOTH)


def test_a_throughput_is_freed_of_how_many_requests_arrived_and_a_latency_is_not() -> None:
    summary = {"duration": 10.0, "completed": 45, "failed": 5, "request_goodput": 4.0, "p95_ttft_ms": 300.0}
    assert GOODPUT.at_offered_rate(summary, 6.0) == pytest.approx(4.0 * 6.0 / 5.0)
    assert GOODPUT.at_offered_rate(summary, None) == 4.0
    assert TTFT.at_offered_rate(summary, 6.0) == 300.0


def with_ttft(trial: Trial, ttft_ms: float | None) -> Trial:
    trial.runs[0].meta["summary"]["p95_ttft_ms"] = ttft_ms
    return trial


def test_the_first_objective_ranks_and_the_next_breaks_ties() -> None:
    slow, fast = (with_ttft(finished(n, Settings(), 5.0, 0.0), ms) for n, ms in ((1, 400.0), (2, 200.0)))
    assert rank(fast, BOTH) > rank(slow, BOTH)
    assert rank(with_ttft(finished(3, Settings(), 5.1, 0.0), 900.0), BOTH) > rank(fast, BOTH)
    assert slow.decisive is not None
    assert rank(slow, DEFAULT_OBJECTIVES) == (0.0, slow.decisive.goodput)


def test_what_failed_is_told_as_the_worst_that_was_seen() -> None:
    seen = [with_ttft(finished(n, Settings(), 5.0, 0.0), ms) for n, ms in ((0, 400.0), (1, 700.0), (2, None))]
    failed = crashed(3, Settings())
    assert told_values(seen[0], BOTH, seen) == [5.0, 400.0]
    assert told_values(seen[2], BOTH, seen) == [5.0, 700.0]
    assert told_values(failed, BOTH, [*seen, failed]) == [0.0, 700.0]
    assert all(math.isfinite(value) for value in told_values(failed, BOTH, [failed]))


@dataclass
class SeatsCostLatency:
    """A made-up engine on which more seats give more goodput and a longer TTFT: all that meet the SLO are a front."""

    name: str
    trials: list[Trial] = field(default_factory=list)

    def play(self, count: int, seed: int) -> optuna.Study:
        """A study after so many trials."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.5, max_resident_requests=400)
        study = optuna.create_study(directions=[o.direction for o in BOTH])
        self.trials.append(self.measured(space.fixed.canonical()))
        search: Any = Search(
            study, space, seed, self.trials, lambda: len(self.trials) / count, lambda _: None, objectives=BOTH
        )
        strategy = STRATEGIES[self.name](search)
        for _ in range(count):
            settings = strategy.propose()
            assert settings is not None
            self.trials.append(self.measured(settings))
            strategy.learn(self.trials[-1])
        return study

    def measured(self, settings: Settings) -> Trial:
        """The next trial."""
        trial = finished(len(self.trials), settings, *seats_up_to_a_knee(settings))
        return with_ttft(trial, 10.0 * settings.max_num_seqs)


@pytest.mark.parametrize(
    ("name", "count"), [("tpe", 14), ("gp", 7), ("nsga2", 24), ("qmc", 8), ("random", 8), ("grid", 8)]
)
def test_a_strategy_with_two_objectives_is_told_both_and_how_far_the_slo_was_missed(name: str, count: int) -> None:
    played = SeatsCostLatency(name)
    study = played.play(count, seed=1)
    told = {t.user_attrs["trial"]: t for t in study.get_trials(deepcopy=False) if "trial" in t.user_attrs}
    assert len(told) == count + 1
    for trial in played.trials:
        run = trial.decisive
        assert run is not None
        assert told[trial.number].values == [run.goodput, run.meta["summary"]["p95_ttft_ms"]]
        assert told[trial.number].constraints == {"slo": pytest.approx(run.constraint)}
    # Optuna's own front holds none that missed the SLO.
    held = {t.number for t in played.trials if t.held}
    assert {t.user_attrs["trial"] for t in study.best_trials} <= held


def test_auto_stays_what_a_study_has_begun_with() -> None:
    assert chosen("auto") == "twin"
    assert chosen("auto", "tpe") == "tpe"
    assert chosen("gp", "tpe") == "gp"
