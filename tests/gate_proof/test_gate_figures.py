"""What trials of the gate's proof come to, and which goals they meet."""

from typing import Any

import pytest

from scripts.gate_proof.change import CHANGES, NOTHING, SLOWDOWN
from scripts.gate_proof.figures import figures, goals_of
from scripts.gate_proof.machines import MACHINES
from scripts.gate_proof.plan import groups
from scripts.gate_proof.real import REAL


def judged(exit_code: int, **verdicts: str) -> dict[str, Any]:
    return {"exit_code": exit_code, "verdicts": verdicts}


def test_trials_are_counted_by_exit_code_and_by_line() -> None:
    found = figures([judged(1, mean_ttft="worse"), judged(0, mean_ttft="same"), judged(3, mean_ttft="cannot tell")])
    assert (found["trials"], found["alarms"], found["passed"], found["cannot_tell"]) == (3, 1, 1, 1)
    assert found["lines"] == {"mean_ttft": {"worse": 1, "same": 1, "cannot tell": 1}}


def test_a_share_has_the_exact_interval() -> None:
    found = figures([judged(1)] * 5 + [judged(0)] * 95)
    assert found["alarm_share"] == 0.05
    # Tabulated limits of 5 in 100.
    assert found["alarm_low"] == pytest.approx(0.0164, abs=1e-4)
    assert found["alarm_high"] == pytest.approx(0.1128, abs=1e-4)


@pytest.mark.parametrize(("alarms", "met"), [(10, True), (11, False)])
def test_one_alarm_in_twenty_is_the_most_without_a_change(alarms: int, met: bool) -> None:
    (goal,) = goals_of("m", {NOTHING.name: figures([judged(1)] * alarms + [judged(3)] * (200 - alarms))})
    assert goal["met"] is met


@pytest.mark.parametrize(("found", "met"), [(180, True), (179, False)])
def test_nine_in_ten_is_the_least_that_is_found_of_a_slowdown(found: int, met: bool) -> None:
    (goal,) = goals_of("m", {SLOWDOWN.name: figures([judged(1)] * found + [judged(3)] * (200 - found))})
    assert goal["met"] is met


def test_what_goals_are_about_gets_all_repeats_and_the_rest_a_share() -> None:
    counts = {(group.kind, group.machine, group.change): group.count for group in groups(200, 6)}
    for machine in MACHINES:
        assert counts["in turn", machine, NOTHING.name] == counts["in turn", machine, SLOWDOWN.name] == 200
        assert all(("in turn", machine, change) in counts for change in CHANGES)
    assert counts["in turn", REAL, NOTHING.name] == 6
    assert not any(group.machine == REAL for group in groups(200, 0))


def test_no_two_trials_are_the_same() -> None:
    keys = [trial.key for group in groups(8, 2) for trial in group.trials()]
    assert len(set(keys)) == len(keys)
