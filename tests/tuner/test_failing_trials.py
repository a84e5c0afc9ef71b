"""Settings that run out of memory or crash: recorded, never chosen, and no end of the study or the engine."""

import functools
from pathlib import Path
from typing import Any

import optuna
import pytest

from engine.errors import OutOfDeviceMemory
from engine.executor.base import StepResult
from engine.executor.simulated import SimulatedExecutor
from engine.scheduler.plan import StepPlan
from tests.tuner.small_studies import FEW_SEATS, SMALL, TPE, Tune, stored_runs, study_in
from tuner.budget import Budget
from tuner.confirmation import FRESH_SEEDS
from tuner.targets.bundled import BundledTarget, Measured

MOST_RUNNING = 6
# About four requests run at once, and now and then more than six where there are seats for them.
SEATS = ("--set", f"max_num_seqs={MOST_RUNNING}", "--search", "max_num_seqs=4..32")
ARGUMENTS = (*SMALL, *TPE, *SEATS, "--rate", "6", "--out", "s")
OUT_OF_MEMORY = OutOfDeviceMemory("no room for that many")
CRASH = RuntimeError("crash")


def fail_steps(monkeypatch: pytest.MonkeyPatch, error: Exception, most_running: int) -> None:
    """Steps with more than `most_running` requests raise `error`."""
    execute = SimulatedExecutor.execute

    def failing(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        if plan.num_running > most_running:
            raise type(error)(*error.args)
        return execute(self, plan)

    monkeypatch.setattr(SimulatedExecutor, "execute", failing)


def fail_allocation(monkeypatch: pytest.MonkeyPatch, most_seats: int) -> None:
    """KV blocks find no room beside the activations of more than `most_seats` seats."""
    profile = SimulatedExecutor.profile_memory
    seats: list[int] = []

    def remember(self: SimulatedExecutor, max_num_batched_tokens: int, max_num_seqs: int) -> Any:
        seats.append(max_num_seqs)
        return profile(self, max_num_batched_tokens, max_num_seqs)

    def allocate(self: SimulatedExecutor, *_: object) -> None:
        if seats[-1] > most_seats:
            raise OutOfDeviceMemory(*OUT_OF_MEMORY.args)

    monkeypatch.setattr(SimulatedExecutor, "profile_memory", remember)
    monkeypatch.setattr(SimulatedExecutor, "allocate_kv", allocate)


def trials_by_state(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The trials that failed, and the others."""
    trials = study_in(folder)["trials"]
    failed = [t for t in trials if t["state"] == "failed"]
    return failed, [t for t in trials if t["state"] != "failed"]


def assert_infeasible_for_optuna(folder: Path, failed: list[dict[str, Any]]) -> None:
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{folder / 'study.db'}")
    by_number = {t.user_attrs["trial"]: t for t in study.trials if "trial" in t.user_attrs}
    for trial in failed:
        told = by_number[trial["number"]]
        assert told.state == optuna.trial.TrialState.COMPLETE
        assert told.constraints["slo"] > 0


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, CRASH], ids=["out of memory", "crash"])
def test_a_setting_whose_steps_fail_is_recorded_and_never_wins(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_steps(monkeypatch, error, MOST_RUNNING)
    outcome = tune(*ARGUMENTS, "--trials", "4")
    assert outcome.code == 0, outcome.err
    study, (failed, served) = study_in(tmp_path / "s"), trials_by_state(tmp_path / "s")
    assert failed
    assert len(served) >= 2
    for trial in failed:
        assert trial["error"] == f"{type(error).__name__}: {error}"
        assert trial["settings"]["max_num_seqs"] > MOST_RUNNING
        assert trial["constraint"] > 0
        assert trial["rate"] is None
        assert [r["stopped_early"] for r in trial["runs"]] == [f"failed: {trial['error']}"]
    assert study["best"]["trial"] in {t["number"] for t in served}
    assert study["confirmation"]["verdict"] != "skipped"
    assert study["state"] == "complete"
    assert_infeasible_for_optuna(tmp_path / "s", failed)
    assert str(error) in (tmp_path / "s" / "report.md").read_text()


@pytest.mark.usefixtures("no_reports")
def test_a_setting_whose_kv_cache_cannot_be_allocated_is_a_failed_trial_without_runs(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_allocation(monkeypatch, most_seats=10)
    outcome = tune(*ARGUMENTS, "--trials", "4")
    assert outcome.code == 0, outcome.err
    failed, served = trials_by_state(tmp_path / "s")
    assert failed
    assert len(served) >= 2
    for trial in failed:
        assert trial["settings"]["max_num_seqs"] > 10
        assert trial["error"] == str(OUT_OF_MEMORY)
        assert (trial["runs"], trial["goodput"], trial["rate"], trial["constraint"]) == ([], None, None, 1.0)
    assert all(meta["settings"]["max_num_seqs"] <= 10 for meta in stored_runs(tmp_path / "s").values())
    assert_infeasible_for_optuna(tmp_path / "s", failed)


SWAP = ("--set", "preemption_mode=swap")


@pytest.mark.usefixtures("no_reports")
def test_a_swap_space_for_less_than_a_block_is_a_failed_trial_and_is_not_tried_again_when_resumed(
    tune: Tune, tmp_path: Path
) -> None:
    held = [word for name in ("gpu_memory_utilization=0.9", "max_num_batched_tokens=512", "chunk_size=off",
                              "max_num_seqs=16") for word in ("--set", name)]  # fmt: skip
    search = ("--search", "swap_space=1,512MiB")
    outcome = tune(*SMALL, *TPE, *held, *SWAP, *search, "--rate", "4", "--trials", "1", "--seed", "2", "--out", "s")
    assert outcome.code == 0, outcome.err
    assert len(trials_by_state(tmp_path / "s")[0]) == 1
    outcome = tune("--resume", "s", "--trials", "2")
    assert outcome.code == 0, outcome.err
    (failed,), served = trials_by_state(tmp_path / "s")
    assert failed["settings"]["swap_space"] == 1
    assert "swap_space=1 holds not one block" in failed["error"]
    assert [t["settings"]["swap_space"] for t in served] == [4 << 30, 512 << 20]
    assert_infeasible_for_optuna(tmp_path / "s", [failed])


def test_an_error_in_a_study_leaves_reports_of_what_was_measured(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OUT_OF_MEMORY

    monkeypatch.setattr("tuner.search.importance", fail)
    outcome = tune(*ARGUMENTS, "--trials", "1")
    assert outcome.code == 2
    assert study_in(tmp_path / "s")["state"] == "failed"
    assert {"report.html", "report.md"} <= {p.name for p in (tmp_path / "s").iterdir()}


@pytest.fixture
def ten_second_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget's clock moves by ten seconds with each run, failed or not, and by nothing else."""
    now_s = [0.0]
    measure = BundledTarget.measure

    def measure_for_ten_seconds(*args: Any, **options: Any) -> Measured:
        try:
            return measure(*args, **options)
        finally:
            now_s[0] += 10.0

    monkeypatch.setattr(BundledTarget, "measure", measure_for_ten_seconds)
    monkeypatch.setattr("tuner.cli.tune.Budget", functools.partial(Budget, clock=lambda: now_s[0]))


def assert_budget_kept(folder: Path, budget_s: float) -> None:
    """All runs lie within the budget, and the search has left enough of it to measure again."""
    study = study_in(folder)
    assert study["elapsed_s"] == 10.0 * len(stored_runs(folder))
    assert study["elapsed_s"] <= budget_s
    sides = [side for label in ("baseline", "winner") if (side := study["confirmation"][label])]
    assert sides
    # The default's own rate may be left to the search's run of it.
    assert all(len(side["runs"]) in (1, 2) for side in sides)


@pytest.mark.usefixtures("no_reports", "ten_second_runs")
def test_the_budget_holds_when_trials_fail(tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_steps(monkeypatch, CRASH, MOST_RUNNING)
    outcome = tune(*ARGUMENTS, "--budget", "100s")
    assert outcome.code == 0, outcome.err
    assert trials_by_state(tmp_path / "s")[0]
    assert_budget_kept(tmp_path / "s", 100.0)


@pytest.mark.usefixtures("no_reports", "ten_second_runs")
def test_the_budget_holds_when_it_ends_within_a_trial(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*SMALL, *TPE, *FEW_SEATS, "--budget", "150s", "--out", "s")
    assert outcome.code == 0, outcome.err
    assert_budget_kept(tmp_path / "s", 150.0)


@pytest.mark.parametrize("rate", ["6", "auto"])
@pytest.mark.parametrize("error", [OUT_OF_MEMORY, CRASH], ids=["out of memory", "crash"])
def test_a_baseline_that_fails_ends_the_study_with_its_reason(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, rate: str
) -> None:
    fail_steps(monkeypatch, error, most_running=1)
    outcome = tune(*SMALL, *TPE, "--rate", rate, "--trials", "2", "--out", "s")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    last = outcome.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert str(error) in last
    study = study_in(tmp_path / "s")
    assert study["state"] == "failed"
    assert str(error) in study["reason"]
    assert study["best"] is None


# The default has few seats; settings with more hold more, and crash once a peak fills them.
PEAK = ("--set", "max_num_seqs=4", "--search", "max_num_seqs=4..32", "--rate", "auto", "--out", "s")


@pytest.mark.usefixtures("no_reports")
def test_a_setting_that_crashes_only_under_load_is_never_chosen_for_the_rates_it_held(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_steps(monkeypatch, CRASH, most_running=9)
    outcome = tune(*SMALL, *TPE, *PEAK, "--trials", "6", "--seed", "1")
    assert outcome.code == 0, outcome.err
    study, (failed, served) = study_in(tmp_path / "s"), trials_by_state(tmp_path / "s")
    at_a_peak = [t for t in failed if len(t["runs"]) > 1]
    assert at_a_peak, "no setting held a rate before it crashed"
    for trial in at_a_peak:
        assert trial["runs"][0]["stopped_early"] is None
        assert (trial["error_type"], trial["rate"], trial["constraint"]) == ("RuntimeError", None, 1.0)
    assert study["best"]["trial"] in {t["number"] for t in served}
    assert study["best"]["settings"]["max_num_seqs"] <= 9
    assert study["confirmation"]["winner"] is None or study["confirmation"]["winner"]["settings"]["max_num_seqs"] <= 9
    assert_infeasible_for_optuna(tmp_path / "s", failed)


def fail_confirmation(monkeypatch: pytest.MonkeyPatch, error: Exception, winners: int) -> None:
    """The first so many winners fail when they are measured again."""
    measure = BundledTarget.measure
    failing: list[Any] = []

    def measure_or_fail(self: BundledTarget, settings: Any, load: Any, *args: Any, **options: Any) -> Measured:
        is_winner = load.seed >= FRESH_SEEDS and settings.max_num_seqs > 4
        if is_winner and settings not in failing and len(failing) < winners:
            failing.append(settings)
        if is_winner and settings in failing:
            raise type(error)(*error.args)
        return measure(self, settings, load, *args, **options)

    monkeypatch.setattr(BundledTarget, "measure", measure_or_fail)


@pytest.mark.usefixtures("no_reports")
def test_a_winner_that_fails_when_it_is_measured_again_makes_room_for_the_next_best(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_confirmation(monkeypatch, OUT_OF_MEMORY, winners=1)
    outcome = tune(*SMALL, *TPE, *PEAK, "--trials", "4", "--seed", "1")
    assert outcome.code == 0, outcome.err
    study, (failed, served) = study_in(tmp_path / "s"), trials_by_state(tmp_path / "s")
    (first,) = failed
    assert (first["error"], first["error_type"]) == (str(OUT_OF_MEMORY), "OutOfDeviceMemory")
    assert study["best"]["trial"] in {t["number"] for t in served}
    assert study["best"]["settings"] != first["settings"]
    assert study["confirmation"]["verdict"] in ("better", "default is best", "same", "cannot tell")
    assert "on to the next best" in outcome.err


@pytest.mark.usefixtures("no_reports")
def test_a_default_that_crashes_at_its_highest_rate_is_no_end_of_the_study_and_is_not_recommended(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_steps(monkeypatch, CRASH, most_running=9)
    # One at which the default holds a rate before it crashes at the next.
    monkeypatch.setattr(BundledTarget, "burst", lambda *_: (4.0, 0.5))
    search = ("--set", "max_num_seqs=16", "--search", "max_num_seqs=4..8", "--rate", "auto")
    outcome = tune(*SMALL, *TPE, *search, "--trials", "3", "--out", "s")
    assert outcome.code == 0, outcome.err
    assert "the default settings broke off" in outcome.err
    study = study_in(tmp_path / "s")
    assert study["trials"][0]["state"] == "failed"
    assert study["best"]["settings"]["max_num_seqs"] <= 8
    assert study["state"] == "complete"
