"""`tune diff`: names and folders, refusals, files, exit codes."""

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.small_studies import ENGINE, LOAD, SLO, Outcome, Tune, read_json

BENCH = ("bench", *ENGINE, *LOAD, *SLO, "--rate", "6")


@pytest.fixture(autouse=True)
def nowhere_near_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a simulated card, to be copied: `wide`, and `narrow` with four seats."""
    from tests.tuner.conftest import call

    folder = tmp_path_factory.mktemp("measured")
    for name, settings in (("wide", ()), ("narrow", ("--set", "max_num_seqs=4"))):
        assert call(*BENCH, *settings, "--out", str(folder / name)).code == 0
    return folder


@pytest.fixture
def here(tmp_path: Path, measured: Path) -> Path:
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    return tmp_path


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    meta = read_json(folder / "run.json")
    change(meta)
    (folder / "run.json").write_text(json.dumps(meta))


def as_baseline(here: Path, name: str, runs: list[Path]) -> None:
    """A baseline as `tune baseline save` leaves it, of these runs."""
    folder = here / "baselines" / name
    entries = []
    for number, run in enumerate(runs, start=1):
        path = f"runs/{number:03d}"
        shutil.copytree(run, folder / path)
        entries.append({"path": path, "seed": read_json(run / "run.json")["seed"], "session": "2026-11-29"})
    meta = read_json(runs[0] / "run.json")
    (folder / "baseline.json").write_text(json.dumps(meta | {"kind": "baseline", "name": name, "runs": entries}))


def refused(outcome: Outcome, naming: str) -> None:
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    assert naming in outcome.err.splitlines()[-1]


def test_the_same_run_is_exactly_the_same(tune: Tune, here: Path) -> None:
    outcome = tune("diff", "wide", "wide", "--exact")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("No regression: wide behaves exactly as wide")


def test_a_setting_that_makes_it_worse_is_a_regression_with_what_moved(tune: Tune, here: Path) -> None:
    outcome = tune("diff", "wide", "narrow")
    assert outcome.code == 1, outcome.err
    assert outcome.out.startswith("Regression: narrow is worse than wide")
    assert "What moved" in outcome.out
    assert "iterations differ, first number" in " ".join(outcome.out.split())


def test_an_improvement_passes_unless_exactly_the_same_is_asked_for(tune: Tune, here: Path) -> None:
    rule = ("--fail-on", "p95_ttft>+5%")
    assert tune("diff", "narrow", "wide", *rule).code == 0
    assert tune("diff", "narrow", "wide", *rule, "--exact").code == 1


def test_names_of_baselines_are_found_in_the_store(tune: Tune, here: Path) -> None:
    as_baseline(here, "main", [here / "wide"])
    outcome = tune("diff", "main", "narrow")
    assert outcome.code == 1
    assert "narrow is worse than main" in outcome.out
    (here / "baselines").rename(here / "kept")
    assert tune("diff", "main", "narrow", "--store", "kept").code == 1
    refused(tune("diff", "main", "narrow"), "neither a folder nor a baseline")


def on_a_real_device(here: Path) -> None:
    for name in ("wide", "narrow"):
        edit(here / name, lambda meta: meta.update(simulated=False))


def test_one_real_run_of_each_side_cannot_tell(tune: Tune, here: Path) -> None:
    on_a_real_device(here)
    outcome = tune("diff", "wide", "narrow")
    assert outcome.code == 3
    assert outcome.out.startswith("Cannot tell")
    refused(tune("diff", "wide", "narrow", "--exact"), "--exact")


def test_repeats_make_it_tell_those_of_the_side_but_not_of_another_time_alone(tune: Tune, here: Path) -> None:
    on_a_real_device(here)
    as_baseline(here, "night", [here / "wide", here / "wide"])
    assert tune("diff", "night", "narrow").code == 1
    assert tune("diff", "wide", "narrow", "--noise", "night").code == 3


def test_what_is_not_comparable_is_refused_unless_allowed(tune: Tune, here: Path) -> None:
    edit(here / "narrow", lambda meta: meta.update(rate=7.0))
    edit(here / "narrow", lambda meta: meta["model"].update(name="other"))
    outcome = tune("diff", "wide", "narrow")
    refused(outcome, "rate: 6 against 7")
    refused(outcome, "other")
    refused(tune("diff", "wide", "narrow", "--allow", "rate"), "model.name")
    assert tune("diff", "wide", "narrow", "--allow", "rate,model").code == 1
    refused(tune("diff", "wide", "narrow", "--allow", "everything"), "'everything'")


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (["wide", "elsewhere"], "'elsewhere'"),
        (["wide", "wide", "--fail-on", "p95_ttft"], "p95_ttft>+5%"),
        (["wide", "wide", "--fail-on", "speed<-5%"], "'speed'"),
        (["wide", "wide", "--margin", "wide"], "--margin 'wide'"),
        (["wide", "."], "holds no baseline"),
        (["wide", "wide", "--junit", "wide"], "--junit 'wide'"),
    ],
)
def test_bad_input_is_a_sentence(tune: Tune, here: Path, arguments: list[str], naming: str) -> None:
    refused(tune("diff", *arguments), naming)


def test_an_empty_window_and_an_older_schema_are_refused(tune: Tune, here: Path) -> None:
    edit(here / "narrow", lambda meta: meta["window"].update(requests=0))
    refused(tune("diff", "wide", "narrow"), "no request was scheduled")
    edit(here / "narrow", lambda meta: meta.update(schema_version=1))
    refused(tune("diff", "wide", "narrow"), "schema_version 1")


def test_files_are_written_and_json_stands_alone(tune: Tune, here: Path) -> None:
    outcome = tune(
        "diff", "wide", "narrow", "--json", "--markdown", "out/diff.md", "--junit", "out/diff.xml", "--github"
    )
    assert outcome.code == 1, outcome.err
    content = json.loads(outcome.out)
    assert (content["kind"], content["exit_code"]) == ("diff", 1)
    assert content["moved"][0]["first_step"]["changes"]
    assert outcome.err.startswith("::error title=tune diff::Regression")
    assert (here / "out/diff.md").read_text(encoding="utf-8").startswith("### ❌ Regression")
    suite = ET.parse(here / "out/diff.xml").getroot().find("testsuite")
    assert suite is not None
    assert int(suite.get("failures") or 0) > 0


def test_on_github_annotations_come_by_themselves_and_the_summary_grows(
    tune: Tune, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(here / "summary.md"))
    outcome = tune("diff", "wide", "wide")
    assert outcome.code == 0
    assert "::notice title=tune diff::No regression" in outcome.out
    assert (here / "summary.md").read_text(encoding="utf-8").startswith("before\n### ✅ No regression")


def test_a_study_is_compared_by_what_it_recommends(tune: Tune, here: Path, whole_study: tuple[Path, Outcome]) -> None:
    outcome = tune("diff", str(whole_study[0]), str(whole_study[0]), "--json")
    assert outcome.code == 0, outcome.err
    best = read_json(whole_study[0] / "best.json")
    assert json.loads(outcome.out)["base"]["settings"] == best["settings"]
