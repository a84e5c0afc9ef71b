"""Predicted beside measured: only what was predicted, and only where a rate was held."""

from typing import Any

from reports.prediction_view import prediction_section


def trial(number: int, rate: float | None, predicted: tuple[float | None, float] | None) -> dict[str, Any]:
    return {"number": number, "rate": rate, "predicted": predicted}


def test_without_predictions_there_is_no_section() -> None:
    assert prediction_section([trial(0, 4.0, None), {"number": 1, "rate": 3.0}]) is None


def test_each_prediction_stands_beside_the_rate_held_with_its_error() -> None:
    section = prediction_section([trial(0, 4.0, None), trial(1, 5.0, (5.5, 5.4)), trial(2, None, (6.0, 6.0))])
    assert section is not None
    first, second = section.tables[0].rows
    assert first == ("1", "5.50 req/s", "5.00 req/s", "+10.0%")
    assert second == ("2", "6.00 req/s", "—", "—")
    assert "Over 1 of 2 proposals the median error of the rate is 10.0%." in section.text[0]


def test_three_pairs_are_enough_for_a_rank_correlation() -> None:
    section = prediction_section(
        [trial(i, held, (said, said)) for i, (said, held) in enumerate([(3, 3), (4, 5), (6, 6)])]
    )
    assert section is not None
    assert "the rank correlation 1" in section.text[0]


def test_proposals_that_held_nothing_are_said_to() -> None:
    section = prediction_section([trial(1, None, (5.0, 5.0))])
    assert section is not None
    assert "None of 1 proposals held a rate" in section.text[0]
