"""What `tune baseline` refuses before it changes or measures anything, and what it never removes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from tests.tuner.kept_runs import noisy_machine, run, stored_baseline, stored_run
from tests.tuner.small_studies import Tune, read_json
from tuner.baseline.record import Baseline
from tuner.baseline.store import require_place
from tuner.lock import alone_in


def test_force_replaces_only_a_baseline(tune: Tune) -> None:
    stored_run(Path("r"))
    Path("baselines/mine").mkdir(parents=True)
    Path("baselines/mine/thesis.txt").write_text("years of work")
    outcome = tune("baseline", "save", "mine", "r", "--force")
    assert (outcome.code, "no baseline, so it is not replaced" in outcome.err) == (2, True)
    assert Path("baselines/mine/thesis.txt").read_text() == "years of work"


def test_a_link_is_not_replaced_and_its_removal_leaves_what_it_leads_to(tune: Tune) -> None:
    stored_run(Path("r"))
    stored_baseline(Path("elsewhere/main"), (7,))
    Path("baselines").mkdir()
    Path("baselines/main").symlink_to(Path("elsewhere/main").resolve())
    outcome = tune("baseline", "save", "main", "r", "--force")
    assert (outcome.code, "is a link to another folder" in outcome.err) == (2, True)
    assert tune("baseline", "rm", "main").code == 0
    assert not Path("baselines/main").exists()
    assert Path("elsewhere/main/baseline.json").is_file()


def test_a_name_given_twice_is_removed_once(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"), (7,))
    outcome = tune("baseline", "rm", "main", "main")
    assert (outcome.code, outcome.out) == (0, "removed main\n")


def test_a_place_that_cannot_be_written_is_found_before_the_model_is_loaded(tune: Tune) -> None:
    stored_run(Path("r"), simulated=False)
    Path("file").write_text("")
    with noisy_machine(seed=21):
        outcome = tune("baseline", "save", "main", "r", "--store", "file/store")
    assert (outcome.code, "cannot write the baseline to" in outcome.err) == (2, True)
    assert "random weights" not in outcome.err


def test_a_baseline_in_use_is_found_before_the_model_is_loaded(tune: Tune) -> None:
    baseline = stored_baseline(Path("baselines/main"), (7,), simulated=False)
    with noisy_machine(seed=22), alone_in(baseline.path):
        outcome = tune("baseline", "repeat", "main")
        with pytest.raises(UserError, match="in use"):
            require_place(baseline.path)
    assert (outcome.code, "is in use" in outcome.err) == (2, True)
    assert "random weights" not in outcome.err


@pytest.mark.parametrize(
    ("change", "naming"),
    [
        (lambda record: record["target"].update(max_model_len="long"), "target is damaged: max_model_len"),
        (lambda record: record["target"].update(enforce_eager=1), "enforce_eager is 1, where true or false belongs"),
        (lambda record: record.update(workload=[]), "workload"),
        (lambda record: record.update(environment=3), "environment"),
        (lambda record: record.update(rate=float("nan")), "NaN is no number of JSON"),
        (lambda record: record.update(rate=float("inf")), "Infinity is no number of JSON"),
    ],
)
def test_a_record_of_another_shape_is_refused_by_name(
    tune: Tune, change: Callable[[dict[str, Any]], None], naming: str
) -> None:
    file = stored_baseline(Path("baselines/main"), (7,)).path / "baseline.json"
    record = read_json(file)
    change(record)
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match=naming):
        Baseline.load(file.parent)
    for command in (("baseline", "show", "main"), ("ci", "--baseline", "main")):
        outcome = tune(*command)
        assert (outcome.code, "Traceback" in outcome.err) == (2, False)


@pytest.mark.parametrize("part", ["model", "device", "environment", "workload", "load"])
def test_a_run_whose_parts_are_no_objects_is_refused_by_name(tune: Tune, part: str) -> None:
    changes: dict[str, Any] = {part: "text"}
    stored_run(Path("r"), **changes)
    outcome = tune("diff", "r", "r")
    assert (outcome.code, f"{part} is 'text'" in outcome.err) == (2, True)


def test_numbers_that_a_summary_lacks_are_shown_as_missing(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"), (7,), summary={"num_requests": 1})
    assert tune("baseline", "show", "main").code == 0


def test_names_of_any_bytes_can_be_printed_as_json(tune: Tune) -> None:
    meta = run().record.meta
    stored_run(Path("r"), environment=meta["environment"] | {"cpu": "\u00b5 chip"})
    outcome = tune("diff", "r", "r", "--json")
    assert outcome.out.isascii()
    assert json.loads(outcome.out)["base"]["environment"]["cpu"] == "\u00b5 chip"
