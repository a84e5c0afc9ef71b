"""The report of a comparison."""

import json
import re
import shutil
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from engine.errors import UserError
from reports.build import build_report, write_reports
from reports.comparison import offered_throughput, sustained_throughput
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
    folder = make_comparison(repeats=3, rate=9.0, slo=None)
    edit_runs(folder, request_throughput=[1.0, 5.0, 2.0, 5.0, 9.0, 5.0])
    report = build_report(folder)
    throughput = next(t for t in section(report, "comparison").tables if t.headers[0] == "Throughput")
    assert throughput.rows[0] == ("Requests", "2.00 req/s", "5.00 req/s (×2.50)")
    assert throughput.rows[1] == ("range of the runs", "1.00 to 9.00 req/s", "5.00 to 5.00 req/s")


def said_of(folder) -> str:
    return build_report(folder).headline.sentence


def test_the_headline_leads_with_goodput_where_there_is_an_slo_and_with_throughput_else(make_comparison):
    with_slo = said_of(make_comparison("slo", repeats=2, rate=9.0))
    assert with_slo.startswith("batching: continuous had the highest goodput, ")
    without = said_of(make_comparison("none", repeats=2, rate=9.0, slo=None))
    assert without.startswith("batching: continuous had the highest output throughput, ")
    assert "; continuous had the lowest p95 TTFT, " in without
    assert re.search(r"% against .* tok/s with static \(\+.*% and \+.*% in the repeats\)", without)


def test_one_run_of_each_value_is_said_to_tell_nothing_from_chance_in_the_sentence_itself(make_comparison):
    assert said_of(make_comparison(rate=9.0)).endswith("; a value with one run cannot be told from the others.")


def test_two_repeats_that_disagree_name_no_winner_and_show_both_differences(make_comparison):
    folder = make_comparison(repeats=2, rate=9.0)
    edit_runs(folder, p95_ttft_ms=[100.0, 130.0, 170.0, 150.0])
    report = build_report(folder)
    assert (
        "no difference in p95 TTFT that the runs can tell from chance, 135 ms with continuous against 140 ms with "
        "static (−23.1% and +13.3% in the repeats)."
    ) in report.headline.sentence
    assert any("Two runs per value, too few for an interval" in notice for notice in report.headline.notices)


def test_repeats_are_paired_so_that_seeds_which_differ_more_than_values_hide_nothing(make_comparison):
    folder = make_comparison(repeats=3, rate=9.0)
    edit_runs(folder, request_goodput=[1.1, 1.0, 2.2, 2.0, 4.41, 4.0])
    said = said_of(folder)
    assert "continuous had the highest goodput, 2.20 req/s, +10.1% against 2.00 req/s with static" in said
    assert "(95% interval +9.7% to +10.4%, 3 repeats)" in said


def test_an_interval_that_holds_0_names_no_winner(make_comparison):
    folder = make_comparison(repeats=3, rate=9.0)
    edit_runs(folder, request_goodput=[1.5, 1.0, 2.2, 2.3, 4.4, 4.0])
    assert "no difference in goodput that the runs can tell from chance, 2.30 req/s with static against " in said_of(
        folder
    )


def test_of_three_values_those_are_named_that_the_best_cannot_be_told_from(make_comparison):
    folder = make_comparison(repeats=2, rate=9.0, option="max_num_seqs", values=(4, 16, 64))
    edit_runs(folder, request_goodput=[1.0, 2.0, 2.1, 1.0, 2.2, 2.2])
    best = (
        "64 or 16 had the highest goodput (the runs cannot tell which), 2.15 req/s with 64, +114.9% against 1.00 req/s"
    )
    assert f"{best} with 4 (" in said_of(folder)


def test_values_that_are_equal_to_the_last_digit_are_not_ranked(make_comparison):
    folder = make_comparison(rate=9.0)
    edit_runs(folder, p95_ttft_ms=[100.0, 100.0])
    assert "the same p95 TTFT with every value, about 100 ms" in said_of(folder)


def test_medians_that_agree_by_luck_are_not_called_the_same(make_comparison):
    folder = make_comparison(repeats=2, rate=9.0)
    edit_runs(folder, p95_ttft_ms=[100.0, 140.0, 140.0, 100.0])
    assert "no difference in p95 TTFT that the runs can tell from chance, 120 ms" in said_of(folder)


ALIKE = {"values": ("recompute", "swap"), "option": "preemption_mode", "rate": 2.0}


def test_equal_throughput_is_not_ranked(make_comparison):
    headline = build_report(make_comparison(slo=None, **ALIKE)).headline
    assert "every value keeps up with this load, about " in headline.sentence
    assert any("One run per value" in notice for notice in headline.notices)


def test_equal_throughput_is_not_all_that_was_asked_for_where_requests_were_lost(make_comparison):
    def lose(requests):
        return [replace(r, status="shed") if r.index % 8 == 0 else r for r in requests]

    headline = build_report(make_comparison(slo=None, records=lose, **ALIKE)).headline
    assert "the same output throughput with every value, about " in headline.sentence
    assert "keeps up" not in headline.sentence


def test_simulated_values_that_decided_alike_in_every_step_make_no_difference(make_comparison):
    folder = make_comparison(repeats=2, change_run=lambda meta: meta.update(simulated=True), **ALIKE)
    assert said_of(folder) == "preemption_mode: no difference, these values made the same decisions."


def test_some_values_that_decided_alike_are_named_beside_those_that_did_not(make_comparison):
    simulated = {"change_run": lambda meta: meta.update(simulated=True)}
    folder = make_comparison(option="max_num_seqs", values=(2, 64, 128), rate=3.0, **simulated)
    headline = build_report(folder).headline
    assert "64 and 128 made the same decisions." in headline.notices
    assert "no difference, these" not in headline.sentence


@pytest.mark.parametrize(("rate", "falls_behind"), [(9.0, True), (3.0, False)])
def test_sustained_output_is_what_came_within_the_window_but_never_more_than_was_offered(make_run, rate, falls_behind):
    run = RunRecord.load(make_run(rate=rate))
    window = run.meta["window"]
    times = [time for request in run.request_records() for time in request.chunk_times]
    within = sum(window["start_ns"] <= time < window["end_ns"] for time in times) / 12
    offered = sum(request.max_tokens for request in run.request_records() if request.phase == "window") / 12
    assert (within < 0.98 * offered) == falls_behind
    assert offered_throughput(run) == pytest.approx(offered)
    assert sustained_throughput(run) == pytest.approx(min(within, offered))


def test_an_engine_busy_with_its_backlog_sustains_what_it_serves_though_no_request_of_the_window_ended(make_run):
    def none_ended(requests):
        return [replace(r, status="timeout", t_first=None) if r.phase == "window" else r for r in requests]

    run = RunRecord.load(make_run(rate=14.0, records=none_ended))
    assert run.meta["summary"]["output_throughput"] == 0
    assert (sustained_throughput(run) or 0) > 100


def test_a_closed_loop_offers_as_much_as_it_gets(make_run):
    run = RunRecord.load(make_run(rate=None))
    assert offered_throughput(run) is None
    assert (sustained_throughput(run) or 0) > 100


def test_latencies_of_a_value_that_turns_requests_away_are_called_flattered_and_not_ranked(make_comparison):
    folder = make_comparison(option="max_queue_len", values=(0, 2), rate=20.0, max_num_seqs=8)
    headline = build_report(folder).headline
    assert any("not completed were " in notice and "with 2" in notice for notice in headline.notices)
    assert "p95 TTFT is not ranked, since these values lost different shares of the requests" in headline.sentence
    assert rows(build_report(folder), "In the engine")["Turned away on arrival"][1] != "0"


def test_runs_that_are_not_valid_give_no_number_and_are_listed(make_comparison):
    folder = make_comparison(repeats=2, rate=9.0)
    edit_runs(folder, request_throughput=[1.0, 5.0, 900.0, 5.0])
    path = folder / "runs" / "002-continuous" / "run.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {"validity": {"valid": False, "checks": meta["validity"]["checks"]}}))
    report = build_report(folder)
    assert rows(report, "Throughput")["Requests"] == ("1.00 req/s", "5.00 req/s (×5.00)")
    assert any("1 of its runs are not valid and left out" in notice for notice in report.headline.notices)
    validity = section(report, "validity")
    assert "Left out of all numbers, since they are not valid: continuous, run 2." in validity.text
    assert "continuous, run 2" in {row[0] for row in validity.tables[0].rows}


def test_a_value_with_no_valid_run_is_not_compared(make_comparison):
    def invalid(meta):
        meta["validity"]["valid"] = meta["settings"]["batching"] == "continuous"

    report = build_report(make_comparison(rate=9.0, change_run=invalid))
    assert report.headline.sentence.startswith("Fewer than two values were measured validly")
    assert report.headline.tone is Tone.WARN


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
    assert len(section(report, "trace").charts) == 1, "a run that is not valid is not drawn"


def test_a_value_that_was_not_measured_yet_has_dashes(make_comparison):
    def interrupted(comparison):
        comparison["runs"] = comparison["runs"][:1]

    report = build_report(make_comparison(rate=9.0, change=interrupted))
    assert report.headline.sentence.startswith("Fewer than two values were measured validly")
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
    folder = make_comparison(
        repeats=2,
        option="queue_timeout",
        values=(0.0, 2.0),
        rate=14.0,
        max_num_seqs=24,
        policy="priority",
        classes=True,
    )
    found = rows(build_report(folder), "By class")
    assert set(found) >= {"interactive: p95 TTFT", "batch: longest wait", "batch: goodput"}
    numbers = [RunRecord.load(path).meta["classes"]["batch"] for path in sorted((folder / "runs").iterdir())]
    completed, requests = (sum(numbers[i][name] for i in (1, 3)) for name in ("completed", "requests"))
    assert found["batch: completed"][1] == f"{completed} of {requests}"
    assert found["batch: timed out in the queue"] == ("0", str(requests - completed))
    assert "batch: turned away on arrival" not in found


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
        (lambda c: c.update(failures=5), "failures is 5, where a list belongs"),
        (lambda c: c.update(failures=[5]), "where an object belongs"),
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
    assert lines[0].startswith("batching: continuous had the highest goodput, ")
    assert max(len(line.rstrip()) for line in lines if not line.startswith("Stored in")) <= 80
