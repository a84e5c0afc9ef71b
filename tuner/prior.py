"""What a study takes over from earlier ones on the same model and device: where to begin, and what to leave alone."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from tuner.earlier import EarlierStudy, why_not
from tuner.failures import broke, takes_at_least
from tuner.settings import NAMES, Settings
from tuner.space import Choices, SearchSpace
from workloads.early_stop import MAY_HAVE_HELD
from workloads.records import RUN_FILE

MOST_TRIES = 3
MOST_FAILED = 30
MOST_RUNS = 12


@dataclass(frozen=True, slots=True)
class Prior:
    """What earlier studies say.

    Attributes:
        tries: settings that were best there, to be measured first; in canonical form, the most promising first.
        failed: settings that ran out of memory or crashed there.
        runs: folders of runs whose steps took what they take here, the newest first.
        studies: the names of those studies.
    """

    tries: tuple[Settings, ...] = ()
    failed: tuple[Settings, ...] = ()
    runs: tuple[Path, ...] = ()
    studies: tuple[str, ...] = ()

    def to_dict(self, folder: Path) -> dict[str, Any]:
        """The `warm_start` of the `study.json` in `folder`; its runs' paths are relative to that."""
        taken: dict[str, list[Any]] = {
            "tries": [settings.to_dict() for settings in self.tries],
            "failed": [settings.to_dict() for settings in self.failed],
            "runs": [os.path.relpath(path, folder) for path in self.runs],
        }
        return {"studies": list(self.studies), **{key: len(values) for key, values in taken.items()}, "taken": taken}

    @classmethod
    def restored(cls, stored: Mapping[str, Any] | None, folder: Path) -> "Prior":
        """The same from `study.json`, for a study that goes on; nothing where the study knew no warm start.

        Raises:
            UserError: it is damaged.
        """
        if stored is None:
            return cls()
        try:
            taken = stored["taken"]
            return cls(
                tuple(Settings.from_dict(values) for values in taken["tries"]),
                tuple(Settings.from_dict(values) for values in taken["failed"]),
                tuple(path for text in taken["runs"] if ((path := folder / text) / RUN_FILE).is_file()),
                tuple(stored["studies"]),
            )
        except (KeyError, TypeError) as error:
            raise UserError(f"{folder} cannot be resumed: warm_start in its study.json is damaged ({error})") from None


NO_PRIOR = Prior()


def gather(studies: Sequence[EarlierStudy], record: Mapping[str, Any], space: SearchSpace) -> Prior:
    """What earlier studies give a new one. Those of another model or device are refused.

    Args:
        record: the `study.json` of the new study.
        space: its own; settings are projected into it.

    Raises:
        UserError: a study that was named itself is of another model or device.
    """
    usable = []
    for study in studies:
        if reason := why_not(study.record, record):
            study.refuse(f"{study.path}: {reason}")
        else:
            usable.append(study)
    usable.sort(key=lambda study: str(study.record.get("updated")), reverse=True)
    newest_first = [(study, list(_trials(study.record))) for study in usable]
    baseline = space.fixed.canonical()
    tries = [s for s in _best(newest_first, record, space) if s != baseline]
    served = [s for _, trials in newest_first for trial, s in trials if trial["runs"] and not trial.get("error_type")]
    failed = [s for _, trials in newest_first for s in _failed(trials, space)]
    # What serves with even more of everything shows that it was something else.
    failed = [s for s in failed if not any(takes_at_least(other, s) for other in served)]
    runs = [path for study in usable for path in _run_folders(study)]
    return Prior(
        tuple(_first(tries, MOST_TRIES)),
        tuple(_first(failed, MOST_FAILED)),
        tuple(_first(runs, MOST_RUNS)),
        tuple(study.name for study in usable),
    )


def projected(settings: Settings, space: SearchSpace) -> Settings | None:
    """Settings in a space, with its fixed values; None where it cannot draw them.

    A value outside its range is left out, and stays as in the baseline: its nearest end was never measured.
    """
    values = {name: value for name in space.dimensions if _lies_in(space, name, value := getattr(settings, name))}
    try:
        inside = replace(space.fixed, **values).canonical()
    except UserError:
        # Values that go together there may not beside what is fixed here.
        return None
    return inside if space.params_of(inside) is not None else None


def _lies_in(space: SearchSpace, name: str, value: Any) -> bool:
    dimension = space.dimensions[name]
    if isinstance(dimension, Choices):
        return value in dimension.values
    return dimension.low <= value <= dimension.high or (name == "chunk_size" and value == 0)


def _trials(record: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Settings]]:
    """The trials with settings that this version knows."""
    for trial in record["trials"]:
        try:
            yield trial, Settings.from_dict(trial["settings"]).canonical()
        except (UserError, TypeError):
            continue


_Trials = list[tuple[Mapping[str, Any], Settings]]


def _best(
    newest_first: Sequence[tuple[EarlierStudy, _Trials]], record: Mapping[str, Any], space: SearchSpace
) -> list[Settings]:
    """The best few of each study, projected: by the likeness of the studies, then by their place there."""
    placed = []
    for study, trials in newest_first:
        chosen = (study.record["best"] or {}).get("trial")
        held = [(trial, settings) for trial, settings in trials if trial["state"] == "complete"]
        held.sort(
            key=lambda t: (t[0]["number"] == chosen, t[0].get("rate") or 0.0, t[0].get("goodput") or 0.0), reverse=True
        )
        likeness = _likeness(study.record, record)
        placed += [((likeness, -place), settings) for place, (_, settings) in enumerate(held[:MOST_TRIES])]
    placed.sort(key=lambda pair: pair[0], reverse=True)
    inside = (projected(settings, space) for _, settings in placed)
    return [settings for settings in inside if settings is not None]


def _likeness(earlier: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """How much of what is asked of the engine is the same: most of all the workload, then the SLO."""
    return 2 * (earlier["workload"] == new["workload"]) + (earlier["slo"] == new["slo"])


def _failed(trials: _Trials, space: SearchSpace) -> list[Settings]:
    """Settings that failed and differ from what is tried here in nothing but what is searched."""
    fixed = [name for name in NAMES if name not in space.dimensions]
    return [
        settings
        for trial, settings in trials
        if trial["state"] == "failed"
        and broke(trial.get("error_type"))
        and all(getattr(settings, name) == getattr(space.fixed, name) for name in fixed)
    ]


def _run_folders(study: EarlierStudy) -> Iterator[Path]:
    """The runs of a study that nothing cut short, the newest first."""
    runs = (run for trial in reversed(study.record["trials"]) for run in reversed(trial["runs"]))
    for run in runs:
        path = study.path / run["path"]
        if run.get("stopped_early", "") in MAY_HAVE_HELD and (path / RUN_FILE).is_file():
            yield path


def _first(values: Iterable[Any], most: int) -> list[Any]:
    return list(dict.fromkeys(values))[:most]
