"""CMA-ES: what it leaves as it is, what it is told, and what it needs."""

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import UserError
from tests.tuner.played_strategies import Played
from tuner.settings import Settings
from tuner.space import Choices, Range, SearchSpace, default_space, with_search
from tuner.strategies.cmaes import CmaEs

DEFAULT = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.5, max_resident_requests=400)


def test_a_missing_package_is_named_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    hide: Any = lambda name: None if name == "cmaes" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hide)
    with pytest.raises(UserError, match="needs the Python package cmaes"):
        CmaEs.require_able(DEFAULT)


def test_fewer_than_two_ranges_are_refused() -> None:
    pytest.importorskip("cmaes")
    space = SearchSpace({"max_num_seqs": Range(4, 64), "policy": Choices(("fcfs", "sjf"))}, Settings())
    with pytest.raises(UserError, match="at least 2 ranges to search, and has max_num_seqs"):
        CmaEs.require_able(space)
    CmaEs.require_able(DEFAULT)


def test_choices_and_what_hangs_on_them_stay_as_in_the_baseline_and_are_named() -> None:
    pytest.importorskip("cmaes")
    space = with_search(replace(DEFAULT, fixed=Settings(policy="fcfs")), ["policy=fcfs,sjf", "aging=1s..1m"])
    played = Played("cmaes", space)
    assert played.said == ["cmaes searches ranges only; it keeps policy=fcfs, aging=0.0"]
    assert {(s.policy, s.aging) for s in played.play(10)} == {("fcfs", 0.0)}


def test_settings_that_miss_the_slo_are_told_as_worse_than_all_that_meet_it() -> None:
    pytest.importorskip("cmaes")
    played = Played("cmaes", DEFAULT, seed=1)
    played.play(20)
    told = {t.user_attrs["trial"]: t.value or 0.0 for t in played.study.trials}
    held = {t.number for t in played.trials if t.held}
    missed = {t.number: t for t in played.trials if t.number not in held}
    assert held
    assert missed
    assert min(told[number] for number in held) > max(told[number] for number in missed)
    for number, trial in missed.items():
        assert trial.decisive is not None
        assert told[number] == -trial.decisive.constraint
