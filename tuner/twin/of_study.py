"""The twin of a study: learnt anew from all of its runs whenever it is asked for."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from engine.errors import UserError
from tuner.runner import Runner
from tuner.settings import Settings
from tuner.twin.fit import learn_device
from tuner.twin.twin import Twin
from workloads.records import RunRecord, write_atomic

TWIN_FILE = "twin.json"


def twin_of(runner: Runner, seed: int, earlier: Sequence[Path] = ()) -> Twin | None:
    """Learn the device from the study's runs, kept beside them as `twin.json`; None while they teach too little.

    Args:
        runner: of the study, whose runs are as long as those that the twin plays.
        seed: of the traffic, the same as in the search.
        earlier: folders of runs of other studies on this device, of the same model.
    """
    store = runner.store
    if not store.runs:
        return None
    records = [store.load(run) for run in store.runs]
    rates = [run.rate for run in store.runs if run.rate is not None]
    load = runner.lengths.load(max(rates, default=None), seed)
    path = store.path / TWIN_FILE
    try:
        write_atomic(path, learn_device(records, map(_load, earlier)).to_json())
        return Twin(path, runner.target, runner.slo, load, Settings.from_dict(records[0].meta["settings"]))
    except UserError as error:
        runner.display.say(f"no twin yet: {error}")
        return None


@cache
def _load(path: Path) -> RunRecord:
    return RunRecord.load(path)
