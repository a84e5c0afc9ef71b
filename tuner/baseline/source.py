"""What a baseline is made of: the runs of a study's recommended settings, of a single run, or of another baseline."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.diff.load import BASELINE_FILE, load_side
from reports.diff.side import Side, SideRun
from reports.shape import Shape, require_shape
from reports.study import STUDY_FILE
from tuner.baseline.files import Origin
from tuner.baseline.record import LOAD_SHAPE, Baseline
from workloads.early_stop import INTERRUPTED
from workloads.records import RUN_FILE

RUNS = Path("runs")
_NEEDED: Shape = {
    "load": dict,
    "device": dict,
    "slo": (str, type(None)),
    "stopped_early": (str, type(None)),
    "validity": (dict, type(None)),
}
_MODEL: Shape = {"name": str, "dtype": str, "max_model_len": int}
_DEVICE: Shape = {"name": str, "kind": str, "memory_bytes": (int, type(None))}
_KINDS = {STUDY_FILE: "study", RUN_FILE: "run", BASELINE_FILE: "baseline"}


@dataclass(frozen=True, slots=True)
class Source:
    """Runs that may become a baseline.

    Attributes:
        side: all of them.
        fit: those that can: valid, and from the beginning to the end of their window.
        unfit: why each of the others cannot.
        only_short: none is fit, and some only because their window ended early, when the search knew enough: measured
            again whole, they can.
    """

    origin: Origin
    side: Side
    fit: tuple[SideRun, ...]
    unfit: tuple[str, ...]
    only_short: bool


def find_source(text: str | None, store: Path) -> Source:
    """The runs that `tune baseline save` is given.

    Args:
        text: a folder, or the name of a baseline in the store; None for the newest study or run under `runs/`.

    Raises:
        UserError: nothing there that can become a baseline; the reason is named.
    """
    folder = newest() if text is None else _given(text, store)
    side = load_side(folder)
    for run in side.runs:
        _require_repeatable(run.record.meta, str(folder))
    kind = next(kind for file, kind in _KINDS.items() if (folder / file).is_file())
    card = Baseline.load(folder).card if kind == "baseline" else None
    unfit = [(run, reason) for run in side.runs if (reason := why_unfit(run))]
    fit = tuple(run for run in side.runs if not why_unfit(run))
    short = [run for run, _ in unfit if _ended_early(run)]
    if not fit and not short:
        raise UserError(f"{str(folder)!r} cannot become a baseline: {unfit[0][1]}")
    reasons = tuple(dict.fromkeys(reason for _, reason in unfit))
    return Source(Origin(kind, str(folder), card), side, fit, reasons, only_short=not fit)


def _require_repeatable(meta: dict[str, Any], where: str) -> None:
    """Check that a run's record holds all that it takes to measure the same again."""
    require_shape(meta, _NEEDED, where)
    for part, shape in (("load", LOAD_SHAPE), ("model", _MODEL), ("device", _DEVICE)):
        require_shape(meta[part], shape, f"{where}: {part}")


def newest() -> Path:
    """The study or the run under `runs/` that was written last.

    Raises:
        UserError: there is none.
    """
    files = [file for name in (STUDY_FILE, RUN_FILE) for file in RUNS.glob(f"*/{name}")]
    if not files:
        raise UserError(f"there is no study or run under {str(RUNS)!r}: say which folder to save")
    return max(files, key=lambda file: (file.stat().st_mtime, str(file))).parent


def why_unfit(run: SideRun) -> str | None:
    """Why a run cannot be part of a baseline; None where it can."""
    stopped = run.record.meta["stopped_early"]
    if stopped is not None and stopped.startswith("failed: "):
        return f"the run broke off ({stopped.removeprefix('failed: ')})"
    if stopped == INTERRUPTED:
        return "the run was interrupted"
    if stopped is not None:
        return f"the run stopped early ({stopped}), and a part of a run is no match for a whole one"
    return f"the run is {run.distrust}" if run.distrust else None


def _ended_early(run: SideRun) -> bool:
    """Its window ended when enough was known, and what there is of it can be trusted."""
    stopped, validity = run.record.meta["stopped_early"], run.record.meta["validity"]
    early = stopped is not None and stopped != INTERRUPTED and not stopped.startswith("failed: ")
    return early and bool(validity and validity["valid"])


def _given(text: str, store: Path) -> Path:
    named = store / text
    if not Path(text).exists() and (named / BASELINE_FILE).is_file():
        return named
    return Path(text)
