"""The front: what is on it is not dominated, what is off it is, and luck does not keep a place on it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.front import DOMINATED, MISSED, Point, StudyFront, dominates, search_front, undominated, values_of
from tuner.objectives import DEFAULT_OBJECTIVES, GOODPUT, OBJECTIVES, Objective
from tuner.settings import Settings
from tuner.store import Run
from tuner.trial import Trial

TTFT, TPOT = OBJECTIVES["p95_ttft"], OBJECTIVES["p95_tpot"]
# Few distinct numbers, so that ties are common.
NUMBERS = st.integers(0, 4).map(float)
OBJECTIVE_SETS = st.sampled_from([(GOODPUT, TTFT), (TTFT, GOODPUT), (TTFT, TPOT), (GOODPUT, TTFT, TPOT)])


def trial(
    number: int, goodput: float, ttft_ms: float | None, tpot_ms: float | None = 1.0, missing: float = 0.0
) -> Trial:
    summary = {"duration": 10.0, "completed": 50, "failed": 0, "request_goodput": goodput}
    meta: dict[str, Any] = {
        "rate": 5.0,
        "summary": summary | {"p95_ttft_ms": ttft_ms, "p95_tpot_ms": tpot_ms},
        "validity": {"valid": True, "checks": []},
        "stopped_early": None,
        "verdict": {"state": "undecided", "bounds": [{"required_share": 0.95, "met_share": 0.95 - missing}]},
    }
    made = Trial(number, "search" if number else "baseline", Settings(max_num_seqs=number + 1))
    made.runs.append(Run(f"runs/{number}", meta))
    made.state = "complete" if made.held else "infeasible"
    return made


@given(
    st.lists(st.tuples(NUMBERS, st.none() | NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=20), OBJECTIVE_SETS
)
def test_nothing_on_the_front_is_dominated_and_everything_off_it_is_or_missed_the_slo(
    drawn: list[tuple[float, float | None, float, bool]], objectives: tuple[Objective, ...]
) -> None:
    trials = [trial(n, goodput, ttft, tpot, 0.1 * missed) for n, (goodput, ttft, tpot, missed) in enumerate(drawn)]
    front = search_front(trials, objectives)
    values = {t.number: values_of(t, objectives) for t in trials}
    held = [t for t in trials if t.held]
    assert bool(front) == bool(held)
    for t in trials:
        ours = values[t.number]
        assert ours is not None
        beaten = any(dominates(values[other.number] or {}, ours, objectives) for other in held)
        assert (t in front) == (t.held and not beaten)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12))
def test_domination_is_a_strict_order(drawn: list[tuple[float, float]]) -> None:
    objectives = (GOODPUT, TTFT)
    values = [{"goodput": a, "p95_ttft": b} for a, b in drawn]
    for one in values:
        assert not dominates(one, one, objectives)
        for other in values:
            assert not (dominates(one, other, objectives) and dominates(other, one, objectives))
    points = [Point(n, v) for n, v in enumerate(values)]
    assert undominated(undominated(points, objectives), objectives) == undominated(points, objectives)


def test_the_front_is_listed_from_the_best_by_the_first_objective() -> None:
    trials = [trial(0, 2.0, 100.0), trial(1, 4.0, 400.0), trial(2, 3.0, 200.0), trial(3, 3.0, 300.0)]
    assert [t.number for t in search_front(trials, (GOODPUT, TTFT))] == [1, 2, 0]
    assert [t.number for t in search_front(trials, (TTFT, GOODPUT))] == [0, 2, 1]


def test_a_study_of_one_objective_has_no_front() -> None:
    front = StudyFront(DEFAULT_OBJECTIVES)
    trials = [trial(0, 2.0, 100.0)]
    assert front.record(trials) == {}
    assert front.expected_runs(trials) == 0
    assert front.trial_record(trials[0]) == trials[0].to_dict()
    assert "values" in StudyFront((TTFT,)).trial_record(trials[0])


class FakeRunner:
    """Measures as a table says, by the seats of a setting; `allowed` runs are all that there is time for."""

    def __init__(self, again: dict[int, Trial], allowed: int = 100) -> None:
        self.again = {t.settings.max_num_seqs: t.runs[0] for t in again.values()}
        self.allowed = allowed
        self.seeds: list[int] = []
        self.store = self.lengths = self
        self.slo = None

    def load(self, rate: float | None, seed: int) -> tuple[float | None, int]:
        return rate, seed

    def find_run(self, settings: Settings, load: object) -> None:
        return None

    def has_time_for(self, rate: float | None) -> bool:
        return len(self.seeds) < self.allowed

    def run(self, label: str, settings: Settings, rate: float | None, seed: int, *, stop_when_settled: bool) -> Run:
        assert not stop_when_settled
        self.seeds.append(seed)
        return self.again[settings.max_num_seqs]


@pytest.fixture
def pooled_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools two runs by the means of their summaries, and judges them by the second."""

    class Side:
        def __init__(self, store: object, settings: Settings, runs: list[Run], slo: object) -> None:
            first, second = (run.meta["summary"] for run in runs)
            self.summary = {key: (first[key] + second[key]) / 2 for key in first}
            self.rate, self.meets, self.distrust = runs[0].rate, runs[1].constraint <= 0, ""

    monkeypatch.setattr("tuner.front.make_side", Side)


@pytest.mark.usefixtures("pooled_means")
def test_what_is_dominated_or_misses_the_slo_when_measured_again_leaves_the_front() -> None:
    objectives = (GOODPUT, TTFT)
    first = [trial(0, 2.0, 100.0), trial(1, 5.0, 500.0), trial(2, 4.0, 400.0), trial(3, 3.0, 300.0)]
    again = {0: first[0], 1: trial(1, 4.8, 480.0), 2: trial(2, 3.0, 800.0), 3: trial(3, 3.0, 300.0, missing=0.1)}
    runner: Any = FakeRunner(again)
    front = StudyFront(objectives)
    record = front.measured_again(runner, 7, first)["front"]
    assert set(runner.seeds) == {1007}
    assert [point["trial"] for point in record["members"]] == [1, 0]
    assert record["members"][0]["values"] == {"goodput": pytest.approx(4.9), "p95_ttft": pytest.approx(490.0)}
    assert record["members"][0]["change"] == {"goodput": pytest.approx(4.9 / 2 - 1), "p95_ttft": pytest.approx(3.9)}
    assert {point["trial"]: point["reason"] for point in record["left"]} == {2: DOMINATED, 3: MISSED}
    assert front.record(first)["front"] == record


@pytest.mark.usefixtures("pooled_means")
def test_members_without_time_for_a_second_run_stay_and_are_marked() -> None:
    first = [trial(0, 2.0, 100.0), trial(1, 5.0, 500.0), trial(2, 4.0, 400.0)]
    again = {0: first[0], 1: trial(1, 3.0, 900.0), 2: first[2]}
    runner: Any = FakeRunner(again, allowed=2)
    record = StudyFront((GOODPUT, TTFT)).measured_again(runner, 0, first)["front"]
    # Trial 1 fell behind what trial 2 had in its only run; they were not measured alike, so that decides nothing.
    assert [(point["trial"], point["measured"]) for point in record["members"]] == [(2, 1), (1, 2), (0, 2)]
    assert record["members"][0]["change"] == {"goodput": pytest.approx(1.0), "p95_ttft": pytest.approx(3.0)}
