"""`tune settings` and the search of what it lists: scheduling policies, batching modes, preemption."""

from pathlib import Path

import pytest

from reports.settings import setting_text
from tests.tuner.small_studies import SMALL, TPE, Tune, stored_runs, study_in
from tuner.settings import NAMES, Settings
from tuner.space import TUNED


def test_every_setting_is_listed_with_its_default(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = tune("settings")
    assert outcome.code == 0
    lines = [line for line in outcome.out.splitlines() if line and not line.startswith(" ")]
    rows = {line.split()[0].rstrip("*"): line.split() for line in lines}
    for name, default in Settings().to_dict().items():
        assert name in rows, f"{name} is not listed in one piece"
        assert " ".join(rows[name]).startswith(f"{rows[name][0]} {setting_text(name, default)}")
        assert rows[name][0].endswith("*") is (name in TUNED)
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_help_of_set_and_search_leads_to_the_list(tune: Tune) -> None:
    for command in ((), ("bench",), ("compare",)):
        assert "'tune settings'" in " ".join(tune(*command, "--help").out.replace("│", " ").split())


@pytest.mark.usefixtures("no_reports")
def test_policies_and_what_belongs_to_them_are_searched(tune: Tune, tmp_path: Path) -> None:
    texts = ["policy=fcfs,sjf,tiered", "aging=1s..1m", "preemption_mode=recompute,swap", "swap_space=1GiB..8GiB"]
    search = [word for text in texts for word in ("--search", text)]
    fixed = ["--set", "max_num_seqs=16", "--set", "max_num_batched_tokens=512", "--set", "chunk_size=off"]
    outcome = tune(*SMALL, *TPE, *fixed, *search, "--rate", "4", "--trials", "5", "--out", "s")
    assert outcome.code == 0, outcome.err
    trials = study_in(tmp_path / "s")["trials"]
    assert len(trials) == 6
    for trial in trials:
        settings = Settings.from_dict(trial["settings"])
        assert settings == settings.canonical()
        assert (settings.aging > 0) is (settings.policy != "fcfs")
        assert set(trial["settings"]) == set(NAMES)
    assert len({trial["settings"]["policy"] for trial in trials}) > 1


@pytest.mark.usefixtures("no_reports")
def test_dynamic_batches_are_searched_with_a_delay(tune: Tune, tmp_path: Path) -> None:
    held = ["gpu_memory_utilization=0.9", "max_num_seqs=16", "max_num_batched_tokens=512", "chunk_size=off"]
    fixed = [word for text in held for word in ("--set", text)]
    outcome = tune(*SMALL, *TPE, *fixed, "--search", "batching=continuous,static,dynamic", "--rate", "2", "--out", "s")
    assert outcome.code == 0, outcome.err
    assert "max_queue_delay=0.1s" in outcome.err
    tried = {
        (m["settings"]["batching"], m["settings"]["max_queue_delay"]) for m in stored_runs(tmp_path / "s").values()
    }
    assert tried == {("continuous", 0.0), ("static", 0.0), ("dynamic", 0.1)}
