"""A plan arrives as it was sent, whatever happened to its requests, and a steady decode sends next to nothing."""

import random

import pytest

from engine.parallel.plan_messages import PlanReceiver, PlanSender
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan


def request(name: str, tokens: int, blocks: list[int]) -> Request:
    one = Request(name, list(range(tokens)), SamplingParams(seed=3, temperature=0.5))
    one.block_table = blocks
    return one


def seen(plan: StepPlan) -> list[tuple[list[int], list[int], int, int, bool, bool]]:
    """What an executor reads of a plan."""
    return [
        (s.request.token_ids[s.num_computed : s.num_computed + s.num_tokens], s.request.block_table, *s[1:])
        for s in plan.scheduled
    ]


@pytest.mark.parametrize("seed", range(20))
def test_plans_arrive_as_they_were_sent(seed: int) -> None:
    rng = random.Random(seed)
    sender, receiver = PlanSender(), PlanReceiver()
    live = [request(str(i), rng.randint(4, 30), rng.sample(range(99), 9)) for i in range(6)]
    for _ in range(30):
        plan = StepPlan(swap_out=[(rng.randrange(9), 1)] * rng.randrange(2), swap_in=[(2, 7)] * rng.randrange(3))
        for index in rng.sample(range(6), rng.randint(0, 6)):
            one = live[index]
            if rng.random() < 0.2:  # preempted and back, with other blocks and from any token on
                one.block_table = rng.sample(range(99), 9)
            if rng.random() < 0.1:  # ended; its id comes again
                one = live[index] = request(one.request_id, rng.randint(4, 30), rng.sample(range(99), 3))
            if rng.random() < 0.7:
                one.token_ids.append(rng.randrange(1000))
                one.block_table = [*one.block_table, rng.randrange(100, 999)]
            start = rng.randrange(len(one.token_ids))
            count = rng.randint(1, len(one.token_ids) - start)
            plan.scheduled.append(ScheduledRequest(one, start, count, rng.random() < 0.5, count == 1))
        arrived = receiver.unpack(sender.pack(plan))
        assert seen(arrived) == seen(plan)
        assert (arrived.swap_out, arrived.swap_in) == (plan.swap_out, plan.swap_in)


def test_a_steady_decode_sends_one_token_and_no_known_block() -> None:
    sender = PlanSender()
    one = request("a", 100, list(range(7)))
    sender.pack(StepPlan([ScheduledRequest(one, 0, 100, True, False)]))
    one.token_ids.append(5)
    message = sender.pack(StepPlan([ScheduledRequest(one, 100, 1, True, True)]))
    assert message.tokens.tolist() == [5]
    assert message.blocks.size == 0
