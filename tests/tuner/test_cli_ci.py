"""`tune ci`: every way of measuring a candidate against a baseline, every exit code, and what is left behind."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from engine.executor.base import StepResult
from engine.executor.simulated import SimulatedExecutor
from engine.scheduler.plan import StepPlan
from reports.diff.load import load_side
from tests.tuner.kept_runs import interrupt_in, noisy_machine, run, stored_baseline, stored_run
from tests.tuner.small_studies import Tune, read_json
from tuner.settings import Settings
from tuner.twin.fit import learn_device
from workloads.records import RunRecord

CI = ("ci", "--baseline", "main", "--out", "c")
SIDES = (Path("c/side-a"), Path("c/side-b"))


def seeds() -> list[list[int]]:
    return [[run["seed"] for run in read_json(side / "baseline.json")["runs"]] for side in SIDES]


def gated(outcome_json: str) -> dict[str, str]:
    return {line["metric"]: line["verdict"] for line in json.loads(outcome_json)["lines"] if line["gated"]}


def test_unchanged_code_gives_a_simulated_baseline_again_to_the_last_digit(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"))
    outcome = tune(*CI, "--exact", "--json")
    assert outcome.code == 0, outcome.err
    assert set(gated(outcome.out).values()) == {"same"}
    assert not any(moved["steps"] or moved["requests"] for moved in json.loads(outcome.out)["moved"])
    assert seeds() == [[7, 8], [7, 8]]
    assert "1/2 candidate" in outcome.err
    assert "baseline, seed" not in outcome.err, "the stored runs are its side"


def test_a_simulated_regression_fails_and_the_stored_sides_say_so_again(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"))
    outcome = tune(*CI, "--set", "max_num_seqs=1", "--json", "--markdown", "m/pr.md", "--junit", "j.xml")
    assert outcome.code == 1, outcome.err
    assert gated(outcome.out)["mean_ttft"] == "worse"
    stored = read_json(Path("c/diff.json"))
    assert stored == json.loads(outcome.out)
    assert Path("m/pr.md").read_text() == Path("c/diff.md").read_text()
    assert Path("j.xml").read_text() == Path("c/junit.xml").read_text()
    again = tune("diff", *map(str, SIDES), "--json")
    assert again.code == 1
    assert gated(again.out) == gated(outcome.out)


def test_a_settings_file_is_a_candidate_too(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"), (7,))
    Path("s.yaml").write_text("max_num_seqs: 1\n")
    assert tune(*CI, "--settings", "s.yaml").code == 1
    assert load_side(SIDES[1]).settings["max_num_seqs"] == 1


def test_a_change_of_the_scheduling_order_is_found_and_named(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"), (7,), settings=Settings(max_num_seqs=1))
    assert tune(*CI, "--exact").code == 0
    outcome = tune("ci", "--baseline", "main", "--exact", "--set", "policy=sjf", "--json")
    assert outcome.code == 1, outcome.err
    (moved,) = json.loads(outcome.out)["moved"]
    assert moved["first_request"]["reordered"]


def test_on_a_device_both_sides_are_measured_here_with_seeds_from_the_baselines_first(tune: Tune) -> None:
    with noisy_machine(seed=11):
        stored_baseline(Path("baselines/main"), (7, 7, 7), simulated=False)
        outcome = tune(*CI, "--pairs", "3", "--set", "max_num_seqs=1")
    assert outcome.code == 1, outcome.err
    assert seeds() == [[7, 8, 9], [7, 8, 9]]
    record = read_json(SIDES[0] / "baseline.json")
    assert record["source"] == {"kind": "ci", "folder": "c"}
    order = [line.split()[3] for line in outcome.err.splitlines() if ", seed " in line]
    assert order == ["baseline,", "candidate,", "candidate,", "baseline,", "baseline,", "candidate,"]


def test_without_a_change_the_gate_tests_itself_and_says_so(tune: Tune) -> None:
    with noisy_machine(seed=12, spread=0.0):
        stored_baseline(Path("baselines/main"), (7,), simulated=False)
        outcome = tune(*CI, "--pairs", "2", "--json")
    assert outcome.code == 0, outcome.err
    assert "this code: what differs is the gate's own error" in outcome.err


def test_five_pairs_are_measured_unless_told_otherwise(tune: Tune) -> None:
    with noisy_machine(seed=13):
        stored_baseline(Path("baselines/main"), (7,), simulated=False)
        tune(*CI)
    assert seeds() == [[7, 8, 9, 10, 11]] * 2


def test_figures_of_another_machine_are_not_used_and_no_obstacle(tune: Tune) -> None:
    environment = run().record.meta["environment"] | {"cpu": "Z80"}
    with noisy_machine(seed=14):
        stored_baseline(Path("baselines/main"), (7, 7), simulated=False, environment=environment)
        outcome = tune(*CI, "--pairs", "3", "--set", "max_num_seqs=1")
    assert outcome.code == 1, outcome.err
    assert "come from another machine and are not used: its cpu is Z80" in outcome.err


def test_rules_take_the_place_of_the_default_gate(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"), (7,))
    outcome = tune(*CI, "--set", "max_num_seqs=1", "--fail-on", "output_throughput<-99%", "--json")
    assert outcome.code == 0, outcome.err
    assert gated(outcome.out) == {"output_throughput": "fine"}


def test_a_candidate_that_breaks_off_is_a_regression(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        raise RuntimeError("crash")

    stored_baseline(Path("baselines/main"), (7,))
    monkeypatch.setattr(SimulatedExecutor, "execute", failing)
    Path("pr.md").write_text("No regression, of another day")
    outcome = tune(*CI, "--json", "--markdown", "pr.md", "--junit", "j.xml", "--github")
    assert outcome.code == 1, outcome.err
    sentence = "Regression: a run of the candidate broke off: RuntimeError: crash"
    assert sentence in outcome.err
    assert f"::error title=tune ci::{sentence}" in outcome.err
    assert json.loads(outcome.out) == read_json(Path("c/diff.json"))
    assert (json.loads(outcome.out)["exit_code"], json.loads(outcome.out)["headline"]) == (1, f"{sentence}.")
    assert sentence in Path("pr.md").read_text()
    (failure,) = ET.parse("j.xml").iter("failure")
    assert sentence in (failure.text or "")
    (entry,) = read_json(SIDES[1] / "baseline.json")["runs"]
    assert read_json(SIDES[1] / entry["path"] / "run.json")["stopped_early"] == "failed: RuntimeError: crash"


def test_where_the_baselines_own_settings_break_off_nothing_can_be_told(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        raise RuntimeError("crash")

    with noisy_machine(seed=17):
        stored_baseline(Path("baselines/main"), (7,), simulated=False)
        monkeypatch.setattr(SimulatedExecutor, "execute", failing)
        outcome = tune(*CI, "--set", "max_num_seqs=1")
    assert outcome.code == 3, outcome.err
    assert "a run of the baseline broke off: RuntimeError: crash" in outcome.err
    assert not SIDES[1].exists()


@pytest.mark.parametrize(("interrupted_run", "judged"), [(2, False), (3, True)])
def test_an_interrupt_keeps_what_was_measured_and_judges_whole_pairs(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, interrupted_run: int, judged: bool
) -> None:
    with noisy_machine(seed=15):
        stored_baseline(Path("baselines/main"), (7,), simulated=False)
        interrupt_in(monkeypatch, interrupted_run)
        outcome = tune(*CI)
    assert outcome.code == 130, outcome.err
    stored = read_json(Path("c/diff.json"))
    assert bool(stored["lines"]) is judged
    if judged:
        assert stored["notices"][0] == "Interrupted: 1 of 5 pairs of runs were measured."
    else:
        assert stored["headline"].startswith("Interrupted before a pair of runs was whole")
    kept = sum(len(read_json(side / "baseline.json")["runs"]) for side in SIDES if side.is_dir())
    assert kept == interrupted_run - 1


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (["--baseline", "nothing"], "no baseline 'nothing'"),
        (["--baseline", "../x"], "is no name for a baseline"),
        (["--set", "max_seats=1"], "max_seats"),
        (["--set", "max_num_seqs=0"], "max_num_seqs=0"),
        (["--settings", "nowhere.yaml"], "nowhere.yaml"),
        (["--set", "gpu_memory_utilization=0.5"], "gpu_memory_utilization=0.5"),
        (["--checkout", "nowhere"], "'nowhere' is no checkout"),
        (["--base-checkout", "."], "is no checkout"),
        (["--fail-on", "speed>+5%"], "speed"),
        (["--margin", "0"], "--margin"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_and_leaves_nothing(tune: Tune, arguments: list[str], naming: str) -> None:
    stored_baseline(Path("baselines/main"), (7,))
    outcome = tune(*CI, *arguments)
    assert outcome.code == 2, outcome
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert naming in outcome.err.splitlines()[-1]
    assert not Path("c").exists()


def test_exactness_is_refused_on_a_real_device_before_anything_is_measured(tune: Tune) -> None:
    with noisy_machine(seed=16):
        stored_baseline(Path("baselines/main"), (7,), simulated=False)
        outcome = tune(*CI, "--exact")
    assert (outcome.code, "--exact is for baselines of a simulated device" in outcome.err) == (2, True)
    assert ", seed " not in outcome.err


def test_files_that_cannot_be_written_and_damaged_figures_are_found_before_anything_is_measured(tune: Tune) -> None:
    with noisy_machine(seed=18):
        baseline = stored_baseline(Path("baselines/main"), (7,), simulated=False)
        Path("folder").mkdir()
        Path("file").write_text("")
        for option in ("--markdown", "--junit"):
            for place in ("folder", "file/x.md"):
                outcome = tune(*CI, option, place)
                assert (outcome.code, f"{option} '{place}' cannot be written" in outcome.err) == (2, True)
                assert ", seed " not in outcome.err
        (baseline.run_folders[0] / "run.json").write_text("{")
        outcome = tune(*CI)
    assert (outcome.code, "run.json is damaged" in outcome.err) == (2, True)
    assert ", seed " not in outcome.err


def test_a_bug_is_no_regression(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    stored_baseline(Path("baselines/main"), (7,))
    monkeypatch.setattr("tuner.ci.candidate.candidate_settings", broken)
    outcome = tune(*CI)
    assert (outcome.code, "Traceback" in outcome.err) == (2, True)


def test_the_copy_of_stored_runs_keeps_the_time_of_the_baseline(tune: Tune) -> None:
    file = Path("baselines/main/baseline.json")
    stored_baseline(file.parent, (7,))
    file.write_text(json.dumps(read_json(file) | {"created": "2026-01-02T03:04:05+00:00"}))
    outcome = tune(*CI)
    assert "main: 1 run, 2026-01-02 03:04" in outcome.out


def test_a_result_is_not_written_over_another(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"), (7,))
    assert tune(*CI).code == 0
    outcome = tune(*CI)
    assert (outcome.code, "exists already" in outcome.err) == (2, True)


def test_a_learnt_device_goes_with_the_baseline_wherever_that_goes(tune: Tune, tmp_path: Path) -> None:
    device = learn_device([RunRecord.load(stored_run(Path("r")))])
    Path("cards").mkdir()
    Path("cards/mine.json").write_text(device.to_json())
    load = ("--workload", "chat-small", "--output-tokens", "uniform:4..16", "--window", "6s", "--warmup", "1s")
    bench = ("bench", "--device", "sim:cards/mine.json", *load, "--rate", "4", "--out", "b")
    outcome = tune(*bench)
    assert outcome.code == 0, outcome.err
    assert tune("baseline", "save", "first", "b").code == 0
    Path("cards/mine.json").unlink()
    assert tune("baseline", "save", "main", "first").code == 0
    record = read_json(Path("baselines/main/baseline.json"))
    assert record["target"] == read_json(Path("baselines/first/baseline.json"))["target"]
    assert record["device"]["name"] == record["target"]["device"]
    Path("baselines").rename("elsewhere")
    outcome = tune(*CI, "--store", "elsewhere", "--exact")
    assert outcome.code == 0, outcome.err
    assert tune("diff", "elsewhere/main", str(SIDES[1]), "--exact").code == 0


def test_a_card_that_is_gone_is_refused_by_name(tune: Tune) -> None:
    stored_run(Path("r"), device=run().record.meta["device"] | {"name": "sim:gone.json"})
    outcome = tune("baseline", "save", "main", "r")
    assert outcome.code == 2
    assert "the learnt device 'gone.json' cannot be read" in outcome.err
