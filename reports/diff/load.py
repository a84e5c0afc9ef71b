"""A side of a diff read from disk: a baseline, a run, or a study."""

from pathlib import Path, PurePath
from typing import Any

from engine.errors import UserError
from reports.comparison import COMPARISON_FILE
from reports.diff.side import Side, SideRun
from reports.headline import recommended
from reports.shape import Shape, read_record, require_shape
from reports.study import STUDY_FILE, load_run, load_study
from workloads.records import RUN_FILE, RunRecord

BASELINE_FILE = "baseline.json"

_BASELINE_SHAPE: Shape = {"name": str, "simulated": bool, "model": dict, "settings": dict, "runs": list}
_BASELINE_RUN_SHAPE: Shape = {"path": str, "seed": int, "session": str}
_META_SHAPE: Shape = {
    "simulated": bool,
    "created": str,
    "workload": dict,
    "window": dict,
    "seed": int,
    "rate": (int, float, type(None)),
}
_IF_THERE: Shape = {
    "created": str,
    "model": dict,
    "device": (dict, type(None)),
    "environment": (dict, type(None)),
    "workload": (dict, type(None)),
    "load": (dict, type(None)),
    "rate": (int, float, type(None)),
    "slo": (str, type(None)),
    "stopped_early": (str, type(None)),
}
"""What older or smaller records may lack."""
_WINDOW_SHAPE: Shape = {"requests": int, "start_ns": int, "end_ns": int}


def load_side(path: str | Path, name: str | None = None) -> Side:
    """Open the folder of a baseline, a run or a study.

    Of a study these are its recommended settings: the runs that confirmed them, else those that decided for them.

    Args:
        name: for people; a baseline's own name, else the path, when it is None.

    Raises:
        UserError: nothing of that kind there, a damaged or missing file, a schema that this version does not read, no
            run in it, or a run whose window had no request.
    """
    folder = Path(path)
    for file, read in _READERS:
        if (folder / file).is_file():
            return read(folder, name)
    if (folder / COMPARISON_FILE).is_file():
        raise UserError(f"{str(folder)!r} is a comparison of several settings: give the folder of one of its runs")
    if not folder.exists():
        raise UserError(
            f"{str(folder)!r} does not exist: give the name of a baseline, or the folder of a baseline, run or study"
        )
    raise UserError(
        f"{str(folder)!r} holds no baseline, run or study: it has none of {', '.join(file for file, _ in _READERS)}"
    )


def _read_run(folder: Path, name: str | None) -> Side:
    record = _checked_run(folder)
    return Side(name or str(folder), folder, record.meta, (_alone(record),))


def _read_study(folder: Path, name: str | None) -> Side:
    study = load_study(folder)
    side = recommended(study)
    if side is None:
        raise UserError(
            f"the study {str(folder)!r} recommends no settings, since none met its SLO: there is nothing to compare"
        )
    for path in side.runs:
        if path in study.problems:
            raise UserError(study.problems[path])
    if not side.runs:
        raise UserError(f"the study {str(folder)!r} has no run of the settings that it recommends")
    records = [_checked_run(folder / path) for path in side.runs]
    # They were measured in turn, one after the other.
    session = records[0].meta["created"]
    runs = tuple(SideRun(record.meta["seed"], session, record) for record in records)
    return Side(name or str(folder), folder, records[0].meta, runs)


def _read_baseline(folder: Path, name: str | None) -> Side:
    file = folder / BASELINE_FILE
    baseline = read_record(file, "baseline")
    require_shape(baseline, _BASELINE_SHAPE, str(file))
    _require_if_there(baseline, str(file))
    runs = []
    for i, entry in enumerate(baseline["runs"]):
        where = f"{file}: runs[{i}]"
        require_shape(entry, _BASELINE_RUN_SHAPE, where)
        inside = PurePath(entry["path"])
        if inside.is_absolute() or ".." in inside.parts:
            raise UserError(f"{where} is damaged: path is {entry['path']!r}, which lies outside of the baseline")
        record = _checked_run(folder / entry["path"])
        for key, value in (("seed", entry["seed"]), ("settings", baseline["settings"])):
            if record.meta[key] != value:
                raise UserError(f"{where} is damaged: the {key} of the run is {record.meta[key]!r}, not {value!r}")
        runs.append(SideRun(entry["seed"], entry["session"], record))
    if not runs:
        raise UserError(f"{file} is damaged: a baseline has at least one run")
    return Side(name or baseline["name"], folder, {**runs[0].record.meta, **_head(baseline)}, tuple(runs))


_READERS = ((BASELINE_FILE, _read_baseline), (STUDY_FILE, _read_study), (RUN_FILE, _read_run))


def _head(baseline: dict[str, Any]) -> dict[str, Any]:
    keys = ("simulated", "created", "tool_version", "model", "device", "environment", "workload", "rate", "load", "slo")
    return {key: baseline[key] for key in (*keys, "settings") if key in baseline}


def _require_if_there(record: dict[str, Any], where: str) -> None:
    require_shape(record, {key: kind for key, kind in _IF_THERE.items() if key in record}, where)


def _alone(record: RunRecord) -> SideRun:
    return SideRun(record.meta["seed"], record.meta["created"], record)


def _checked_run(folder: Path) -> RunRecord:
    record = load_run(folder)
    where = str(folder / RUN_FILE)
    require_shape(record.meta, _META_SHAPE, where)
    _require_if_there(record.meta, where)
    require_shape(record.meta["window"], _WINDOW_SHAPE, f"{where}: window")
    if (verdict := record.meta["verdict"]) is not None:
        require_shape(verdict, {"bounds": list}, f"{where}: verdict")
        for bound in verdict["bounds"]:
            require_shape(bound, {"metric": str, "statistic": str}, f"{where}: verdict.bounds")
    if (validity := record.meta["validity"]) is not None:
        require_shape(validity, {"valid": bool, "checks": list}, f"{where}: validity")
        for check in validity["checks"]:
            require_shape(check, {"name": str, "ok": bool}, f"{where}: validity.checks")
    if not record.meta["window"]["requests"]:
        raise UserError(f"no request was scheduled in the window of {str(folder)!r}: there is nothing to compare")
    return record
