"""The report of one run."""

from dataclasses import replace

import pytest

from reports.build import build_report
from reports.format import DASH
from reports.view import Report, Tone
from workloads.records import RunRecord


def section(report: Report, key: str):
    return next(s for s in report.sections if s.key == key)


def cells(report: Report, key: str) -> dict[str, str]:
    return {row[0]: row[1] for table in section(report, key).tables for row in table.rows}


def test_a_feasible_run_says_so_with_rate_and_goodput(make_run, feasible):
    report = build_report(make_run(change=feasible))
    assert report.headline.tone is Tone.GOOD
    assert report.headline.sentence.startswith("The SLO p95_ttft=1s,p95_tpot=60ms holds at 6.00 req/s")
    assert report.headline.notices == ()


def test_the_sections_stand_in_the_order_a_reader_needs_them(make_run):
    keys = [s.key for s in build_report(make_run()).sections]
    assert keys == ["validity", "slo", "numbers", "trace", "waits", "preemptions", "latency", "diagnosis", "repeat"]


def test_an_infeasible_run_names_the_bound_that_failed(make_run):
    report = build_report(make_run(max_num_seqs=2))
    assert report.headline.tone is Tone.BAD
    assert "does not hold" in report.headline.sentence
    assert "p95_ttft<=1s, 95% must" in report.headline.sentence


def test_an_undecided_run_shows_its_interval(make_run):
    def undecided(meta):
        meta["verdict"]["state"] = "undecided"
        meta["verdict"]["bounds"][0]["state"] = "undecided"
        meta["verdict"]["bounds"][0] |= {"met_share": 0.96, "share_low": 0.9, "share_high": 0.99}

    report = build_report(make_run(change=undecided))
    assert report.headline.sentence == (
        "Cannot tell whether the SLO p95_ttft=1s,p95_tpot=60ms holds at 6.00 req/s: 96.0% of the requests met "
        "p95_ttft<=1s (95% interval 90.0–99.0%), 95% must."
    )


def test_without_slo_there_is_no_verdict_and_goodput_is_a_dash(make_run):
    report = build_report(make_run(slo=None))
    assert report.headline.sentence.startswith("No SLO was given: ")
    assert cells(report, "numbers")["Goodput"] == DASH
    assert section(report, "slo").tables == ()


def test_an_invalid_run_is_not_to_be_relied_on_whatever_its_verdict(make_run):
    def invalid(meta):
        meta["validity"]["valid"] = False
        meta["validity"]["checks"][1]["ok"] = False

    report = build_report(make_run(change=invalid))
    assert report.headline.sentence == "This run is not valid (driver lag): do not rely on its numbers."
    assert section(report, "validity").text == ("Not valid: 1 of 2 checks passed; not driver lag (p99 0.2 ms).",)


def test_a_window_without_requests_allows_no_statement(make_run):
    def none(meta):
        meta["window"]["requests"] = 0
        meta["validity"]["valid"] = False

    path = make_run(change=none, records=lambda rs: [replace(r, phase="warmup") for r in rs])
    report = build_report(path)
    assert report.headline.sentence == "No request was scheduled in the measured window: nothing can be said."
    assert cells(report, "numbers")["p95 TTFT"] == DASH
    assert section(report, "latency").text == ("No request of the window was answered.",)


def test_a_closed_loop_has_no_offered_rate(make_run):
    report = build_report(make_run(rate=None))
    assert "with this closed-loop load" in report.headline.sentence
    assert cells(report, "numbers")["Offered rate"] == "closed loop"
    assert "--rate" not in section(report, "repeat").commands[0].text


def test_answers_of_one_token_have_no_tpot_anywhere(make_run):
    def one_token(requests):
        return [
            replace(r, output_tokens=1, t_last=r.t_first, chunk_times=r.chunk_times[:1], chunk_tokens=(1,))
            for r in requests
        ]

    report = build_report(make_run(records=one_token))
    assert cells(report, "numbers")["p95 TPOT"] == DASH
    assert [chart.metric for chart in section(report, "latency").charts] == ["TTFT", "E2E"]


@pytest.mark.parametrize(
    ("change", "notice"),
    [
        (lambda m: m.update(simulated=True), "Simulated: no real device ran."),
        (lambda m: m["model"].update(weights="random"), "Random weights"),
        (lambda m: m.update(stopped_early="verdict settled"), "Stopped early: verdict settled."),
        (lambda m: m.update(stopped_early="held beyond doubt"), "Stopped early: held beyond doubt."),
    ],
)
def test_what_limits_belief_is_said_at_the_top(make_run, change, notice):
    (said,) = build_report(make_run(change=change)).headline.notices
    assert said.startswith(notice)


def test_a_changed_workload_is_named_as_a_file_and_given_in_full(make_run):
    def changed(meta):
        meta["workload"]["output_tokens"] = "fixed:64"

    repeat = section(build_report(make_run(change=changed)), "repeat")
    bench, workload = repeat.commands
    assert "--workload workload.yaml" in bench.text
    assert '"output_tokens": "fixed:64"' in workload.text


def test_vllm_flags_follow_the_settings(make_run):
    plain = build_report(make_run("plain")).commands[0].text
    assert "--long-prefill-token-threshold" not in plain
    assert "prefix-caching" not in plain
    changed = build_report(make_run("changed", chunk_size=128, enable_prefix_caching=False)).commands[0].text
    assert "--long-prefill-token-threshold 128" in changed
    assert "--no-enable-prefix-caching" in changed


@pytest.mark.parametrize("slo", ["p95_ttft=1s", None])
def test_lost_requests_are_said_wherever_latencies_stand_and_counted_among_the_results(make_run, slo):
    path = make_run(rate=20.0, max_num_seqs=8, max_queue_len=4, slo=slo)
    summary = RunRecord.load(path).meta["summary"]
    lost, total = summary["failed"], summary["failed"] + summary["completed"]
    report = build_report(path)
    (notice,) = report.headline.notices
    assert notice.startswith(
        f"Latencies are those of completed requests; not completed were {lost} of {total} requests"
    )
    found = cells(report, "numbers")
    assert (found["Not completed"], found["Turned away"]) == (str(lost), str(summary["num_shed"]))
    assert found["Did not end in time"] == "0"


def test_a_run_that_lost_nothing_has_no_row_for_it(make_run):
    assert not {"Not completed", "Turned away"} & cells(build_report(make_run()), "numbers").keys()


def test_tries_and_sendings_have_rows_where_the_record_has_them_and_they_are_not_0(make_run):
    def with_retries(meta):
        meta["summary"] |= {"num_turned_away": 7, "num_retries": 0}

    def of_old(meta):
        for name in ("num_turned_away", "num_retries", "max_wait_ms", "mean_wait_retry_ms"):
            meta["summary"].pop(name, None)
            meta["classes"]["all"].pop(name, None)

    found = cells(build_report(make_run("new", change=with_retries)), "numbers")
    assert found["Tries turned away"] == "7"
    assert "Sent again by clients" not in found
    assert "Tries turned away" not in cells(build_report(make_run("old", change=of_old)), "numbers")


def test_a_size_of_the_model_that_is_no_number_is_left_out(make_run):
    report = build_report(make_run(change=lambda meta: meta["model"].update(parameters="135M")))
    assert cells(report, "repeat")["Model"] == "toy-1b, bfloat16"
