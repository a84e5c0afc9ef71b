"""What a baseline's folder consists of: its record, its runs, and the learnt device that they were simulated on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.build import SIMULATED_PREFIX
from engine.errors import UserError
from reports.diff.load import BASELINE_FILE
from reports.diff.side import SideRun
from tuner.baseline.record import SHARED, card_of, now, options_of
from tuner.environment import tool_version
from tuner.store import RUNS_FOLDER
from workloads.records import SCHEMA_VERSION, write_atomic, write_run


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a baseline's first runs came from.

    Attributes:
        kind: `study`, `run`, `baseline` or `ci`.
        folder: theirs.
        card: the file of the learnt device that they were simulated on, when it is not where the runs say.
    """

    kind: str
    folder: str
    card: Path | None = None


def fill(folder: Path, name: str, origin: Origin, runs: Sequence[SideRun]) -> None:
    """Write everything that a baseline of these runs has.

    Raises:
        UserError: the learnt device's file cannot be read.
        OSError: the file system refuses.
    """
    head = {key: runs[0].record.meta[key] for key in SHARED}
    target = asdict(options_of(head))
    card = origin.card or card_of(target["device"])
    if card is not None:
        target["device"] = _copy_card(card, folder)
        head["device"] = head["device"] | {"name": target["device"]}
    record = {
        "schema_version": SCHEMA_VERSION,
        "kind": "baseline",
        "name": name,
        "tool_version": tool_version(),
        "created": now(),
        **head,
        "target": target,
        "source": {"kind": origin.kind, "folder": origin.folder},
        "runs": [store_run(folder, number, run, target["device"]) for number, run in enumerate(runs, start=1)],
    }
    write_record(folder, record)


def _copy_card(card: Path, folder: Path) -> str:
    """Copy a learnt device's file into a baseline; the device's name there, which tells its content apart."""
    try:
        content = card.read_bytes()
    except OSError as error:
        raise UserError(f"the learnt device {str(card)!r} cannot be read: {error.strerror or error}") from error
    mark = f"-{hashlib.sha256(content).hexdigest()[:8]}"
    name = f"{card.stem.removesuffix(mark)}{mark}{card.suffix}"
    write_atomic(folder / name, content)
    return f"{SIMULATED_PREFIX}{name}"


def store_run(folder: Path, number: int, run: SideRun, device: str) -> dict[str, Any]:
    """Write a run's folder, whole or not at all.

    Args:
        number: its place among the baseline's runs, from 1.
        device: the `device` of the baseline's target.

    Returns:
        Its entry in `runs`.
    """
    meta = run.record.meta
    if card_of(device) is not None:
        # Wherever the file of a learnt device lay: the copy beside the runs is the same device.
        meta = meta | {"device": meta["device"] | {"name": device}}
    path = f"{RUNS_FOLDER}/{number:03d}-seed{run.seed}"
    write_run(folder / path, meta, run.record.request_records(), run.record.iteration_records())
    return {"path": path, "seed": run.seed, "session": run.session}


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write `baseline.json`, whole or not at all."""
    write_atomic(folder / BASELINE_FILE, json.dumps(record, indent=2, allow_nan=False) + "\n")
