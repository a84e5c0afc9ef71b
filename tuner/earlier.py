"""Earlier studies: where they lie, and which of them say anything about a new one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.study import STUDY_FILE, read_study

AUTO, OFF = "auto", "off"
# Reading records must not delay a start that nobody asked to be warm.
MOST_STUDIES = 50

_OF_DEVICE = (
    *("name", "kind", "memory_bytes", "threads"),
    *("tensor_parallel_size", "data_parallel_size", "router"),  # absent where there is one device
    *("enforce_eager", "max_cudagraph_capture_size"),  # absent where they are the default
)

Refuse = Callable[[str], None]
"""What becomes of a study that cannot be used, by how it was found; takes the reason."""


@dataclass(frozen=True, slots=True)
class EarlierStudy:
    """A study that may be worth learning from.

    Attributes:
        path: of its folder.
        record: the content of its `study.json`.
        refuse: what to do when it turns out to be of no use.
    """

    path: Path
    record: Mapping[str, Any]
    refuse: Refuse

    @property
    def name(self) -> str:
        return self.path.resolve().name


def find_earlier(where: Sequence[str], folder: Path, say: Callable[[str], None]) -> list[EarlierStudy]:
    """The studies that `--warm-start` means, each once; of a folder with many the newest.

    Args:
        where: `auto` for the studies beside the new one, which are left out silently where they are damaged; the
            folder of a study; a folder with studies in it, those that are damaged being named; or `off` alone.
        folder: of the new study.
        say: told which studies in a folder are refused, and why.

    Raises:
        UserError: `off` beside others, a folder without a study, or a damaged study that was named itself.
    """
    if OFF in where:
        if len(where) > 1:
            raise UserError(f"--warm-start {OFF} stands alone: leave it out, or leave the others out")
        return []
    found: dict[Path, EarlierStudy] = {}
    for text in where:
        for study in _beside(folder) if text == AUTO else _given(Path(text), say):
            found.setdefault(study.path.resolve(), study)
    return list(found.values())


def why_not(earlier: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Why what was measured in one study says nothing about another; None where it does. Takes their `study.json`.

    A longest request of another length does not matter: what a step takes does not depend on it.
    """
    for part, keys in (("model", ("name", "dtype", "kv_cache_dtype")), ("device", _OF_DEVICE)):
        for key in keys:
            theirs, ours = (earlier[part] or {}).get(key), new[part].get(key)
            if theirs != ours:
                return f"its {part} has {key} {theirs}, the one here {ours}"
    theirs, ours = _device_asked(earlier), _device_asked(new)
    if new["simulated"] and theirs != ours:
        # What a simulated device does depends on nothing but where its figures come from.
        return f"its simulated device is {theirs}, the one here {ours}"
    return None


def _device_asked(record: Mapping[str, Any]) -> str | None:
    return ((record["options"] or {}).get("arguments") or {}).get("device")


def _beside(folder: Path) -> list[EarlierStudy]:
    return _studies_in(folder.parent, refuse=lambda _: None)


def _given(path: Path, say: Callable[[str], None]) -> list[EarlierStudy]:
    if (path / STUDY_FILE).is_file():
        study = _read(path, _refuse_named)
        return [study] if study else []
    if not _study_folders(path):
        raise UserError(
            f"--warm-start {str(path)!r}: there is no {STUDY_FILE}; give the folder of a study, or of several, "
            f"{AUTO}, or {OFF}"
        )
    return _studies_in(path, refuse=lambda reason: say(f"no warm start from {reason}"))


def _refuse_named(reason: str) -> None:
    raise UserError(f"--warm-start: {reason}")


def _studies_in(folder: Path, refuse: Refuse) -> list[EarlierStudy]:
    studies = (_read(path, refuse) for path in _study_folders(folder))
    return [study for study in studies if study is not None]


def _study_folders(folder: Path) -> list[Path]:
    """The folders in `folder` that hold a study, the one changed last first."""
    try:
        changed = {path: file.stat().st_mtime for path in folder.iterdir() if (file := path / STUDY_FILE).is_file()}
    except OSError:
        return []
    return sorted(changed, key=lambda path: (changed[path], path.name), reverse=True)[:MOST_STUDIES]


def _read(path: Path, refuse: Refuse) -> EarlierStudy | None:
    try:
        return EarlierStudy(path, read_study(path), refuse)
    except UserError as error:
        refuse(str(error))
        return None
