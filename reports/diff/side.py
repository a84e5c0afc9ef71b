"""One side of a diff: settings under a load, with every run that was made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.trace import IterationRecord
from reports.format import text
from workloads.records import RequestRecord


class Recorded(Protocol):
    """A run that can be judged: `workloads.records.RunRecord` is one, and so is what was measured just now."""

    @property
    def meta(self) -> dict[str, Any]:
        """The content of `run.json`."""
        ...

    def request_records(self) -> list[RequestRecord]:
        """All requests of the run."""
        ...

    def iteration_records(self) -> list[IterationRecord]:
        """All steps of the run."""
        ...


@dataclass(frozen=True)
class InMemory:
    """A run that lies in memory.

    Attributes:
        meta: the content of `run.json`.
    """

    meta: dict[str, Any]
    requests: Sequence[RequestRecord]
    iterations: Sequence[IterationRecord]

    def request_records(self) -> list[RequestRecord]:
        """All requests of the run."""
        return list(self.requests)

    def iteration_records(self) -> list[IterationRecord]:
        """All steps of the run."""
        return list(self.iterations)


@dataclass(frozen=True)
class SideRun:
    """One run of a side.

    Attributes:
        seed: of its traffic; runs of one seed see the same arrivals and prompts.
        session: when the session of measuring began that it is part of, ISO 8601. Two sides that were measured in
            turn share one.
    """

    seed: int
    session: str
    record: Recorded

    @property
    def distrust(self) -> str:
        """Why its numbers cannot be relied on; empty when they can."""
        meta = self.record.meta
        validity = meta.get("validity") or {}
        if validity.get("valid") is False:
            failed = (check for check in validity.get("checks") or () if not check.get("ok"))
            reasons = [text(check.get("detail") or check.get("name")) for check in failed]
            return "not valid: " + ("; ".join(reasons) or "no reason recorded")
        if meta.get("stopped_early"):
            return f"stopped early: {text(meta['stopped_early'])}"
        return ""


@dataclass(frozen=True)
class Side:
    """Settings under a load, and what was measured of them.

    Attributes:
        name: for people: a baseline's name, or the folder as it was given.
        path: where it is stored; None when it lies in memory.
        meta: what it is: `simulated`, `model`, `device`, `environment`, `workload`, `rate`, `load`, `slo`,
            `settings`, `created` and `tool_version` as in `run.json`.
        runs: at least one, all of the same settings and load.
    """

    name: str
    path: Path | None
    meta: Mapping[str, Any]
    runs: tuple[SideRun, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Every option of the engine by its name."""
        return self.meta["settings"]

    @property
    def simulated(self) -> bool:
        """No real device ran."""
        return bool(self.meta.get("simulated"))

    @property
    def trusted(self) -> tuple[SideRun, ...]:
        """The runs whose numbers count."""
        return tuple(run for run in self.runs if not run.distrust)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs, each once, in order."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions of its runs, each once, in order."""
        return tuple(dict.fromkeys(run.session for run in self.runs))
