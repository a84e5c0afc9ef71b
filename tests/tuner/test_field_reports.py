"""The replayed field reports: what stands beside what, and that the same comes out at every call."""

from dataclasses import replace
from typing import Any

import pytest

import scripts.field_reports as field_reports
from scripts.field_cases import COLUMNS, REPORTS, Change, Optimum, Report, title
from tuner.arguments import TuneArguments
from tuner.space import default_space, with_search

A10 = REPORTS["a10"]
EVERY = [pytest.param(report, id=name) for name, report in REPORTS.items()]


def rows_of(column: str, *values: float | None) -> dict[str, dict[str, float | None]]:
    return {f"step {number}": {column: value} for number, value in enumerate(values)}


@pytest.mark.parametrize("report", EVERY)
def test_every_step_is_a_setting_of_its_own(report: Report) -> None:
    settings = [report.settings(step).canonical() for step in report.steps]
    assert settings[0] == report.start
    assert len(set(settings)) == len(settings)


@pytest.mark.parametrize("report", EVERY)
def test_what_is_shown_and_compared_is_measured(report: Report) -> None:
    loads = {offered.name for offered in report.loads}
    claims = [(claim.column, getattr(claim, "steps", {})) for claim in report.claims]
    for column, steps in [*((column, {}) for column in report.columns), *claims]:
        load, figure = column.split()
        assert load in loads
        assert figure in COLUMNS
        assert set(steps) <= set(report.steps)


@pytest.mark.parametrize("report", EVERY)
def test_the_study_searches_what_the_steps_change(report: Report) -> None:
    space = default_space(report.start, [], on_gpu=True, smallest_utilization=0.8, max_resident_requests=100)
    dimensions = with_search(space, report.search).dimensions
    assert {name for changes in report.steps.values() for name in changes} <= set(dimensions)


def test_a_column_says_of_which_load_it_is() -> None:
    assert title("busy p95_ttft") == "busy: p95 TTFT"


@pytest.mark.parametrize(
    ("ours", "direction"),
    [
        ((900.0, 300.0), "same"),
        ((900.0, 1000.0), "opposite"),
        ((900.0, 890.0), "no change"),
        ((0.0, 0.0), "no change"),
        ((900.0, None), "—"),
    ],
)
def test_a_change_is_judged_by_its_direction(ours: tuple[float | None, ...], direction: str) -> None:
    claim = Change("1.8 → 0.6 s", 1800, 600, "busy p95_ttft")
    assert claim.judge(rows_of("busy p95_ttft", ours[0], 5.0, ours[1]))[1] == direction


def test_a_change_may_begin_at_a_later_step() -> None:
    rows = rows_of("busy p95_ttft", 100.0, 300.0, 200.0)
    assert Change("", 2, 1, "busy p95_ttft").judge(rows) == ("100 ms → 200 ms", "opposite")
    assert Change("", 2, 1, "busy p95_ttft", first="step 1").judge(rows) == ("300 ms → 200 ms", "same")


@pytest.mark.parametrize(
    ("knee", "ours", "verdict"),
    [
        (True, (100.0, 200.0, 300.0, 310.0), "same"),
        (True, (100.0, 250.0, 300.0, 310.0), "32 here"),
        (True, (300.0, 301.0, 302.0, 303.0), "no difference"),
        (False, (300.0, 200.0, 100.0, 200.0), "same"),
        (False, (300.0, 101.0, 100.0, 200.0), "32 here"),
        (False, (300.0, 101.0, None, 200.0), "—"),
    ],
)
def test_an_optimum_is_a_knee_or_the_least(knee: bool, ours: tuple[float | None, ...], verdict: str) -> None:
    steps = {f"step {number}": seats for number, seats in enumerate((16, 32, 48, 64))}
    claim = Optimum("48", "busy requests_min", steps, 48, knee)
    assert claim.judge(rows_of("busy requests_min", *ours))[1] == verdict


@pytest.fixture(autouse=True)
def short_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_reports, "WARMUP_S", 2.0)


def test_a_report_is_marked_simulated_and_comes_out_the_same_at_every_call() -> None:
    one, other = (field_reports.markdown(A10, *field_reports.measure(A10, 2.0)) for _ in range(2))
    assert one == other
    assert "*simulated*" in one[0]
    assert all(any(f"| {step} |" in line for line in one) for step in A10.steps)
    assert all(any(claim.told in line for line in one) for claim in A10.claims)
    assert any(line.startswith("- Doubtful: start, steady: ") for line in one)


def test_prefixes_are_hit_as_often_as_was_told_and_only_where_caching_is_on() -> None:
    report = replace(A10, steps={step: A10.steps[step] for step in ("start", "prefix caching")}, loads=A10.loads[:1])
    rows, _ = field_reports.measure(report, 15.0)
    assert rows["start"]["busy hits"] == 0.0
    assert rows["prefix caching"]["busy hits"] == pytest.approx(0.6, abs=0.05)


SETTINGS = A10.settings("seats 48").to_dict()


def study_record(rate: float | None, best: dict[str, Any] | None, claim: str | None = None) -> dict[str, Any]:
    return {
        "trials": [{"rate": rate}],
        "best": best,
        "confirmation": None if claim is None else {"text": claim},
        "options": {"space": {"max_num_seqs": [16, 64]}},
    }


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (study_record(None, None), "no setting holds it at any rate tried."),
        (
            study_record(3.2, {"settings": SETTINGS, "rate": 3.2, "is_default": True}),
            "the first step holds 3.20 requests/s, and nothing better was found.",
        ),
        (
            study_record(3.2, {"settings": SETTINGS, "rate": 4.7, "is_default": False}, "Measured again: +40%."),
            "the first step holds 3.20 requests/s; `max_num_seqs=48` holds 4.70 requests/s in the search. "
            "Measured again: +40%.",
        ),
        (
            study_record(None, {"settings": SETTINGS, "rate": 4.7, "is_default": False}),
            "the first step holds it at no rate tried; `max_num_seqs=48` holds 4.70 requests/s in the search.",
        ),
    ],
)
def test_a_study_is_told_in_a_sentence_and_claims_what_was_measured_again(
    record: dict[str, Any], sentence: str
) -> None:
    assert field_reports.found(record) == sentence


@pytest.mark.parametrize("report", EVERY)
def test_every_objective_is_one_that_tune_understands(report: Report) -> None:
    for slo in report.slos:
        assert TuneArguments(slo=[slo]).parse_slo() is not None
