"""The noisy machines do what is said of them; the proof runs, is kept, and goes on from what is there."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from reports.diff.diff import Verdict
from scripts import bench_gate
from scripts.gate_proof.change import CHANGES, NOTHING, SLOWDOWN, Conditions
from scripts.gate_proof.machines import MACHINES, Machine, UnderChange
from scripts.gate_proof.plan import Group
from scripts.gate_proof.trials import DAYS, IN_TURN, RUNS_A_DAY, STORED, Trial, in_turn, on_other_days, play
from tuner.ci.gate import PAIRS
from workloads.metrics import in_window
from workloads.records import RequestRecord


def step_s(requests: list[RequestRecord]) -> float:
    """Mean logarithm of the time between two tokens of a request."""
    return fmean(math.log((r.t_last - r.t_first) / (r.output_tokens - 1)) for r in requests if r.t_last and r.t_first)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_machine_looks_real_and_repeats_nothing(machine: Machine) -> None:
    target = machine.make(1, Conditions())
    runs = [target.measure(machine.settings, machine.load, machine.slo, stop_when_settled=False) for _ in range(2)]
    for run in runs:
        assert run.meta["validity"]["valid"], run.meta["validity"]
        assert not run.meta["simulated"]
    assert runs[0].meta["summary"]["mean_tpot_ms"] != runs[1].meta["summary"]["mean_tpot_ms"]
    traffic = [[(r.t_sched, r.prompt_tokens) for r in in_window(run.requests)] for run in runs]
    assert traffic[0] == traffic[1]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_slowdown_is_as_large_as_it_says(machine: Machine) -> None:
    assert machine.load.rate is not None
    light = replace(machine.load, rate=machine.load.rate / 8, window_s=200.0)
    times = []
    for change in (NOTHING, CHANGES["20 % slower"]):
        conditions = Conditions()
        target = UnderChange(machine.make(2, conditions), conditions, change)
        times.append(step_s(target.measure(machine.settings, light, None, stop_when_settled=False).requests))
    # Hardly loaded, a request takes longer by what its steps do, but for the noise.
    assert times[1] - times[0] == pytest.approx(math.log(1.2), abs=0.06)


def test_in_turn_each_pair_has_its_own_traffic_and_both_sides_the_same() -> None:
    base, new = in_turn(MACHINES["made-up"], SLOWDOWN, seed=3)
    assert base.seeds == new.seeds
    assert len(base.seeds) == PAIRS
    assert base.sessions == new.sessions


def test_a_stored_baseline_has_many_days_and_the_new_side_is_of_another() -> None:
    base, new = on_other_days(MACHINES["made-up"], NOTHING, seed=4)
    assert len(base.sessions) == DAYS
    assert len(base.runs) == DAYS * RUNS_A_DAY
    assert set(new.sessions).isdisjoint(base.sessions)
    assert base.seeds == new.seeds


@pytest.mark.parametrize("kind", ["in turn", "stored"])
def test_a_trial_comes_out_the_same_again(kind: str) -> None:
    trial = Trial(kind, "fitted", SLOWDOWN.name, 0)
    found = play(trial)
    assert found == play(trial)
    for judgement in found.values():
        assert judgement["exit_code"] in (0, 1, 3)
        assert set(judgement["verdicts"].values()) <= {str(verdict) for verdict in Verdict}


def test_the_whole_proof_runs_is_written_and_goes_on_from_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [Group(kind, "made-up", NOTHING.name, 1) for kind in (IN_TURN, STORED)]
    monkeypatch.setattr(bench_gate, "groups", lambda repeats, real_repeats: few)
    out = tmp_path / "deep" / "gate"
    arguments = ["--quick", "--repeats", "1", "--out", str(out)]
    code = bench_gate.main(arguments)
    results = json.loads(out.with_suffix(".json").read_text())
    assert code == int(not all(goal["met"] for goal in results["goals"]))
    assert set(results["figures"]) == {"in turn", "stored", "stored, rules", "fixed 5 %, one run"}
    assert "# The gate" in out.with_suffix(".md").read_text()
    assert "alarms without a change" in capsys.readouterr().out

    def made_again(trial: Trial) -> None:
        raise AssertionError(f"{trial.key} was there")

    monkeypatch.setattr(bench_gate, "play", made_again)
    assert bench_gate.main(arguments) == code


@pytest.mark.parametrize("argument", ["--repeats", "--real-repeats", "--jobs"])
def test_a_number_that_cannot_be_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        bench_gate.main([argument, "-1"])
    assert exit_.value.code == 2
    assert f"{argument} -1 is not possible" in capsys.readouterr().err
