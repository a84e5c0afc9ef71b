"""The twin of a study: learnt anew from all of its runs whenever it is asked for."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from engine.errors import UserError
from tuner.objectives import DEFAULT_OBJECTIVES, Objective
from tuner.runner import Runner
from tuner.settings import Settings
from tuner.twin.fit import learn_device, measured_steps
from tuner.twin.twin import Twin
from workloads.records import RunRecord, write_atomic

TWIN_FILE = "twin.json"
# Plays need no more to tell settings apart, which see the same arrivals; longer ones would only take longer.
FEW_REQUESTS = 200


def twin_of(
    runner: Runner, seed: int, earlier: Sequence[Path] = (), objectives: Sequence[Objective] = DEFAULT_OBJECTIVES
) -> Twin | None:
    """Learn the device from the study's runs, kept beside them as `twin.json`; None while they teach too little.

    Args:
        runner: of the study, whose runs are as long as those that the twin plays.
        seed: of the traffic, the same as in the search.
        earlier: folders of runs of other studies on this device, of the same model.
        objectives: of the study; a play tells their values where goodput is not the only one.
    """
    store = runner.store
    if not store.runs:
        return None
    records = [store.load(run) for run in store.runs]
    rates = [run.rate for run in store.runs if run.rate is not None]
    load = runner.lengths.load(max(rates, default=None), seed)
    path, settings = store.path / TWIN_FILE, Settings.from_dict(records[0].meta["settings"])
    try:
        others = [record for folder in earlier if (record := _load(folder)) is not None]
        write_atomic(path, learn_device(records, others).to_json())
        told = () if tuple(objectives) == DEFAULT_OBJECTIVES else tuple(objectives)
        return Twin(path, runner.target, runner.slo, load, settings, most_requests=FEW_REQUESTS, objectives=told)
    except UserError as error:
        runner.display.say(f"no twin yet: {error}")
        return None


@cache
def _load(folder: Path) -> RunRecord | None:
    """An earlier run; None for one that is damaged or gone, which is no reason to go without the others."""
    try:
        record = RunRecord.load(folder)
        measured_steps(record.iterations)
    except (UserError, OSError, KeyError):
        return None
    return record
