"""A study's folder, read and checked: the study's own record and every run that can still be read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from workloads.records import RUN_FILE, SCHEMA_VERSION, RunRecord

STUDY_FILE = "study.json"
SIDES = ("baseline", "winner")

Shape = Mapping[str, type | tuple[type, ...]]

_JSON_NAMES: Mapping[type, str] = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}

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
_SIDE_SHAPE: Shape = {"settings": dict, "summary": (dict, type(None)), "runs": list}
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


def load_run(path: Path) -> RunRecord:
    """Open a run's folder for a report.

    Raises:
        UserError: no run there, a damaged file, or a schema this version does not read.
    """
    record = RunRecord.load(path)
    _require_shape(record.meta, _RUN_SHAPE, str(path / RUN_FILE))
    _require_shape(record.meta["settings"], _SETTINGS_SHAPE, f"{path / RUN_FILE}: settings")
    return record


def load_study(folder: Path) -> StudyFolder:
    """Open a study's folder. Runs that are missing or damaged are listed, not fatal.

    Raises:
        UserError: `study.json` is missing, damaged, or of a schema this version does not read.
    """
    return open_study(_read_study(folder / STUDY_FILE), folder)


def open_study(study: dict[str, Any], folder: Path) -> StudyFolder:
    """The same for a study whose record is at hand already.

    Raises:
        UserError: the record does not have the form of a study.
    """
    where = str(folder / STUDY_FILE)
    _require_shape(study, _STUDY_SHAPE, where)
    for i, trial in enumerate(study["trials"]):
        _require_shape(trial, _TRIAL_SHAPE, f"{where}: trials[{i}]")
        for run in trial["runs"]:
            _require_shape(run, _TRIAL_RUN_SHAPE, f"{where}: trials[{i}].runs")
    for label in SIDES:
        if side := (study["confirmation"] or {}).get(label):
            _require_shape(side, _SIDE_SHAPE, f"{where}: confirmation.{label}")
    runs: dict[str, RunRecord] = {}
    problems: dict[str, str] = {}
    for path in _run_paths(study):
        try:
            runs[path] = load_run(folder / path)
        except UserError as error:
            problems[path] = str(error)
    return StudyFolder(folder, study, runs, problems)


def _run_paths(study: dict[str, Any]) -> list[str]:
    """Every run the study names, each once, in order."""
    paths = [run["path"] for trial in study["trials"] for run in trial["runs"]]
    for label in SIDES:
        paths += ((study["confirmation"] or {}).get(label) or {}).get("runs", [])
    return list(dict.fromkeys(paths))


def _read_study(path: Path) -> dict[str, Any]:
    try:
        study = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: not JSON ({error})") from error
    if not isinstance(study, dict):
        raise UserError(f"{path} is damaged: it holds a {type(study).__name__}, not an object")
    if study.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"{path} has schema_version {study.get('schema_version')!r}; this version of tune reads {SCHEMA_VERSION}"
        )
    if study.get("kind") != "study":
        raise UserError(f"{path} has kind {study.get('kind')!r}; the record of a study has kind 'study'")
    return study


def _require_shape(record: Any, shape: Shape, where: str) -> None:
    if not isinstance(record, dict):
        raise UserError(f"{where} is damaged: it is {record!r}, where an object belongs")
    for key, kind in shape.items():
        if key not in record:
            raise UserError(f"{where} is damaged: {key} is missing")
        if not isinstance(record[key], kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            right = " or ".join("null" if k is type(None) else _JSON_NAMES[k] for k in kinds)
            raise UserError(f"{where} is damaged: {key} is {record.get(key)!r}, where {right} belongs")
