"""What the confirmation stores of each class of requests, over all runs of a side together."""

from pathlib import Path

import pytest

from tests.tuner.small_studies import Outcome, stored_runs, study_in
from tuner.claim import make_side
from tuner.settings import Settings
from tuner.store import StudyStore
from tuner.targets.bundled import BundledTarget, Load, TargetOptions
from workloads.slo import parse_slo
from workloads.spec import load_spec

SETTINGS = Settings(max_num_seqs=4, policy="priority")
SLO = parse_slo(["p95_ttft=1s"])


def test_a_sides_classes_are_those_of_its_runs_taken_together(tmp_path: Path) -> None:
    target = BundledTarget(TargetOptions("random:qwen2.5-7b", "sim:l4"), load_spec("mixed-small"), SETTINGS)
    store = StudyStore.create(tmp_path / "s", {})
    runs = [
        store.add_run("again", target.measure(SETTINGS, Load(6.0, seed, 1.0, 10.0), SLO, stop_when_settled=False))
        for seed in (1, 2)
    ]
    side = make_side(store, SETTINGS, runs, SLO)
    assert list(side.classes) == ["interactive", "batch"]
    for name, pooled in side.classes.items():
        parts = [run.meta["classes"][name] for run in runs]
        for count in ("requests", "completed", "good_requests", "preemptions"):
            assert pooled[count] == sum(part[count] for part in parts)
        # A request may wait on after its window has ended, for steps that the pooled windows no longer hold.
        waited = sum(part["requests"] * part["mean_wait_seats_ms"] for part in parts)
        assert pooled["mean_wait_seats_ms"] == pytest.approx(waited / pooled["requests"])
    assert sum(c["mean_wait_seats_ms"] for c in side.classes.values()) > 0
    assert side.to_dict(0.0, 1.0)["classes"] == side.classes


def test_a_study_holds_the_classes_of_both_sides(whole_study: tuple[Path, Outcome]) -> None:
    folder, _ = whole_study
    runs, confirmation = stored_runs(folder), study_in(folder)["confirmation"]
    for side in (confirmation["winner"], confirmation["baseline"]):
        assert set(side["classes"]) == {"all"}
        metas = [runs[Path(path).name] for path in side["runs"]]
        assert side["classes"]["all"]["requests"] == sum(meta["window"]["requests"] for meta in metas)
