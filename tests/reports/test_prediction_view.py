"""Predicted beside measured: only what was predicted, and only where a rate was held."""

from typing import Any

import pytest

from reports.prediction_view import prediction_section


def trial(number: int, rate: float | None, predicted: tuple[float | None, float] | None) -> dict[str, Any]:
    return {"number": number, "rate": rate, "predicted": predicted, "runs": [{"stopped_early": None}]}


def study(*trials: dict[str, Any], rate: float | str = "auto", arrival: str = "poisson", **more: Any) -> dict[str, Any]:
    return {"trials": trials, "options": {"rate": rate}, "workload": {"arrival": arrival}} | more


def test_without_predictions_there_is_no_section() -> None:
    assert prediction_section(study(trial(0, 4.0, None), {"number": 1, "rate": 3.0})) is None


def test_each_prediction_stands_beside_the_rate_held_with_its_error() -> None:
    section = prediction_section(study(trial(0, 4.0, None), trial(1, 5.0, (5.5, 5.4)), trial(2, None, (6.0, 6.0))))
    assert section is not None
    first, second = section.tables[0].rows
    assert first == ("1", "5.50 req/s", "5.00 req/s", "+10.0%")
    assert second == ("2", "6.00 req/s", "—", "—")
    assert "Over 1 of 2 proposals the median error of the rate is 10.0%." in section.text[0]


def test_three_pairs_are_enough_for_a_rank_correlation() -> None:
    told = [trial(i, held, (said, said)) for i, (said, held) in enumerate([(3, 3), (4, 5), (6, 6)])]
    section = prediction_section(study(*told))
    assert section is not None
    assert "the rank correlation 1" in section.text[0]


def test_proposals_that_held_nothing_are_said_to() -> None:
    section = prediction_section(study(trial(1, None, (5.0, 5.0))))
    assert section is not None
    assert "None of 1 proposals held a rate" in section.text[0]


@pytest.mark.parametrize("load", [{"rate": 6.0}, {"arrival": "closed:8"}])
def test_at_one_load_the_goodputs_stand_beside_each_other(load: dict[str, Any]) -> None:
    held = trial(1, 6.0, (6.0, 5.0)) | {"goodput": 4.0}
    section = prediction_section(study(held, trial(2, None, (None, 3.0)) | {"goodput": None}, **load))
    assert section is not None
    (table,) = section.tables
    assert table.headers == ("Trial", "Goodput predicted", "Goodput measured", "Error")
    assert table.rows == (("1", "5.00 good/s", "4.00 good/s", "+25.0%"), ("2", "3.00 good/s", "—", "—"))
    assert "Over 1 of 2 proposals the median error of the goodput is 25.0%." in section.text[0]


def test_of_several_objectives_each_has_its_columns() -> None:
    named: list[dict[str, Any]] = [
        {"name": "output_throughput", "key": "output_throughput", "title": "output tokens", "unit": "tokens/s"},
        {"name": "p95_tpot", "key": "p95_tpot_ms", "title": "p95 TPOT", "unit": "ms"},
    ]
    objectives = [entry | {"larger_is_better": entry["unit"] != "ms"} for entry in named]
    told = trial(1, None, (None, 3.0)) | {
        "predicted_values": {"output_throughput": 110.0, "p95_tpot": 45.0},
        "values": {"output_throughput": 100.0, "p95_tpot": 50.0},
    }
    unmeasured = trial(2, None, (None, 2.0)) | {"predicted_values": {"output_throughput": 90.0, "p95_tpot": 40.0}}
    section = prediction_section(study(told, unmeasured, arrival="closed:8", objectives=objectives))
    assert section is not None
    (table,) = section.tables
    assert table.headers[1:4] == ("Output tokens predicted", "measured", "Error")
    assert table.rows[0] == ("1", "110 tok/s", "100 tok/s", "+10.0%", "45.0 ms", "50.0 ms", "−10.0%")
    assert table.rows[1][3] == table.rows[1][6] == "—"
    assert "error of the output tokens is 10.0%" in section.text[0]


def test_a_run_that_was_stopped_early_is_no_measurement_to_compare_with() -> None:
    stopped = trial(1, 6.0, (6.0, 5.0)) | {"goodput": 1.0, "runs": [{"stopped_early": "verdict settled"}]}
    section = prediction_section(study(stopped, rate=6.0))
    assert section is not None
    assert section.tables[0].rows == (("1", "5.00 good/s", "—", "—"),)
