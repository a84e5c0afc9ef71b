"""How the real engine is slowed down on purpose, on a clock that a test moves."""

import pytest

from engine.executor.base import StepResult
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan
from scripts.gate_proof.change import CHANGES, NOTHING, Change, Conditions
from scripts.gate_proof.real import slowed

STEP_S = 1.0
TICK_S = 0.001


class Clock:
    """Passes a tick each time it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += TICK_S
        return self.now_s


def plan(*, decodes: int, prompts: int) -> StepPlan:
    request = Request("r", [1, 2], SamplingParams(max_tokens=2))
    shares = [is_decode for is_decode, count in ((True, decodes), (False, prompts)) for _ in range(count)]
    return StepPlan([ScheduledRequest(request, 0, 1, True, is_decode) for is_decode in shares])


def duration_s(change: Change, step: StepPlan, day: float = 1.0) -> float:
    clock = Clock()

    def execute(plan: StepPlan) -> StepResult:
        clock.now_s += STEP_S
        return StepResult([7])

    assert slowed(execute, Conditions(change, day), clock)(step).token_ids == [7]
    return clock.now_s


@pytest.mark.parametrize(
    ("change", "decodes", "prompts", "seconds"),
    [
        (NOTHING, 2, 1, 1.0),
        (CHANGES["10 % slower"], 2, 1, 1.1),
        (CHANGES["10 % slower"], 2, 0, 1.1),
        (CHANGES["prompts 10 % slower"], 2, 1, 1.1),
        (CHANGES["prompts 10 % slower"], 2, 0, 1.0),
        (CHANGES["decodes 10 % slower"], 2, 1, 1.0),
        (CHANGES["decodes 10 % slower"], 2, 0, 1.1),
    ],
)
def test_a_step_takes_longer_by_what_the_change_says(
    change: Change, decodes: int, prompts: int, seconds: float
) -> None:
    assert duration_s(change, plan(decodes=decodes, prompts=prompts)) == pytest.approx(seconds, abs=5 * TICK_S)


def test_the_day_comes_on_top_of_the_change() -> None:
    step = plan(decodes=1, prompts=0)
    assert duration_s(CHANGES["20 % slower"], step, day=1.1) == pytest.approx(1.32, abs=5 * TICK_S)
