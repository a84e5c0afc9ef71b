"""What a candidate is, and in which order both sides are measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import UserError
from tests.tuner.kept_runs import LOAD, SEATS, SLO, make_target, noisy_machine
from tuner.ci.candidate import candidate_settings, read_settings
from tuner.ci.turns import Arm, BrokeOff, measure_in_turn
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, Measured

LOADS = [replace(LOAD, seed=seed) for seed in (7, 8, 9)]


def test_both_sides_are_measured_in_turn_under_the_same_traffic() -> None:
    target = make_target()
    order: list[tuple[str, int]] = []
    with noisy_machine(seed=1):
        base, new = measure_in_turn(
            Arm("a", target, SEATS), Arm("b", target, replace(SEATS, max_num_seqs=4)), LOADS, SLO,
            keep=lambda arm, run: order.append((arm.name, run.seed)),
        )  # fmt: skip
    assert "".join(name for name, _ in order) == "abbaab"
    assert [seed for _, seed in order] == [7, 7, 8, 8, 9, 9]
    assert (base.seeds, new.seeds) == ((7, 8, 9), (7, 8, 9))
    assert (base.settings["max_num_seqs"], new.settings["max_num_seqs"]) == (16, 4)
    assert base.sessions == new.sessions
    assert len(base.sessions) == 1
    for ours, theirs in zip(base.runs, new.runs, strict=True):
        arrivals = [[r.t_sched for r in run.record.request_records()] for run in (ours, theirs)]
        assert arrivals[0] == arrivals[1]


def test_a_run_that_breaks_off_ends_the_measurement_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    target, kept = make_target(), []
    measure = BundledTarget.measure

    def breaking(self: BundledTarget, settings: Settings, load: Load, *rest: object, **options: object) -> Measured:
        measured = measure(self, settings, load, *rest, **options)  # type: ignore[arg-type]
        return replace(measured, error="RuntimeError: crash") if settings != SEATS else measured

    monkeypatch.setattr(BundledTarget, "measure", breaking)
    candidate = Arm("b", target, Settings(max_num_seqs=4))
    with pytest.raises(BrokeOff, match="a run of the b broke off: RuntimeError: crash") as error:
        measure_in_turn(Arm("a", target, SEATS), candidate, LOADS, SLO, keep=lambda arm, run: kept.append(arm.name))
    assert error.value.arm is candidate
    assert kept == ["a", "b"]


def test_assignments_win_over_the_file_and_the_file_over_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("max_num_seqs: 32\nchunk_size: 512\n")
    settings = candidate_settings(SEATS, str(tmp_path / "s.yaml"), ["chunk_size=256"])
    assert settings == replace(SEATS, max_num_seqs=32, chunk_size=256)
    assert candidate_settings(SEATS, None, ()) == SEATS


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(batching="dynamic", max_queue_delay=0.05, preferred_batch_size=8, policy="sjf", aging=2.5),
        Settings(enable_prefix_caching=False, swap_space=512 << 20, preemption_mode="swap", gpu_memory_utilization=0.8),
    ],
    ids=["defaults", "durations", "switches and sizes"],
)
def test_the_settings_of_a_record_are_read_to_the_last_digit(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "best.json"
    file.write_text(json.dumps({"schema_version": 2, "rate": 3.0, "settings": settings.to_dict()}))
    assert candidate_settings(SEATS, str(file), ()) == settings


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("chunk_size: off", "chunk_size", 0),
        ("queue_timeout: 5s", "queue_timeout", 5.0),
        ("queue_timeout: 5", "queue_timeout", 5.0),
        ("swap_space: 1GiB", "swap_space", 1 << 30),
        ("enable_prefix_caching: off", "enable_prefix_caching", False),
        ("policy: sjf", "policy", "sjf"),
        ('{"max_num_seqs": 48}', "max_num_seqs", 48),
    ],
)
def test_values_may_be_written_as_people_write_them(tmp_path: Path, text: str, name: str, value: object) -> None:
    (tmp_path / "s.yaml").write_text(text)
    assert read_settings(tmp_path / "s.yaml") == {name: value}


@pytest.mark.parametrize(
    ("text", "naming"),
    [
        ("max_seats: 4", "max_seats"),
        ("max_num_seqs: many", "many"),
        ("max_num_seqs: [1, 2]", "whole number"),
        ("- max_num_seqs", "holds no settings"),
        ("", "holds no settings"),
        ("a: b: c", "neither JSON nor YAML"),
        ('{"settings": null}', "no setting of its study met the SLO"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str, naming: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UserError, match=naming):
        read_settings(tmp_path / "s.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_settings(tmp_path / "nowhere.yaml")
