"""The front of a study with several objectives in the reports."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from engine.errors import UserError
from reports.build import build_report, write_reports
from reports.front_chart import FrontChart
from reports.markdown import to_markdown
from reports.plots import describe, figures
from reports.study import load_study
from reports.study_view import study_report
from reports.terminal import study_summary
from reports.view import Section

OBJECTIVES = [
    {"name": "goodput", "key": "request_goodput", "title": "goodput", "unit": "good/s", "larger_is_better": True},
    {"name": "p95_ttft", "key": "p95_ttft_ms", "title": "p95 TTFT", "unit": "ms", "larger_is_better": False},
]


def point(trial: int, goodput: float, ttft_ms: float, measured: int = 2, **more: Any) -> dict[str, Any]:
    values = {"goodput": goodput, "p95_ttft": ttft_ms}
    return {"trial": trial, "values": values, "change": {"goodput": 0.5, "p95_ttft": -0.1}, "measured": measured} | more


def with_front(study: dict[str, Any]) -> None:
    """The winner and trial 1 on the front, trial 4 (infeasible trials are 2, 6, ...) no longer."""
    last = study["trials"][-1]["number"]
    study["objectives"] = OBJECTIVES
    study["front"] = {
        "default": point(0, 3.0, 500.0) | {"change": None},
        "members": [point(last, 5.9, 812.0), point(1, 4.5, 450.0, measured=1)],
        "left": [point(5, 4.4, 600.0, reason="dominated when measured again")],
    }
    for trial in study["trials"]:
        trial["values"] = {"goodput": trial["goodput"], "p95_ttft": 300.0 + 50 * trial["number"]}


def front_of(folder: Any) -> Section:
    return next(section for section in build_report(folder).sections if section.key == "front")


def test_the_front_is_a_table_with_changes_and_what_differs_from_the_default(make_study):
    section = front_of(make_study(change=with_front))
    (table,) = section.tables
    assert table.headers == ("Trial", "Goodput", "change", "p95 TTFT", "change", "Differs from the default in")
    default, winner, once = table.rows
    assert winner[:5] == ("10", "5.90 req/s", "+50.0%", "812 ms", "−10.0%")
    assert "max_num_seqs=48" in winner[5]
    assert once[0] == "1, once"
    assert default == ("default", "3.00 req/s", "", "500 ms", "", "—")
    assert table.highlight == {1}
    assert any("Trial 5" in line and "dominated when measured again" in line for line in section.text)


def test_the_front_stands_in_html_markdown_and_terminal(make_study):
    folder = make_study(change=with_front)
    html, markdown = (path.read_text(encoding="utf-8") for path in write_reports(folder))
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(study_summary(load_study(folder).study, folder))
    for text in (html, markdown, out.getvalue()):
        assert "The front" in text
        assert "812 ms" in text
    assert "Goodput and p95 TTFT of every trial" in html


def test_the_chart_shows_every_trial_in_its_part(make_study):
    (chart,) = front_of(make_study(change=with_front)).charts
    assert isinstance(chart, FrontChart)
    parts = {p.number: p.part for p in chart.points}
    assert (parts[10], parts[1], parts[5]) == ("front", "front", "left")
    assert {parts[n] for n in (2, 6)} == {"missed"}
    assert parts[0] == parts[4] == "met"
    assert [p.number for p in chart.points if p.is_default] == [0]
    assert chart.connected
    (figure,) = figures([chart])
    assert describe(chart) == "Goodput and p95 TTFT of every trial"
    front = next(trace for trace in figure.data if trace.name == "the front, by trial")
    assert list(front.text) == ["1", "10"]
    assert list(front.x) == [450.0, 812.0]


def test_a_point_far_beyond_those_that_met_the_slo_does_not_squeeze_the_front(make_study):
    def far_off(study: dict[str, Any]) -> None:
        with_front(study)
        study["trials"][2]["values"]["p95_ttft"] = 90_000.0

    section = front_of(make_study(change=far_off))
    (chart,) = section.charts
    assert isinstance(chart, FrontChart)
    assert chart.x_range[1] < 2000
    assert chart.num_outside == 1
    assert any("outside the chart" in line for line in section.text)


def test_three_objectives_give_two_charts_without_a_line(make_study):
    def third(study: dict[str, Any]) -> None:
        with_front(study)
        tpot = {"name": "p95_tpot", "key": "p95_tpot_ms", "title": "p95 TPOT", "unit": "ms", "larger_is_better": False}
        study["objectives"] = [*OBJECTIVES, tpot]
        front = study["front"]
        for entry in (front["default"], *front["members"], *front["left"], *study["trials"]):
            entry["values"]["p95_tpot"] = 40.0

    charts = front_of(make_study(change=third)).charts
    assert [describe(chart) for chart in charts] == [
        "Goodput and p95 TTFT of every trial",
        "Goodput and p95 TPOT of every trial",
    ]
    assert not any(isinstance(chart, FrontChart) and chart.connected for chart in charts)


def test_a_front_without_members_says_so_in_every_form(make_study):
    def empty(study: dict[str, Any]) -> None:
        with_front(study)
        study["front"]["members"] = []

    folder = make_study(change=empty)
    assert "there is no front" in front_of(folder).text[0]
    assert "there is no front" in to_markdown(build_report(folder))


def test_the_headline_names_the_main_objective(make_study):
    def by_latency(study: dict[str, Any]) -> None:
        study["objectives"] = OBJECTIVES[::-1]
        study["confirmation"] |= {"metric": "p95_ttft_ms", "gain": -0.2, "gain_low": -0.25, "gain_high": -0.1}

    sentence = study_report(load_study(make_study(change=by_latency))).headline.sentence
    assert "p95 TTFT −20.0% over the default settings (95% interval −25.0% to −10.0%)" in sentence


def test_trials_are_listed_by_the_main_objective(make_study):
    def by_latency(study: dict[str, Any]) -> None:
        with_front(study)
        study["objectives"] = OBJECTIVES[::-1]

    section = next(s for s in build_report(make_study(change=by_latency)).sections if s.key == "trials")
    (table,) = section.tables
    assert table.headers[:5] == ("Trial", "Verdict", "Rate held", "Goodput", "p95 TTFT")
    assert table.rows[0][0] == "0 (baseline)"
    assert table.rows[1][0] == "1"


@pytest.mark.parametrize("damage", [{"front": []}, {"objectives": [{"name": "goodput"}]}, {"front": {"members": 3}}])
def test_a_damaged_front_is_refused_by_name(make_study, damage):
    def damaged(study: dict[str, Any]) -> None:
        with_front(study)
        study |= damage

    with pytest.raises(UserError, match=f"is damaged|{next(iter(damage))}"):
        load_study(make_study(change=damaged))
