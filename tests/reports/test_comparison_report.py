"""The report of a comparison."""

import json
import shutil
from io import StringIO

import pytest
from rich.console import Console

from engine.errors import UserError
from reports.build import build_report, write_reports
from reports.comparison import sustained_throughput
from reports.format import DASH
from reports.terminal import comparison_summary
from reports.view import Report, Tone
from workloads.records import RunRecord


def section(report: Report, key: str):
    return next(s for s in report.sections if s.key == key)


def rows(report: Report, title: str) -> dict[str, tuple[str, ...]]:
    found = next(t for t in section(report, "comparison").tables if t.headers[0] == title)
    return {row[0]: row[1:] for row in found.rows}


def edit_runs(folder, **summaries):
    """Puts numbers into the summaries of the runs, one per run in the order in which they were made."""
    for i, path in enumerate(sorted((folder / "runs").iterdir())):
        meta = json.loads((path / "run.json").read_text())
        meta["summary"] |= {key: values[i] for key, values in summaries.items()}
        (path / "run.json").write_text(json.dumps(meta))


def test_the_values_stand_beside_each_other_with_multiples_of_the_first(make_comparison):
    folder = make_comparison(rate=9.0)
    edit_runs(folder, request_throughput=[4.0, 6.0], p95_ttft_ms=[200.0, 100.0])
    report = build_report(folder)
    assert rows(report, "Throughput")["Requests"] == ("4.00 req/s", "6.00 req/s (×1.50)")
    assert rows(report, "Latency")["p95 TTFT"] == ("200 ms", "100 ms (×0.50)")
    assert "range of the runs" not in rows(report, "Latency")
    assert rows(report, "In the engine")["Preemptions by swap"] == ("0", "0")


def test_repeats_give_the_median_and_its_range(make_comparison):
    folder = make_comparison(repeats=3, rate=9.0)
    edit_runs(folder, request_throughput=[1.0, 5.0, 2.0, 5.0, 9.0, 5.0])
    report = build_report(folder)
    throughput = next(t for t in section(report, "comparison").tables if t.headers[0] == "Throughput")
    assert throughput.rows[0] == ("Requests", "2.00 req/s", "5.00 req/s (×2.50)")
    assert throughput.rows[1] == ("range of the runs", "1.00 to 9.00 req/s", "5.00 to 5.00 req/s")


def test_the_headline_names_the_fastest_and_the_soonest_with_their_ranges(make_comparison):
    report = build_report(make_comparison(repeats=2, rate=9.0))
    assert report.headline.tone is Tone.NEUTRAL
    said = report.headline.sentence
    assert said.startswith("batching: continuous had the highest output throughput, ")
    assert "over the lowest, " in said
    assert "with static; the lowest p95 TTFT came with continuous" in said
    assert "within the spread" not in said


def test_ranges_that_overlap_are_called_the_spread_of_the_runs(make_comparison):
    folder = make_comparison(repeats=2, rate=9.0)
    edit_runs(folder, p95_ttft_ms=[100.0, 130.0, 150.0, 170.0])
    said = build_report(folder).headline.sentence
    assert "125 ms (100 to 150 ms), no different from static within the spread of the runs." in said


def test_values_that_are_equal_to_the_last_digit_are_named_together(make_comparison):
    folder = make_comparison(rate=9.0)
    edit_runs(folder, p95_ttft_ms=[100.0, 100.0])
    assert build_report(folder).headline.sentence.endswith("came with continuous, 100 ms, as with static.")


def test_equal_throughput_is_not_ranked(make_comparison):
    said = build_report(make_comparison(values=("recompute", "swap"), option="preemption_mode", rate=2.0)).headline
    assert "the same output throughput with every value, about " in said.sentence
    assert "all that this load asks for" in said.sentence
    assert any("One run per value" in notice for notice in said.notices)


@pytest.mark.parametrize(("rate", "falls_behind"), [(9.0, True), (3.0, False)])
def test_sustained_output_is_what_came_within_the_window_but_never_backlog_of_the_warm_up(make_run, rate, falls_behind):
    run = RunRecord.load(make_run(rate=rate))
    window = run.meta["window"]
    times = [time for request in run.request_records() for time in request.chunk_times]
    within = sum(window["start_ns"] <= time < window["end_ns"] for time in times) / 12
    its_own = run.meta["summary"]["output_throughput"]
    assert (within < its_own) == falls_behind
    assert sustained_throughput(run) == pytest.approx(min(within, its_own))


def test_latencies_of_a_value_that_turns_requests_away_are_called_flattered(make_comparison):
    folder = make_comparison(option="max_queue_len", values=(0, 2), rate=20.0, max_num_seqs=8)
    notices = build_report(folder).headline.notices
    assert any("not completed were " in notice and "with 2" in notice for notice in notices)
    assert rows(build_report(folder), "In the engine")["Turned away on arrival"][1] != "0"


def test_a_missing_a_damaged_and_an_invalid_run_are_listed_and_the_rest_is_shown(make_comparison):
    folder = make_comparison(repeats=2, rate=9.0)
    shutil.rmtree(folder / "runs" / "000-continuous")
    (folder / "runs" / "001-static" / "requests.parquet").write_bytes(b"not parquet")
    path = folder / "runs" / "003-static" / "run.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {"validity": {"valid": False, "checks": []}}))
    report = build_report(folder)
    assert report.headline.tone is Tone.WARN
    lines = " ".join(section(report, "validity").text)
    assert "2 runs can be read, 1 of them are not valid." in lines
    assert "000-continuous" in lines
    assert "001-static" in lines
    assert len(section(report, "trace").charts) == 2


def test_a_value_that_was_not_measured_yet_has_dashes(make_comparison):
    def interrupted(comparison):
        comparison["runs"] = comparison["runs"][:1]

    report = build_report(make_comparison(rate=9.0, change=interrupted))
    assert report.headline.sentence.startswith("Fewer than two values were measured")
    assert rows(report, "Throughput")["Requests"][1] == DASH
    assert "batching static: 0 of 1 runs were made" in section(report, "validity").text


def test_a_value_whose_run_failed_says_why(make_comparison):
    def failed(comparison):
        comparison["runs"] = comparison["runs"][:1]
        comparison["failures"] = [{"value": "static", "repeat": 0, "seed": 1, "path": None, "reason": "no memory"}]

    report = build_report(make_comparison(rate=9.0, change=failed))
    assert section(report, "validity").text[1:] == ("batching static failed: no memory",)


def test_nothing_measured_at_all_still_gives_a_report(make_comparison):
    folder = make_comparison(rate=9.0, change=lambda comparison: comparison.update(runs=[]))
    page, markdown = write_reports(folder)
    assert "Fewer than two values" in page.read_text()
    assert markdown.read_text()


def test_classes_are_compared_too(make_comparison):
    found = rows(build_report(make_comparison(rate=9.0, classes=True)), "By class")
    assert set(found) >= {"interactive: p95 TTFT", "batch: longest wait", "batch: goodput"}


def test_every_value_has_its_curve_and_its_charts(make_comparison):
    values = (8, 16, 32, 64)
    report = build_report(make_comparison(option="max_num_seqs", values=values, rate=9.0))
    (ttft, *_) = section(report, "latency").charts
    assert [curve.label for curve in ttft.curves] == ["8", "16", "32", "64"]
    assert len(section(report, "trace").charts) == 4
    assert [t.headers[0] for t in section(report, "waits").tables] == ["Waiting", "Delays for want of KV blocks"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: c.pop("option"), "option is missing"),
        (lambda c: c.update(runs=[3]), "where an object belongs"),
        (lambda c: c["runs"][0].update(value="other"), "not among values"),
        (lambda c: c.update(kind="run"), "has kind 'run'"),
        (lambda c: c.update(schema_version=1), "schema_version 1"),
    ],
)
def test_a_comparison_of_another_shape_is_refused_by_name_and_fault(make_comparison, change, fault):
    with pytest.raises(UserError, match=r"comparison\.json") as caught:
        write_reports(make_comparison(rate=2.0, change=change))
    assert fault in str(caught.value)


def test_the_summary_in_the_terminal_fits_eighty_columns(make_comparison):
    folder = make_comparison(repeats=2, rate=9.0, classes=True)
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(comparison_summary(folder))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("batching: continuous had the highest output throughput")
    assert max(len(line.rstrip()) for line in lines if not line.startswith("Stored in")) <= 80
