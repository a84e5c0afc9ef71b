"""The regret part from end to end, with made-up studies in place of those that take minutes."""

from pathlib import Path
from typing import Any

import pytest

from scripts.search_proof import capacity, regret
from scripts.search_proof.capacity import Truth
from scripts.search_proof.pairs import Pair
from scripts.search_proof.study import Job, Played
from scripts.search_proof.world import Cost


def made_up_truth(pair: Pair, *_: Any) -> Truth:
    points = list(pair.points())
    return Truth({point: 1.0 + place for place, point in enumerate(points)}, dict.fromkeys(points, 800))


class Plays:
    """Studies in which twin finds the best point and staged asks for the time; counts them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, job: Job) -> dict[str, Any]:
        self.jobs.append(job)
        points = list(capacity.PAIRS[job.pair].points())
        found = points[-1] if job.strategy == "twin" else points[-10 - job.seed]
        bests: list[Any] = [(0, None), (1, points[300]), (2, found)]
        costs = [Cost(30.0, True), Cost(30.0, True)]
        return Played(job, costs, bests, trials=1, looked_at_time=job.strategy == "staged").to_dict()


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> Plays:
    plays = Plays()
    monkeypatch.setattr(regret, "_play", plays)
    monkeypatch.setattr(capacity, "search_truth", made_up_truth)
    return plays


def run(folder: Path) -> dict[str, Any]:
    return regret.run(quick=True, say=lambda text: None, folder=folder, seeds=2)


def test_only_strategies_that_saw_the_time_are_played_again_with_other_starts(plays: Plays, tmp_path: Path) -> None:
    run(tmp_path)
    again = {job.strategy for job in plays.jobs if job.start_s > 0}
    assert again == {"staged"}
    assert len({job.key for job in plays.jobs}) == len(plays.jobs) == 2 * 2 * (4 + 1)


def test_a_rerun_goes_on_from_what_was_kept(plays: Plays, tmp_path: Path) -> None:
    first = run(tmp_path)
    plays.jobs.clear()
    assert run(tmp_path) == first
    assert plays.jobs == []


def test_results_say_who_was_better_and_are_written_for_people(plays: Plays, tmp_path: Path) -> None:
    result = run(tmp_path)
    for found in result["starts"].values():
        assert found["strategies"]["twin"]["median_at_limit"] == 0.0
        assert found["strategies"]["random"]["median_at_limit"] > 0.01
        assert set(found["tests"]) == {"random", "tpe", "staged"}
    text = regret.to_markdown(result)
    for chart in (regret.PAIRS_CHART, regret.STARTS_CHART):
        assert (tmp_path / chart).exists()
        assert f"({tmp_path.name}/{chart})" in text
    assert [goal["met"] for goal in result["goals"]][::2] == [True] * len(result["starts"])
