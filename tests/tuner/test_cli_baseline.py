"""`tune baseline list`, `show` and `rm`, and a study that begins with a baseline."""

import json
import shutil
from pathlib import Path

import pytest

from reports.diff.load import load_side
from tests.tuner.kept_runs import SEATS, run, stored_baseline
from tests.tuner.small_studies import SMALL, TPE, Outcome, Tune, read_json, study_in
from tuner.baseline.files import Origin
from tuner.baseline.prior import with_baseline
from tuner.baseline.record import Baseline
from tuner.baseline.store import create
from tuner.prior import MOST_RUNS, MOST_TRIES, Prior
from tuner.settings import Settings
from tuner.space import Range, SearchSpace

SPACE = SearchSpace({"max_num_seqs": Range(8, 256)}, Settings())


def test_list_shows_what_each_baseline_is_of(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"))
    summary = run().record.meta["summary"]
    repeats = [run(simulated=False, summary=summary | {"mean_ttft_ms": ms}) for ms in (100.0, 104.0)]
    create(Path("baselines/real"), Origin("run", "x"), repeats)
    outcome = tune("baseline", "list")
    assert outcome.code == 0, outcome.err
    shown = " ".join(outcome.out.split())
    for text in ("main", "real", "sim:l4", "chat-small", "4.00 req/s", "max_num_seqs", "none:", "2 runs"):
        assert text in shown
    assert "mean_ttft ±2.8%" in shown


def test_list_goes_on_past_a_damaged_baseline_and_names_it(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"))
    stored_baseline(Path("baselines/cut"))
    Path("baselines/cut/baseline.json").write_text("{")
    outcome = tune("baseline", "list")
    assert outcome.code == 0, outcome.err
    assert "main" in outcome.out
    assert "cut/baseline.json is damaged" in " ".join(outcome.out.split())
    entries = json.loads(tune("baseline", "list", "--json").out)["baselines"]
    assert [entry["name"] for entry in entries] == ["cut", "main"]
    assert "damaged" in entries[0]["error"]


def test_an_empty_store_says_how_to_fill_it(tune: Tune) -> None:
    outcome = tune("baseline", "list", "--store", "elsewhere")
    assert (outcome.code, outcome.err) == (0, "")
    assert "no baselines in 'elsewhere': tune baseline save makes one" in outcome.out


def test_show_tells_everything_for_people_and_for_programs(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"))
    outcome = tune("baseline", "show", "main")
    assert outcome.code == 0, outcome.err
    for text in ("from the run somewhere", "random:qwen2.5-7b", "p95_ttft=1s", "runs/002-seed8", "windows of 6.00 s"):
        assert text in outcome.out
    shown = json.loads(tune("baseline", "show", "main", "--json").out)
    assert shown == {**read_json(Path("baselines/main/baseline.json")), "folder": "baselines/main", "noise": {}}


def test_rm_removes_all_or_refuses_all(tune: Tune) -> None:
    stored_baseline(Path("baselines/a"))
    stored_baseline(Path("baselines/b"))
    outcome = tune("baseline", "rm", "a", "c")
    assert (outcome.code, "no baseline 'c'" in outcome.err) == (2, True)
    assert Path("baselines/a").is_dir()
    assert tune("baseline", "rm", "a", "b").code == 0
    assert list(Path("baselines").iterdir()) == []


@pytest.mark.parametrize("command", ["show", "rm", "repeat"])
def test_a_name_that_is_not_there_is_refused(tune: Tune, command: str) -> None:
    outcome = tune("baseline", command, "main")
    assert outcome.code == 2
    assert "no baseline 'main'" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.fixture
def baseline(tmp_path: Path) -> Baseline:
    return stored_baseline(tmp_path / "main")


def new_study(baseline: Baseline, **changes: object) -> dict[str, object]:
    """The record of a new study on the baseline's device."""
    return {**baseline.record, "options": {"arguments": {"device": "sim:l4"}}, **changes}


def test_a_baselines_settings_are_tried_first_and_its_runs_teach_the_twin(baseline: Baseline) -> None:
    earlier = Prior(tries=(Settings(max_num_seqs=32),), runs=(Path("x"),), studies=("old",))
    prior = with_baseline(earlier, baseline, new_study(baseline), SPACE, pytest.fail)
    assert prior.tries == (SEATS, Settings(max_num_seqs=32))
    assert prior.runs == (*(baseline.path / "runs" / name for name in ("002-seed8", "001-seed7")), Path("x"))
    assert prior.studies == ("main (baseline)", "old")


def test_what_a_baseline_adds_keeps_to_the_limits(baseline: Baseline) -> None:
    many = tuple(Settings(max_num_seqs=n) for n in range(20, 20 + MOST_TRIES))
    runs = tuple(Path(str(n)) for n in range(MOST_RUNS))
    prior = with_baseline(Prior(tries=many, runs=runs), baseline, new_study(baseline), SPACE, pytest.fail)
    assert (len(prior.tries), len(prior.runs)) == (MOST_TRIES, MOST_RUNS)


def test_of_another_device_the_settings_are_tried_and_nothing_is_learnt(baseline: Baseline) -> None:
    said: list[str] = []
    device = baseline.record["device"] | {"name": "sim:h100"}
    prior = with_baseline(Prior(), baseline, new_study(baseline, device=device), SPACE, said.append)
    assert (prior.tries, prior.runs) == ((SEATS,), ())
    assert "its device has name sim:l4, the one here sim:h100" in said[0]


def test_settings_that_are_the_default_here_are_not_tried_again(baseline: Baseline) -> None:
    space = SearchSpace({"max_num_seqs": Range(8, 256)}, SEATS)
    assert with_baseline(Prior(), baseline, new_study(baseline), space, pytest.fail).tries == ()


@pytest.mark.usefixtures("no_reports")
def test_a_study_begins_with_a_baseline(tune: Tune, whole_study: tuple[Path, Outcome]) -> None:
    shutil.copytree(whole_study[0], "study")
    assert tune("baseline", "save", "main", "study").code == 0
    settings = load_side("baselines/main").settings
    few = ("--set", "max_num_seqs=4", "--search", "max_num_seqs=4..32", "--seed", "3", "--rate", "6", "--trials", "1")
    outcome = tune(*SMALL, *TPE, *few, "--warm-start", "off", "--baseline", "main", "--out", "new")
    assert outcome.code == 0, outcome.err
    study = study_in(Path("new"))
    assert study["trials"][1]["settings"] == settings
    assert study["warm_start"]["studies"] == ["main (baseline)"]
    assert study["warm_start"]["runs"] == len(load_side("baselines/main").runs)


def test_a_strategy_with_a_sequence_of_its_own_takes_no_baseline(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*SMALL, "--strategy", "grid", "--baseline", "main", "--out", "new")
    assert outcome.code == 2
    assert "goes through a sequence of its own" in outcome.err
    outcome = tune(*SMALL, "--baseline", "main", "--out", "new")
    assert (outcome.code, "no baseline 'main'" in outcome.err) == (2, True)
    assert list(tmp_path.iterdir()) == []
