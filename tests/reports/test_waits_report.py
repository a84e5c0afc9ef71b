"""What a report shows of waiting, preemptions, swapping and requests turned away."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from reports.build import build_report
from reports.format import milliseconds
from reports.histories import preemptions
from reports.plots import figures
from reports.trace_chart import trace_chart
from reports.view import Report, Table
from reports.wait_chart import held_by_growing_batch, wait_chart, waiting_by_cause
from reports.waited import had_to_wait, longest_wait_ms
from reports.waits_view import mean_wait_ms, waits_table
from workloads.records import RunRecord

PRESSED = {"rate": 12.0, "max_num_seqs": 64, "classes": True}
BUSY = {"rate": 14.0, "max_num_seqs": 24, "policy": "priority", "classes": True}


def section(report: Report, key: str):
    return next(s for s in report.sections if s.key == key)


def table(report: Report, key: str, first_header: str) -> Table:
    return next(t for t in section(report, key).tables if t.headers[0] == first_header)


def rows(found: Table) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in found.rows}


def test_waiting_is_split_by_cause_for_every_class_and_for_all(make_run):
    waits = table(build_report(make_run(**BUSY)), "waits", "Waiting")
    assert waits.headers == ("Waiting", "interactive", "batch", "all")
    found = rows(waits)
    assert set(found) >= {"Mean wait", "no seat", "no room in the KV cache", "behind the head of the queue"}
    assert "batch closed or growing" not in found, "a cause that never occurred has no row"
    assert all(cell.endswith("%)") for cell in found["no seat"])


def test_a_run_without_classes_has_one_column_and_no_table_of_classes(make_run):
    report = build_report(make_run(rate=14.0))
    assert table(report, "waits", "Waiting").headers == ("Waiting", "all")
    assert all(t.headers[0] != "By class" for t in section(report, "numbers").tables)


def test_each_class_shows_what_it_got_and_who_was_turned_away(make_run):
    report = build_report(make_run(queue_timeout=2.0, **BUSY))
    classes = table(report, "numbers", "By class")
    assert classes.headers == ("By class", "interactive", "batch")
    timed_out = [int(cell) for cell in rows(classes)["Timed out in the queue"]]
    assert timed_out[1] > 0
    (finding,) = (f for f in section(report, "diagnosis").findings if f.title == "Turned away")
    assert f"(interactive {timed_out[0]}, batch {timed_out[1]})" in finding.text
    assert "queue_timeout=2s" in finding.text


def test_requests_shed_at_the_door_did_not_wait(make_run):
    run = RunRecord.load(make_run(rate=20.0, max_num_seqs=8, max_queue_len=4))
    shed = run.requests["status"] == "shed"
    assert shed.any()
    assert not had_to_wait(run.requests, run.iterations)[shed].any()


def test_who_the_first_step_after_arrival_did_not_admit_had_to_wait(make_run):
    run = RunRecord.load(make_run(rate=14.0, max_num_seqs=16))
    starts = run.iterations["t_start"].to_numpy()
    expected = [
        r.t_admit is None or r.t_admit > starts[np.searchsorted(starts, r.t_sched)] or r.preemptions > 0
        for r in run.request_records()
    ]
    assert had_to_wait(run.requests, run.iterations).tolist() == expected
    assert 0 < sum(expected) < len(expected)


S = 1_000_000_000


def few_steps(*starts_s: float) -> pd.DataFrame:
    """Steps of 0.1 s that left nobody waiting."""
    start = (np.array(starts_s) * S).astype(np.int64)
    return pd.DataFrame(
        {"t_start": start, "t_end": start + S // 10, "waiting": 0, "wait_cause": None, "blocked_request": None}
    )


def few_requests(*histories: list[tuple[float, str, str]]) -> pd.DataFrame:
    """One request per history of (seconds, kind, detail), scheduled and sent when it begins."""
    rows = []
    for history in histories:
        events = [(int(time_s * S), kind, 1, 1, detail) for time_s, kind, detail in history]
        admitted = next((event[0] for event in events if event[1] == "admitted"), None)
        times = {"t_sched": events[0][0], "t_send": events[0][0], "t_admit": admitted, "t_end": events[-1][0]}
        rows.append({**times, "attempts": 1, "preemptions": 0, "history": json.dumps(events)})
    return pd.DataFrame(rows)


# Nothing runs between the second step and the third: a batch grows for 2 s.
GROWING = few_steps(0, 0.1, 3.0)
HELD = few_requests(
    [(1.0, "queued", "batch"), (3.0001, "admitted", ""), (3.1, "finished", "length")],
    [(2.5, "queued", "batch"), (3.0001, "admitted", ""), (3.1, "finished", "length")],
    [(0.05, "queued", ""), (0.1001, "admitted", ""), (0.2, "finished", "length")],
)


def test_who_a_growing_batch_held_had_to_wait_though_the_next_step_admitted_it():
    assert had_to_wait(HELD, GROWING).tolist() == [True, True, False]


def test_the_chart_shows_those_whom_a_growing_batch_held():
    held = held_by_growing_batch(GROWING, HELD)
    assert held == pytest.approx([0, (2.0 + 0.5) / 2.9, 0])
    chart = wait_chart("run", GROWING, HELD, None)
    assert chart is not None
    assert set(chart.waiting) == {"batch"}


def test_a_pause_of_the_client_before_it_sends_again_is_no_waiting():
    turned_away = [(0.1, "turned_away", "max_queue_len"), (3.0, "queued", ""), (3.0001, "admitted", "")]
    assert had_to_wait(few_requests(turned_away), GROWING).tolist() == [False]
    table = waits_table([("all", {f"mean_wait_{c}_ms": 1.0 for c in (*CAUSES, "retry")}, None)])
    assert rows(table)["Clients' pauses before sending again"] == ("1.00 ms",)
    assert rows(table)["Mean wait"] == ("6.00 ms",)


CAUSES = ("step", "seats", "budget", "blocks", "behind_head", "batch")


def test_the_mean_wait_is_that_of_the_engine_s_causes_with_and_without_the_client_s():
    of_the_engine = {f"mean_wait_{cause}_ms": 1.0 for cause in CAUSES}
    assert mean_wait_ms(of_the_engine) == mean_wait_ms(of_the_engine | {"mean_wait_retry_ms": 9.0}) == 6


def test_the_longest_wait_is_that_of_any_request_completed_or_not(make_run):
    run = RunRecord.load(make_run(queue_timeout=2.0, **BUSY))
    scheduled = [r for r in run.request_records() if r.phase == "window"]
    waits = [((r.t_end or 0 if r.t_admit is None else r.t_admit) - r.t_sched) / 1e6 for r in scheduled]
    completed = [wait for wait, r in zip(waits, scheduled, strict=True) if r.status == "ok"]
    assert max(waits) > max(completed)
    assert longest_wait_ms(run.requests[run.requests["phase"] == "window"]) == pytest.approx(max(waits))
    waits_of = rows(table(build_report(run.path), "waits", "Waiting"))
    assert waits_of["Longest wait"][-1] == milliseconds(max(waits))


def test_a_run_without_requests_has_no_longest_wait():
    assert longest_wait_ms(HELD.iloc[:0]) is None
    assert had_to_wait(HELD.iloc[:0], GROWING).tolist() == []


def test_the_causes_over_time_add_up_to_the_requests_that_waited(make_run):
    run = RunRecord.load(make_run(**BUSY))
    counts = waiting_by_cause(run.iterations)
    assert sum(counts.values(), np.zeros(1)).tolist() == run.iterations["waiting"].tolist()
    assert counts["blocks"].max() == 1, "only the head waits for room"
    chart = wait_chart("run", run.iterations, run.requests, run.meta["window"])
    assert chart is not None
    assert set(chart.waiting) == {name for name, values in counts.items() if values.any()}
    assert {"seats", "blocks", "behind_head"} <= set(chart.waiting)


def test_a_run_in_which_nobody_waited_has_no_chart_of_waiting(make_run):
    report = build_report(make_run(rate=0.5))
    assert section(report, "waits").charts == ()
    assert "No step left a request waiting." in section(report, "waits").text


def test_swap_traffic_is_drawn_only_where_there_was_some(make_run):
    for mode, drawn in (("swap", 7), ("recompute", 6)):
        run = RunRecord.load(make_run(mode, preemption_mode=mode, **BUSY))
        chart = trace_chart("run", run.iterations, run.meta["window"])
        assert chart is not None
        assert chart.has_swap_traffic == (mode == "swap")
        (figure,) = figures([chart])
        titles = {annotation.text for annotation in figure.layout.annotations}
        assert len(titles) == drawn
        assert any(title.startswith("Preemptions so far: ") and "swap" in title for title in titles)


def test_traffic_per_second_times_the_bins_is_the_bytes_swapped(make_run):
    run = RunRecord.load(make_run(preemption_mode="swap", **BUSY))
    chart = trace_chart("run", run.iterations, None)
    assert chart is not None
    edges = np.append(chart.t_s, (run.iterations["t_end"].iloc[-1] - run.iterations["t_start"].iloc[0]) / 1e9)
    moved = (chart.swap_out_mib_s * np.diff(edges)).sum() * 2**20
    assert moved == pytest.approx(run.iterations["swapped_out_bytes"].sum())


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_the_preemptions_whose_victims_waited_longest_are_named(make_run, mode):
    path = make_run(preemption_mode=mode, **PRESSED)
    victims = table(build_report(path), "preemptions", "When")
    run = RunRecord.load(path)
    start_ns, end_ns = run.meta["window"]["start_ns"], run.meta["window"]["end_ns"]
    found = [lost for lost in preemptions(run.requests) if start_ns <= lost.time_ns < end_ns]
    assert len(victims.rows) == 10
    assert {row[3] for row in victims.rows} == {mode}
    longest = max(found, key=lambda lost: lost.wait_s or 0)
    assert victims.rows[0][1] == longest.request_id
    assert victims.rows[0][6] == longest.winner
    totals = rows(table(build_report(path), "preemptions", "Preemptions"))
    assert totals[f"Preempted by {mode}"] != ("steps", "0")
    assert (totals["Bytes swapped out"] == ("steps", "0 MiB")) == (mode == "recompute")
    assert totals["Waits they caused, in all"][0] == "requests"


def test_a_victim_that_ended_without_running_again_is_told_from_one_that_did(make_run):
    def end_early(requests):
        for i, request in enumerate(requests):
            kinds = [event.kind for event in request.history]
            if "preempted" in kinds:
                cut = kinds.index("preempted") + 1
                ended = replace(request.history[cut], kind="finished", detail="abort")
                requests[i] = replace(request, history=(*request.history[:cut], ended))
        return requests

    path = make_run(records=lambda requests: end_early(list(requests)), **PRESSED)
    victims = table(build_report(path), "preemptions", "When")
    assert all(row[-1].endswith(", then ended") for row in victims.rows)


def test_a_victim_that_gave_way_for_want_of_room_for_itself_is_called_so(make_run):
    def no_winner(requests):
        return [
            replace(
                r, history=tuple(replace(e, detail="recompute:") if e.kind == "preempted" else e for e in r.history)
            )
            for r in requests
        ]

    victims = table(build_report(make_run(records=no_winner, **PRESSED)), "preemptions", "When")
    assert {row[6] for row in victims.rows} == {"itself: no room left"}


def test_a_run_without_preemptions_says_so_in_one_line(make_run):
    preempted = section(build_report(make_run(rate=0.5)), "preemptions")
    assert preempted.tables == ()
    assert preempted.text == ("No running request had to give up its blocks.",)


def test_the_blame_list_names_who_held_the_blocks_and_explains_itself(make_run):
    blamed = table(build_report(make_run(**BUSY)), "waits", "Held blocks")
    assert 0 < len(blamed.rows) <= 10
    held = [float(row[2].replace(",", "")) for row in blamed.rows]
    assert held == sorted(held, reverse=True)
    assert "shared among the running requests by the blocks they held" in blamed.caption
    assert "names heads only; those behind them are one sum" in blamed.caption


def test_a_study_shows_the_waits_of_both_sides_and_blames_in_the_last(make_study):
    waits = section(build_report(make_study()), "waits")
    assert waits.tables[0].headers == ("Waiting", "baseline", "winner")
    assert [chart.label for chart in waits.charts] == ["baseline", "winner"]


def test_numbers_that_are_null_are_dashes(make_run):
    def nothing_known(meta):
        meta["summary"] |= {key: None for key in meta["summary"] if key.startswith("mean_wait_")}
        meta["settings"]["block_size"] = None

    report = build_report(make_run(change=nothing_known))
    assert rows(table(report, "waits", "Waiting"))["Mean wait"] == ("—",)
    assert len(section(report, "waits").tables) == 1


def test_a_workload_with_classes_is_given_as_yaml_that_reads_back(make_run):
    yaml = pytest.importorskip("yaml")
    spec = {
        "name": "mixed",
        "arrival": "poisson",
        "classes": {
            "chat": {"share": 0.9, "priority": 0, "prompt_tokens": "uniform:16..64", "output_tokens": "fixed:8"}
        },
        "retries": 2,
    }
    report = build_report(make_run(change=lambda meta: meta.update(workload=spec)))
    *_, workload = section(report, "repeat").commands
    assert yaml.safe_load(workload.text) == spec == json.loads(workload.text)
