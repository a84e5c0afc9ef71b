"""What a search expected of the settings that it measured, beside what came of them."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from reports.format import DASH, change, count, is_known, number, percent, request_rate
from reports.view import Section, Table

ENOUGH_FOR_RANKS = 3


def prediction_section(trials: Sequence[Mapping[str, Any]]) -> Section | None:
    """Predicted beside measured, with the error and the rank correlation; None when nothing was predicted."""
    told = [trial for trial in trials if trial.get("predicted")]
    if not told:
        return None
    pairs = [(expected_rate(trial), trial.get("rate")) for trial in told]
    both = [(expected, held) for expected, held in pairs if is_known(expected) and is_known(held) and held]
    rows = tuple(
        (
            count(trial["number"]),
            request_rate(expected),
            request_rate(held),
            change(expected / held - 1) if is_known(expected) and is_known(held) and held else DASH,
        )
        for trial, (expected, held) in zip(told, pairs, strict=True)
    )
    return Section(
        "predictions",
        "Predicted and measured",
        text=(
            "The twin of the engine chose what to measure; nothing it said is claimed. " + _agreement(both, len(told)),
        ),
        tables=(
            Table(
                headers=("Trial", "Rate predicted to hold", "Rate held", "Error"),
                rows=rows,
                numeric=frozenset((1, 2, 3)),
                caption="Measuring stops as soon as it is clear whether a setting is the best; "
                f"{DASH} where it held no rate that was tried.",
            ),
        ),
    )


def expected_rate(trial: Mapping[str, Any]) -> float | None:
    """Requests per second that were predicted; None where the prediction was of a goodput alone."""
    return trial["predicted"][0]


def _agreement(both: Sequence[tuple[float, float]], told: int) -> str:
    if not both:
        return f"None of {count(told)} proposals held a rate that was tried."
    errors = [abs(expected / held - 1) for expected, held in both]
    text = (
        f"Over {count(len(both))} of {count(told)} proposals the median error of the rate is {percent(median(errors))}"
    )
    expected, held = zip(*both, strict=True)
    if len(both) >= ENOUGH_FOR_RANKS and len(set(expected)) > 1 and len(set(held)) > 1:
        from scipy.stats import spearmanr

        text += f", the rank correlation {number(float(spearmanr(expected, held).statistic))}"
    return text + "."
