"""The two settings that a study compares, baseline and winner, with the best evidence there is for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.study import StudyFolder
from workloads.records import RunRecord


@dataclass(frozen=True, slots=True)
class Side:
    """One of the settings compared.

    Attributes:
        label: `baseline` or `winner`.
        rate: highest rate held within the SLO, requests/s; None when none was.
        goodput, goodput_low, goodput_high: requests/s with its 95 % interval; None where not known.
        verdict: as `verdict` in `run.json`, None without one; `bounds` may be missing.
        summary: as `summary` in `run.json`, over all its runs; empty when no run could be read.
        classes: as `classes` in `run.json`, over all its runs; empty in old studies and when no run could be read.
        runs: paths of the runs behind it.
        confirmed: from confirmation runs; else from the search alone.
    """

    label: str
    settings: Mapping[str, Any]
    rate: float | None
    goodput: float | None
    goodput_low: float | None
    goodput_high: float | None
    verdict: Mapping[str, Any] | None
    summary: Mapping[str, Any]
    classes: Mapping[str, Mapping[str, Any]]
    runs: tuple[str, ...]
    confirmed: bool


def baseline_side(folder: StudyFolder) -> Side | None:
    """The default settings; None before they were measured."""
    trial = next((t for t in folder.study["trials"] if t.get("kind") == "baseline"), None)
    return _side(folder, "baseline", trial)


def winner_side(folder: StudyFolder) -> Side | None:
    """The best settings found, when they are others than the baseline's."""
    best = folder.study["best"]
    confirmed = bool((folder.study["confirmation"] or {}).get("winner"))
    if not confirmed and (best is None or best.get("is_default")):
        return None
    number = None if best is None else best.get("trial")
    trial = next((t for t in folder.study["trials"] if t["number"] == number), None)
    return _side(folder, "winner", trial)


def representative_run(side: Side, folder: StudyFolder) -> RunRecord | None:
    """The run that stands for a side in the charts: the first that can be read."""
    return next((folder.runs[path] for path in side.runs if path in folder.runs), None)


def _side(folder: StudyFolder, label: str, trial: Mapping[str, Any] | None) -> Side | None:
    confirmed = (folder.study["confirmation"] or {}).get(label)
    if confirmed:
        verdict = confirmed.get("verdict")
        return Side(
            label=label,
            settings=confirmed["settings"],
            rate=confirmed.get("rate"),
            goodput=confirmed.get("goodput"),
            goodput_low=confirmed.get("goodput_low"),
            goodput_high=confirmed.get("goodput_high"),
            verdict={"state": verdict} if isinstance(verdict, str) else verdict,
            summary=confirmed["summary"] or {},
            classes=confirmed.get("classes") or {},
            runs=tuple(confirmed["runs"]),
            confirmed=True,
        )
    if trial is None:
        return None
    paths = _runs_at_held_rate(trial)
    run = next((folder.runs[path] for path in paths if path in folder.runs), None)
    return Side(
        label=label,
        settings=trial["settings"],
        rate=trial.get("rate"),
        goodput=trial.get("goodput"),
        goodput_low=None,
        goodput_high=None,
        verdict=run.meta.get("verdict") if run else None,
        summary=run.meta["summary"] if run else {},
        classes=run.meta["classes"] if run else {},
        runs=paths,
        confirmed=False,
    )


def _runs_at_held_rate(trial: Mapping[str, Any]) -> tuple[str, ...]:
    """The runs at the rate held, or at the lowest one tried when none was held."""
    rates = [run["rate"] for run in trial["runs"] if run.get("rate") is not None]
    rate = trial.get("rate") if trial.get("rate") is not None else min(rates, default=None)
    return tuple(run["path"] for run in trial["runs"] if run.get("rate") == rate)
