"""A study's folder, read and checked: the study's own record and every run that can still be read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.shape import Shape, read_record, require_shape
from workloads.records import RUN_FILE, RunRecord

STUDY_FILE = "study.json"
SIDES = ("baseline", "winner")

_STUDY_SHAPE: Shape = {
    "model": dict,
    "device": (dict, type(None)),
    "workload": (dict, type(None)),
    "environment": (dict, type(None)),
    "slo": (str, type(None)),
    "options": (dict, type(None)),
    "state": str,
    "trials": list,
    "importance": (dict, type(None)),
    "best": (dict, type(None)),
    "confirmation": (dict, type(None)),
}
_TRIAL_SHAPE: Shape = {"number": int, "state": str, "settings": dict, "runs": list}
_TRIAL_RUN_SHAPE: Shape = {"path": str}
_WARM_START_SHAPE: Shape = {"studies": list, "tries": int, "failed": int, "runs": int}
_SIDE_SHAPE: Shape = {"settings": dict, "summary": (dict, type(None)), "runs": list}
_OBJECTIVE_SHAPE: Shape = {"name": str, "key": str, "title": str, "unit": str, "larger_is_better": bool}
_FRONT_SHAPE: Shape = {"default": (dict, type(None)), "members": list, "left": list}
_POINT_SHAPE: Shape = {"trial": int, "values": dict, "change": (dict, type(None)), "measured": int}
_SETTINGS_SHAPE: Shape = {"max_num_seqs": int, "max_num_batched_tokens": int}
_RUN_SHAPE: Shape = {
    "model": dict,
    "device": (dict, type(None)),
    "settings": dict,
    "memory": (dict, type(None)),
    "workload": (dict, type(None)),
    "window": (dict, type(None)),
    "slo": (str, type(None)),
    "verdict": (dict, type(None)),
    "validity": (dict, type(None)),
    "summary": dict,
    "environment": (dict, type(None)),
}


@dataclass(frozen=True)
class StudyFolder:
    """A study and its runs.

    Attributes:
        path: the study's folder.
        study: the content of `study.json`.
        runs: the runs that could be opened, by their path in `study.json`.
        problems: why each of the others could not.
    """

    path: Path
    study: dict[str, Any]
    runs: dict[str, RunRecord]
    problems: dict[str, str]


def require_classes(record: dict[str, Any], where: str) -> None:
    """Check the form of a record's classes.

    Raises:
        UserError: they are not one object per class.
    """
    require_shape(record, {"classes": dict}, where)
    for name, numbers in record["classes"].items():
        require_shape(numbers, {}, f"{where}: classes.{name}")


def load_run(path: Path) -> RunRecord:
    """Open a run's folder for a report.

    Raises:
        UserError: no run there, a damaged file, or a schema this version does not read.
    """
    record = RunRecord.load(path)
    require_shape(record.meta, _RUN_SHAPE, str(path / RUN_FILE))
    require_shape(record.meta["settings"], _SETTINGS_SHAPE, f"{path / RUN_FILE}: settings")
    require_classes(record.meta, str(path / RUN_FILE))
    return record


def read_study(folder: Path) -> dict[str, Any]:
    """The record of a study, its form checked, without its runs.

    Raises:
        UserError: `study.json` is missing, damaged, or of a schema this version does not read.
    """
    study = read_record(folder / STUDY_FILE, "study")
    _require_study(study, folder)
    return study


def load_study(folder: Path) -> StudyFolder:
    """Open a study's folder. Runs that are missing or damaged are listed, not fatal.

    Raises:
        UserError: `study.json` is missing, damaged, or of a schema this version does not read.
    """
    return open_study(read_record(folder / STUDY_FILE, "study"), folder)


def open_study(study: dict[str, Any], folder: Path) -> StudyFolder:
    """The same for a study whose record is at hand already.

    Raises:
        UserError: the record does not have the form of a study.
    """
    _require_study(study, folder)
    runs: dict[str, RunRecord] = {}
    problems: dict[str, str] = {}
    for path in _run_paths(study):
        try:
            runs[path] = load_run(folder / path)
        except UserError as error:
            problems[path] = str(error)
    return StudyFolder(folder, study, runs, problems)


def _require_study(study: dict[str, Any], folder: Path) -> None:
    where = str(folder / STUDY_FILE)
    require_shape(study, _STUDY_SHAPE, where)
    if (warm_start := study.get("warm_start")) is not None:
        require_shape(warm_start, _WARM_START_SHAPE, f"{where}: warm_start")
    for i, trial in enumerate(study["trials"]):
        require_shape(trial, _TRIAL_SHAPE, f"{where}: trials[{i}]")
        for run in trial["runs"]:
            require_shape(run, _TRIAL_RUN_SHAPE, f"{where}: trials[{i}].runs")
    for label in SIDES:
        if side := (study["confirmation"] or {}).get(label):
            require_shape(side, _SIDE_SHAPE, f"{where}: confirmation.{label}")
            if "classes" in side:
                require_classes(side, f"{where}: confirmation.{label}")
    _require_objectives(study, where)


def _require_objectives(study: dict[str, Any], where: str) -> None:
    """Check what only a study has that compares by more than the goodput."""
    if "objectives" not in study and "front" not in study:
        return
    require_shape(study, {"objectives": list}, where)
    for i, objective in enumerate(study["objectives"]):
        require_shape(objective, _OBJECTIVE_SHAPE, f"{where}: objectives[{i}]")
    if (front := study.get("front")) is not None:
        require_shape(front, _FRONT_SHAPE, f"{where}: front")
        for point in (front["default"], *front["members"], *front["left"]):
            if point is not None:
                require_shape(point, _POINT_SHAPE, f"{where}: front")


def _run_paths(study: dict[str, Any]) -> list[str]:
    """Every run the study names, each once, in order."""
    paths = [run["path"] for trial in study["trials"] for run in trial["runs"]]
    for label in SIDES:
        paths += ((study["confirmation"] or {}).get(label) or {}).get("runs", [])
    return list(dict.fromkeys(paths))
