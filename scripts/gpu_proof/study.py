"""Part 7: a short study by `tune` itself, its report kept."""

import json
import time
from pathlib import Path

from reports.study import STUDY_FILE
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import Sizes
from tuner.cli.main import main
from tuner.cli.output import INTERRUPTED_CODE


def measure(sizes: Sizes, notes: Notes) -> None:
    """Run it, and note what came out; that no setting met the objective is a result, too."""
    folder = _fresh(notes.beside.with_name(f"{notes.beside.name}-tune"))
    notes.set(command=" ".join(["tune", *sizes.tune_arguments]), folder=folder.name)
    start = time.monotonic()
    exit_code = _exit_code([*sizes.tune_arguments, "--out", str(folder)])
    seconds = time.monotonic() - start
    notes.set(tune_exit_code=exit_code)
    if exit_code not in (0, 1, INTERRUPTED_CODE):
        raise RuntimeError(f"tune ended with exit code {exit_code}")
    study = json.loads((folder / STUDY_FILE).read_text(encoding="utf-8"))
    best, confirmation = study["best"], study["confirmation"]
    notes.add(
        f"study of {len(study['trials'])} settings in {seconds:.0f} s",
        "no setting met the objective" if best is None else (confirmation or {}).get("text", "not confirmed"),
        seconds=seconds,
        state=study["state"],
        trials=len(study["trials"]),
        best=best,
        verdict=(confirmation or {}).get("verdict"),
    )


def _exit_code(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _fresh(folder: Path) -> Path:
    """That folder, or the next one of its name with a number that does not exist."""
    number, fresh = 1, folder
    while fresh.exists():
        number += 1
        fresh = folder.with_name(f"{folder.name}-{number}")
    return fresh
