"""The report of a study."""

import shutil

import pytest

from engine.errors import UserError
from reports.build import build_report
from reports.format import DASH
from reports.view import Report, Tone


def section(report: Report, key: str):
    return next(s for s in report.sections if s.key == key)


def test_a_confirmed_winner_is_named_with_gain_interval_and_objective(make_study):
    report = build_report(make_study())
    assert report.headline.tone is Tone.GOOD
    assert report.headline.sentence.startswith("Use max_num_seqs=48, max_num_batched_tokens=1024, chunk_size=256: ")
    assert "(95% interval +" in report.headline.sentence
    assert "within p95_ttft=1s,p95_tpot=60ms" in report.headline.sentence
    bench, flags = report.commands
    assert bench.text.startswith("tune bench ")
    assert "--set max_num_seqs=48" in bench.text
    assert "--max-num-seqs 48" in flags.text


def test_the_sections_stand_in_the_order_a_reader_needs_them(make_study):
    keys = [s.key for s in build_report(make_study()).sections]
    of_the_run = ["trace", "waits", "preemptions", "latency"]
    assert keys == ["validity", "slo", "comparison", *of_the_run, "trials", "diagnosis", "repeat"]


@pytest.mark.parametrize(
    ("verdict", "start"),
    [
        ("same", "Keep the default settings: the best others found make no difference"),
        ("worse", "Keep the default settings: confirmed, the best others found are worse"),
        ("cannot tell", "Cannot tell whether the settings found beat the default ones"),
        ("default is best", "The default settings are best here: of 10 others tried none gave more goodput"),
    ],
)
def test_without_a_proven_gain_the_default_settings_are_recommended(make_study, verdict, start):
    report = build_report(make_study(change=lambda s: s["confirmation"].update(verdict=verdict)))
    assert report.headline.sentence.startswith(start)
    assert "--set max_num_seqs=4 " in report.commands[0].text


@pytest.mark.parametrize("confirmation", [None, {"verdict": "skipped"}])
def test_an_unconfirmed_winner_is_called_so(make_study, confirmation):
    report = build_report(make_study(change=lambda s: s.update(confirmation=confirmation)))
    assert report.headline.tone is Tone.WARN
    assert report.headline.sentence.startswith("Best so far, not confirmed: max_num_seqs=48")
    assert "flattered until they are confirmed" in section(report, "comparison").text[0]
    assert section(report, "slo").tables, "the search's own runs still tell how the bounds were met"


def test_a_baseline_that_held_nothing_gives_no_relative_gain(make_study):
    def no_base(study):
        study["confirmation"] |= {"gain": None, "gain_low": None, "gain_high": None}

    assert "gave no comparable goodput" in build_report(make_study(change=no_base)).headline.sentence


def test_no_feasible_setting_means_no_recommendation(make_study):
    def infeasible(study):
        study["confirmation"] = None
        study["best"]["rate"] = None
        for trial in study["trials"]:
            trial |= {"state": "infeasible", "rate": None}

    report = build_report(make_study(change=infeasible))
    assert report.headline.sentence.startswith("None of the settings tried holds p95_ttft=1s,p95_tpot=60ms")
    assert report.headline.tone is Tone.BAD
    assert report.commands == ()


def test_a_failed_baseline_leaves_no_result_and_a_report_all_the_same(make_study):
    def failed(study):
        study |= {"best": None, "confirmation": None, "importance": {}, "state": "interrupted"}
        study["trials"] = study["trials"][:1]
        study["trials"][0] |= {"state": "failed", "rate": None, "goodput": None, "error": "no memory", "runs": []}

    report = build_report(make_study(change=failed))
    assert report.headline.sentence == "No result yet: nothing that was measured so far meets the SLO."
    (table,) = section(report, "trials").tables
    assert table.rows[0][:4] == ("0 (baseline)", "✗ failed", DASH, DASH)
    assert table.rows[0][-1] == "no memory"


def test_a_failed_study_says_why(make_study):
    report = build_report(make_study(change=lambda s: s.update(state="failed", reason="device lost")))
    assert report.headline.sentence == "The study failed: device lost."


def test_a_study_without_a_single_trial_still_has_a_report(make_study):
    def empty(study):
        study |= {"trials": [], "best": None, "confirmation": None, "importance": {}, "state": "interrupted"}

    report = build_report(make_study(change=empty))
    assert "interrupted" in report.headline.notices[0]
    assert section(report, "trials").text == ("No trial was made.",)


def test_when_the_default_wins_only_the_baseline_stands_in_the_tables(make_study):
    def default(study):
        study["best"] = {"trial": 0, "settings": study["trials"][0]["settings"], "rate": 3.0, "is_default": True}
        study["confirmation"] = {"verdict": "default is best"}

    report = build_report(make_study(change=default))
    assert section(report, "comparison").tables[0].headers == ("Result", "baseline")
    assert len(section(report, "trace").charts) == 1


def test_runs_missing_on_disk_are_listed_and_the_rest_is_shown(make_study):
    folder = make_study()
    shutil.rmtree(folder / "runs" / "001-winner")
    report = build_report(folder)
    assert "1 of its runs cannot be read" in report.headline.notices[0]
    assert any("runs/001-winner" in line and "does not exist" in line for line in section(report, "validity").text)
    assert [chart.label for chart in section(report, "trace").charts] == ["baseline"]
    assert "48" in section(report, "comparison").tables[1].rows[1]


def test_a_damaged_table_of_a_run_costs_only_its_charts(make_study):
    folder = make_study()
    (folder / "runs" / "000-baseline" / "iterations.parquet").write_bytes(b"not parquet")
    report = build_report(folder)
    assert any("has no charts" in line and "iterations.parquet" in line for line in section(report, "validity").text)
    assert [chart.label for chart in section(report, "trace").charts] == ["winner"]


def test_all_trials_are_listed_best_first_with_their_reasons(make_study):
    (table,) = section(build_report(make_study()), "trials").tables
    assert len(table.rows) == 11
    verdicts = [row[1] for row in table.rows]
    assert verdicts == sorted(verdicts, key=["✓ SLO met", "✗ SLO missed", "✗ failed"].index)
    assert table.highlight == frozenset((0,))
    assert {row[-1] for row in table.rows if row[1] == "✗ failed"} == {"out of device memory while profiling"}
    assert all(row[2] == DASH for row in table.rows if row[1] != "✓ SLO met")


def test_invalid_runs_are_counted_and_their_checks_shown(make_study):
    import json

    folder = make_study()
    path = folder / "runs" / "001-winner" / "run.json"
    meta = json.loads(path.read_text())
    meta["validity"] = {"valid": False, "checks": [{"name": "offered rate", "ok": False, "detail": "too slow"}]}
    path.write_text(json.dumps(meta))
    validity = section(build_report(folder), "validity")
    assert validity.text[0].startswith("2 runs: 1 valid, 1 not valid, 0 cannot be read.")
    assert ("winner, runs/001-winner", "offered rate", "✗ not ok", DASH, DASH, "too slow") in validity.tables[0].rows


def with_classes(study, good=90):
    for label in ("baseline", "winner"):
        side = study["confirmation"][label]
        chat = {"requests": 900, "completed": 900, "good_requests": 890, "p95_ttft_ms": 80.0, "max_wait_ms": 100.0}
        batch = {"requests": 100, "completed": 60, "good_requests": good, "p95_ttft_ms": 9000.0, "num_shed": 40}
        waits = {
            f"mean_wait_{cause}_ms": 2.0 for cause in ("step", "seats", "budget", "blocks", "behind_head", "batch")
        }
        side["classes"] = {"chat": chat | waits, "batch": batch | waits}


def test_the_classes_of_both_sides_stand_beside_each_other_with_their_waits(make_study):
    report = build_report(make_study(change=with_classes))
    found = {row[0]: row[1:] for t in section(report, "comparison").tables for row in t.rows}
    assert found["batch: completed"] == ("60 of 100", "60 of 100")
    assert found["batch: turned away on arrival"] == ("40", "40")
    assert "chat: turned away on arrival" not in found
    assert found["chat: longest wait"] == ("100 ms", "100 ms")
    waits = section(report, "waits").tables[-1]
    assert waits.headers == ("Waiting", "baseline, chat", "baseline, batch", "winner, chat", "winner, batch")
    assert waits.rows[0] == ("Mean wait", *["12.0 ms"] * 4)


@pytest.mark.parametrize(("good", "missed"), [(20, True), (90, False)])
def test_a_class_that_mostly_missed_under_the_winner_is_said_at_the_top(make_study, good, missed):
    report = build_report(make_study(change=lambda study: with_classes(study, good)))
    notice = "Class batch mostly missed the SLO with the winner: 20.0% of its requests were good."
    assert (notice in report.headline.notices) == missed


def test_a_study_without_classes_has_no_table_of_them(make_study):
    report = build_report(make_study())
    assert all(t.headers[0] != "By class" for t in section(report, "comparison").tables)
    assert [t.headers for t in section(report, "waits").tables if t.headers[0] == "Waiting"] == [
        ("Waiting", "baseline", "winner")
    ]


def test_classes_of_another_shape_are_refused_by_name(make_study):
    with pytest.raises(UserError, match=r"confirmation\.winner: classes\.chat is damaged"):
        build_report(make_study(change=lambda s: s["confirmation"]["winner"].update(classes={"chat": 3})))


def test_requests_lost_by_a_side_are_said_at_the_top(make_study):
    def lost(study):
        study["confirmation"]["winner"]["summary"] |= {"completed": 75, "failed": 25}

    report = build_report(make_study(change=lost))
    assert any("not completed were 25 of 100 requests (25.0%) with the winner." in n for n in report.headline.notices)
    found = {row[0]: row[1:] for t in section(report, "comparison").tables for row in t.rows}
    assert found["Not completed"][:2] == ("0", "25")


def test_what_could_not_be_confirmed_is_told_with_the_reason_and_not_as_a_missed_slo(make_study):
    reason = "The winner's runs cannot be trusted (a warm-up of 3 s), so no gain is claimed."
    change = {"verdict": "cannot tell", "gain": None, "gain_low": None, "gain_high": None, "text": reason}
    sentence = build_report(make_study(change=lambda s: s["confirmation"].update(change))).headline.sentence
    assert sentence == f"Keep the default settings: no gain could be confirmed. {reason}"


def test_a_closed_loop_has_a_goodput_to_tell_where_it_has_no_rate(make_study):
    def without_rates(study):
        study["confirmation"].update(verdict="default is best")
        study["best"].update(rate=None, trial=0)

    sentence = build_report(make_study(change=without_rates)).headline.sentence
    assert "—" not in sentence
