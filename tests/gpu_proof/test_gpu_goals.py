"""Which goals follow from which figures."""

from typing import Any

import pytest

from scripts.gpu_proof.goals import ceiling, correctness_goals, speed_goals
from scripts.gpu_proof.modes import AS_SERVED, EAGER
from scripts.gpu_proof.parts import CEILINGS, DECODE, HOST, KERNELS, PREFILL


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median, "repeats": 5}


def decode(*rates: tuple[int, float], copy: float = 1000.0) -> dict[str, Any]:
    return {"copy_gb_per_s": copy, "rows": [{"batch": batch, "gb_per_s": spread(rate)} for batch, rate in rates]}


def met(parts: dict[int, Any]) -> dict[str, bool]:
    return {goal["text"].partition(":")[0]: goal["met"] for goal in speed_goals(parts)}


def test_a_decode_is_judged_by_its_share_of_the_copy() -> None:
    rates = ((1, 750.0), (32, 800.0), (128, 799.9), (256, 900.0))
    assert met({DECODE: decode(*rates)}) == {
        "decode, batch 1": True,
        "decode, batch 32": True,
        "decode, batch 128": False,
        "decode, batch 256": True,
    }


def test_the_ceiling_is_the_best_that_any_part_measured() -> None:
    parts = {CEILINGS: {"copy_gb_per_s": 1010.0, "rows": []}, DECODE: decode((1, 750.0))}
    assert ceiling(parts, "copy_gb_per_s") == 1010.0
    assert not met(parts)["decode, batch 1"]
    assert ceiling({}, "copy_gb_per_s") is None


def test_what_a_part_did_not_come_to_misses_its_goal_and_what_was_not_asked_for_has_none() -> None:
    parts: dict[int, Any] = {
        DECODE: {"rows": [{"batch": 32, "gb_per_s": None}]},
        PREFILL: {"product_tflops": 700.0, "rows": []},
    }
    goals = speed_goals(parts)
    assert len(goals) == 5
    assert {(goal["met"], goal["found"]) for goal in goals} == {(False, "not measured")}
    assert speed_goals({CEILINGS: {"rows": []}}) == []


@pytest.mark.parametrize(("tflops", "is_met"), [(455.0, True), (454.0, False)])
def test_only_the_long_prefill_has_a_goal(tflops: float, is_met: bool) -> None:
    rows = [{"tokens": 2048, "tflops": spread(1.0)}, {"tokens": 8192, "tflops": spread(tflops)}]
    assert met({PREFILL: {"product_tflops": 700.0, "rows": rows}}) == {"prefill, 8192 tokens": is_met}


def test_idle_time_is_judged_for_the_large_model_as_it_is_served() -> None:
    def row(model: str, mode: str, batch: int, share: float) -> dict[str, Any]:
        return {"model": model, "mode": mode, "batch": batch, "idle_share": spread(share)}

    rows = [
        row("large", AS_SERVED.name, 1, 0.029),
        row("large", AS_SERVED.name, 32, 0.031),
        row("large", EAGER.name, 1, 0.5),
        row("small", AS_SERVED.name, 1, 0.5),
    ]
    goals = speed_goals({HOST: {"goal_model": "large", "goal_batches": [1, 32, 128], "rows": rows}})
    found = [(True, "2.90 %"), (False, "3.10 %"), (False, "not measured")]
    assert [(goal["met"], goal["found"]) for goal in goals] == found
    broke = {"model": "large", "mode": AS_SERVED.name, "what": "large", "error": "a traceback"}
    for rows in ([], [broke]):
        goals = speed_goals({HOST: {"goal_model": "large", "rows": rows}})
        assert [(goal["met"], goal["found"]) for goal in goals] == [(False, "not measured")]


def test_kernels_are_right_when_every_check_is() -> None:
    good, bad = {"what": "slots", "ok": True}, {"what": "attention", "ok": False}
    [goal] = correctness_goals({KERNELS: {"state": "done", "rows": [good, bad]}})
    assert (goal["met"], goal["found"]) == (False, "1 of 2 checks; wrong: attention")
    assert correctness_goals({KERNELS: {"state": "done", "rows": [good]}})[0]["met"]
    assert not correctness_goals({KERNELS: {"state": "out of time", "rows": [good]}})[0]["met"]
    assert not correctness_goals({KERNELS: {"state": "done", "rows": []}})[0]["met"]
    assert correctness_goals({}) == []
