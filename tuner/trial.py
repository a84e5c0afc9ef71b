"""One setting in a study, and what its runs said of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.settings import Settings
from tuner.store import Run

Predicted = tuple[float | None, float]
"""What a strategy expected of settings: the rate that they hold (None for none), and the goodput there."""


@dataclass(slots=True)
class Trial:
    """One setting and what its runs said.

    Attributes:
        error: why it failed; None while it has not.
        error_type: name of the exception behind that; None where there was none.
        predicted: what was expected of it before.
        predicted_values: likewise, of the objectives by name; None where goodput is the only one.
        luck: logarithm of the rate that it holds under the study's traffic over the one that it would hold under much
            other traffic, as a twin says; 0 where none has told.
        expected: the rate that it would hold under much other traffic, by the twin with its errors put right; None
            where none has told.
    """

    number: int
    kind: str
    settings: Settings
    state: str = "running"
    error: str | None = None
    error_type: str | None = None
    runs: list[Run] = field(default_factory=list)
    elapsed_s: float = 0.0
    predicted: Predicted | None = None
    predicted_values: Mapping[str, float] | None = None
    luck: float = 0.0
    expected: float | None = None

    @property
    def decisive(self) -> Run | None:
        """The run that broke off; else the one at the highest rate held, else the one at the lowest rate tried."""
        broken = next((r for r in self.runs if r.failure is not None), None)
        if broken is not None:
            return broken
        held = [r for r in self.runs if r.held]
        if held:
            return max(held, key=lambda r: r.rate or 0.0)
        return min(self.runs, key=lambda r: r.rate or 0.0, default=None)

    @property
    def held(self) -> bool:
        """It held the SLO at some rate and failed at none: one that crashes at a peak cannot be relied on below it."""
        return self.error_type is None and self.decisive is not None and self.decisive.held

    @property
    def fair_rate(self) -> float | None:
        """What settings are compared by: the rate held, freed of the luck of its traffic and of the run.

        All runs of a study see the same few requests, which are kinder to some settings than to others. A twin's error
        is alike under any traffic, so the difference between two of its own predictions tells (a control variate: Law,
        "Simulation Modeling and Analysis", chapter 11). None without a run, and in a closed loop.
        """
        rate = None if self.decisive is None else self.decisive.rate
        if rate is None or not self.held:
            return rate
        return self.expected or rate * math.exp(-self.luck)

    def under_own_traffic(self, fair_rate: float) -> float:
        """What a fair rate comes to under the study's traffic, which is as kind to this setting as `luck` says."""
        return fair_rate * math.exp(self.luck)

    def fail(self, error: str, error_type: str) -> None:
        """Note that the setting does not fit or broke off."""
        self.state, self.error, self.error_type = "failed", error, error_type

    @classmethod
    def restored(cls, stored: Mapping[str, Any], runs: Mapping[str, Run]) -> "Trial":
        """A finished trial from its entry in `study.json`, and the study's runs by path."""
        return cls(
            number=stored["number"],
            kind=stored["kind"],
            settings=Settings.from_dict(stored["settings"]),
            state=stored["state"],
            error=stored["error"],
            error_type=stored.get("error_type"),
            runs=[runs[r["path"]] for r in stored["runs"] if r["path"] in runs],
            elapsed_s=stored["elapsed_s"],
            predicted=tuple(stored["predicted"]) if stored.get("predicted") else None,
            predicted_values=stored.get("predicted_values"),
            luck=stored.get("luck", 0.0),
            expected=stored.get("expected"),
        )

    def to_dict(self) -> dict[str, Any]:
        """An entry of `trials` in `study.json`."""
        run = self.decisive
        return {
            "number": self.number,
            "kind": self.kind,
            "state": self.state,
            "settings": self.settings.to_dict(),
            "rate": run.rate if run is not None and self.held else None,
            "goodput": run.goodput if run is not None else None,
            "constraint": 1.0 if self.error_type else run.constraint if run is not None else None,
            "error": self.error,
            "error_type": self.error_type,
            "runs": [r.to_dict() for r in self.runs],
            "elapsed_s": self.elapsed_s,
            "predicted": self.predicted,
            "predicted_values": self.predicted_values,
            "luck": self.luck,
            "expected": self.expected,
        }


def outcome(trial: Trial) -> tuple[float, float]:
    """Value and constraint for Optuna. A trial that failed served nobody: goodput 0, and the SLO fully missed."""
    run = trial.decisive
    if run is None or run.failure is not None or trial.error_type is not None:
        return 0.0, 1.0
    return run.goodput, run.constraint if run.held else max(run.constraint, 1e-6)
