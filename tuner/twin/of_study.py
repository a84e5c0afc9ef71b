"""The twin of a study: learnt anew from all of its runs whenever it is asked for."""

from engine.errors import UserError
from tuner.runner import Runner
from tuner.settings import Settings
from tuner.twin.fit import learn_device
from tuner.twin.twin import Twin
from workloads.records import RunRecord, write_atomic

TWIN_FILE = "twin.json"


def twin_of(runner: Runner, seed: int) -> Twin | None:
    """Learn the device from the study's runs, kept beside them as `twin.json`; None while they teach too little.

    Args:
        runner: of the study, whose runs are as long as those that the twin plays.
        seed: of the traffic, the same as in the search.
    """
    store = runner.store
    if not store.runs:
        return None
    records = [RunRecord.load(store.path / run.path) for run in store.runs]
    rates = [run.rate for run in store.runs if run.rate is not None]
    load = runner.lengths.load(max(rates, default=None), seed)
    path = store.path / TWIN_FILE
    try:
        write_atomic(path, learn_device(records).to_json())
        return Twin(path, runner.target, runner.slo, load, Settings.from_dict(records[0].meta["settings"]))
    except UserError as error:
        runner.display.say(f"no twin yet: {error}")
        return None
