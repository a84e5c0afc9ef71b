"""What a search expected of the settings that it measured, beside what came of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reports.format import DASH, change, count, is_known, number, percent, request_rate
from reports.objective_text import ShownObjective, objectives_of
from reports.view import Section, Table

ENOUGH_FOR_RANKS = 3
Trial = Mapping[str, Any]
Value = Callable[[Trial], float | None]


@dataclass(frozen=True)
class _Quantity:
    """One number that was predicted.

    Attributes:
        name: inside a sentence.
        predicted, measured: in a trial; None where there is none.
        write: the number with its unit.
        headers: of the columns for both.
    """

    name: str
    predicted: Value
    measured: Value
    write: Callable[[float | None], str]
    headers: tuple[str, str]

    def error(self, trial: Trial) -> float | None:
        """Predicted over measured, less 1."""
        predicted, measured = self.predicted(trial), self.measured(trial)
        return predicted / measured - 1 if is_known(predicted) and is_known(measured) and measured else None

    def cells(self, trial: Trial) -> tuple[str, str, str]:
        error = self.error(trial)
        shown = self.write(self.predicted(trial)), self.write(self.measured(trial))
        return *shown, DASH if error is None else change(error)


_RATE = _Quantity(
    "rate",
    lambda trial: trial["predicted"][0],
    lambda trial: trial.get("rate"),
    request_rate,
    ("Rate predicted to hold", "Rate held"),
)
_GOODPUT = _Quantity(
    "goodput",
    lambda trial: trial["predicted"][1],
    lambda trial: trial.get("goodput") if _ran_to_its_end(trial) else None,
    lambda value: DASH if value is None else f"{number(value)} good/s",
    ("Goodput predicted", "Goodput measured"),
)


def prediction_section(study: Mapping[str, Any]) -> Section | None:
    """Predicted beside measured, with the error and the rank correlation; None when nothing was predicted."""
    told = [trial for trial in study["trials"] if trial.get("predicted")]
    if not told:
        return None
    quantities = _quantities(study, told)
    rows = tuple((count(trial["number"]), *(cell for q in quantities for cell in q.cells(trial))) for trial in told)
    caption = f"{DASH} where nothing was measured to its end."
    if quantities == [_RATE]:
        caption = (
            "Measuring stops as soon as it is clear whether a setting is the best; "
            f"{DASH} where it held no rate that was tried."
        )
    return Section(
        "predictions",
        "Predicted and measured",
        text=(
            "The twin of the engine chose what to measure; nothing it said is claimed. "
            + " ".join(_agreement(quantity, told) for quantity in quantities),
        ),
        tables=(
            Table(
                headers=("Trial", *(header for q in quantities for header in (*q.headers, "Error"))),
                rows=rows,
                numeric=frozenset(range(1, 3 * len(quantities) + 1)),
                caption=caption,
            ),
        ),
    )


def _quantities(study: Mapping[str, Any], told: Sequence[Trial]) -> list[_Quantity]:
    """What tells settings apart: the rate that they hold, or at one load for all what is compared there."""
    if any(trial.get("predicted_values") for trial in told):
        return [_objective(objective) for objective in objectives_of(study)]
    one_load = study["options"]["rate"] != "auto" or study["workload"]["arrival"].startswith("closed:")
    return [_GOODPUT if one_load else _RATE]


def _ran_to_its_end(trial: Trial) -> bool:
    """Whether a run saw all of its requests, as the twin's plays do; at one load a trial has one run."""
    return any(run["stopped_early"] is None for run in trial["runs"])


def _objective(objective: ShownObjective) -> _Quantity:
    return _Quantity(
        objective.title,
        lambda trial: (trial.get("predicted_values") or {}).get(objective.name),
        lambda trial: (trial.get("values") or {}).get(objective.name) if _ran_to_its_end(trial) else None,
        objective.write,
        (f"{objective.header} predicted", "measured"),
    )


def _agreement(quantity: _Quantity, told: Sequence[Trial]) -> str:
    errors = {trial["number"]: off for trial in told if (off := quantity.error(trial)) is not None}
    if not errors:
        what = "held a rate that was tried" if quantity is _RATE else f"were measured in {quantity.name}"
        return f"None of {count(len(told))} proposals {what}."
    both = [trial for trial in told if trial["number"] in errors]
    error = percent(median(map(abs, errors.values())))
    text = f"Over {count(len(both))} of {count(len(told))} proposals the median error of the {quantity.name} is {error}"
    expected, measured = [quantity.predicted(t) for t in both], [quantity.measured(t) for t in both]
    if len(both) >= ENOUGH_FOR_RANKS and len(set(expected)) > 1 and len(set(measured)) > 1:
        from scipy.stats import spearmanr

        text += f", the rank correlation {number(float(spearmanr(expected, measured).statistic))}"
    return text + "."
