"""Who is next under each policy, and how long anyone can be made to wait."""

from math import log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import POLICIES, SchedulerConfig
from engine.request import Request, SamplingParams
from engine.scheduler.output_length import OutputLength
from engine.scheduler.waiting_queue import WaitingQueue
from tests.engine.played_scheduler import Played

SIZES_APART = log2((1 + 510) / (1 + 3)) / log2(1002)
ONE_SEAT: dict[str, Any] = {"max_num_seqs": 1}


def order(texts: str, priorities: dict[str, int] | None = None, **config: Any) -> list[str]:
    """Order of admission of requests that all wait for one seat."""
    played = Played(**ONE_SEAT, **config)
    for text in texts.split():
        played.add(text, priority=(priorities or {}).get(text[0], 0))
    return played.order_of_admission()


def test_fcfs_goes_by_arrival() -> None:
    assert order("A9/9 B1/1 C5/5", policy="fcfs") == ["A", "B", "C"]


def test_sjf_goes_by_prompt_and_output_together() -> None:
    assert order("A9/9 B1/1 C2/30 D12/2", policy="sjf") == ["B", "D", "A", "C"]


def test_priority_goes_by_value_then_by_arrival() -> None:
    assert order("A9/9 B1/1 C5/5 D1/1", {"A": 1, "B": 1}, policy="priority") == ["C", "D", "A", "B"]


def test_tiered_goes_by_value_then_by_remaining_work() -> None:
    assert order("A9/9 B1/1 C5/5 D1/1", {"A": 1, "B": 1}, policy="tiered") == ["D", "C", "B", "A"]


@pytest.mark.parametrize("policy", POLICIES)
def test_equals_go_by_arrival(policy: str) -> None:
    assert order("A4/4 B4/4 C4/4", policy=policy) == ["A", "B", "C"]


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", "BACD"), ("priority", "BACD"), ("tiered", "BADC")])
def test_short_prompts_go_to_the_head_of_their_class_and_no_further(policy: str, expected: str) -> None:
    priorities = {"C": 1, "D": 1} if policy != "fcfs" else {}
    texts = "A9/1 B3/50 C9/9 D8/1" if policy == "tiered" else "A9/1 B3/50 C9/9 D9/9"
    assert "".join(order(texts, priorities, policy=policy, short_first_tokens=3)) == expected


def test_a_short_request_of_a_lower_class_stays_behind_the_higher_class() -> None:
    assert order("A9/9 B1/1", {"A": 0, "B": 1}, policy="priority", short_first_tokens=3) == ["A", "B"]


def test_a_retried_request_goes_to_the_head_of_its_class() -> None:
    played = Played(**ONE_SEAT, policy="priority", retried_first=True)
    played.add("A4/1")
    played.add("B4/1", attempt=1)
    played.add("C4/1", priority=-1)
    assert played.order_of_admission() == ["C", "B", "A"]


def test_a_preempted_request_counts_as_retried() -> None:
    played = Played(num_blocks=4, max_num_seqs=2, policy="priority", retried_first=True, preemption_victim="last")
    played.add("A8/6 B5/9 C4/1")
    preempted = next(plan for plan in played.plans() if plan.preempted)
    assert [r.request_id for r in preempted.preempted] == ["B"]
    assert played.scheduler.room.head is played.requests["B"]


def hostile(seconds: int, **config: Any) -> Played:
    """One seat, a step a second. A long request waits; a short one comes every second, as fast as they are served."""
    played = Played(**ONE_SEAT, **config)
    played.add("first1/1")
    played.add("long500/10", priority=3)
    for second in range(seconds):
        played.add(f"s{second}x2/1", priority=0)
        played.step()
    return played


@pytest.mark.parametrize("policy", ["sjf", "priority", "tiered"])
def test_without_aging_a_request_starves_as_long_as_others_keep_coming(policy: str) -> None:
    assert hostile(600, policy=policy).admitted_s("long") == float("inf")


@pytest.mark.parametrize(
    ("policy", "classes_apart"),
    # Sizes of 510 and 3 tokens on a logarithmic scale that ends at 1,000.
    [("fcfs", 0.0), ("sjf", SIZES_APART), ("priority", 3.0), ("tiered", 3 + SIZES_APART)],
)
def test_with_aging_nobody_waits_longer_than_the_promised_bound(policy: str, classes_apart: float) -> None:
    """The stream takes all there is, so the long request waits for just those it cannot get ahead of: those that
    came within `aging` times the difference of positions."""
    aging_s = 60.0
    played = hostile(400, policy=policy, aging=aging_s)
    bound_s = aging_s * classes_apart
    assert played.admitted_s("long") <= bound_s + 2
    ahead = [name for name in played.requests if played.admitted_s(name) < played.admitted_s("long")]
    assert all(played.requests[name].arrival_ns <= (bound_s + 1) * 1e9 for name in ahead)  # type: ignore[operator]


@pytest.mark.parametrize("policy", ["priority", "tiered"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_with_aging_nobody_is_preempted_again_and_again_by_those_it_has_overtaken(policy: str, mode: str) -> None:
    """A cache that holds little, and urgent requests without end: the long one must not only be admitted but end."""
    played = Played(num_blocks=20, num_swap_blocks=40, policy=policy, aging=10.0, chunk_size=4, preemption_mode=mode)
    played.add("long40/10", priority=3)
    for second in range(200):
        played.add(f"s{second}x4/20", priority=0)
        played.step()
    assert played.requests["long"].is_finished


@pytest.mark.parametrize("option", ["short_first_tokens", "retried_first"])
def test_a_head_start_under_fcfs_is_bounded_by_aging_and_without_it_starves_the_others(option: str) -> None:
    def run(**config: Any) -> Played:
        played = Played(**ONE_SEAT, policy="fcfs", **config)
        played.add("first1/1 long500/10")
        for second in range(200):
            played.add(f"s{second}x2/1", attempt=1)
            played.step()
        return played

    value = 8 if option == "short_first_tokens" else True
    assert run(**{option: value}).admitted_s("long") == float("inf")
    assert run(**{option: value}, aging=60.0).admitted_s("long") <= 32


arrivals = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 900), st.integers(0, 300), st.integers(0, 1)), min_size=2, max_size=40
)


@given(st.sampled_from(POLICIES), st.floats(0.5, 100), st.booleans(), st.integers(0, 400), arrivals)
def test_no_one_is_overtaken_by_a_request_that_came_later_than_the_bound(
    policy: str, aging_s: float, retried_first: bool, short_first: int, asked: list[tuple[int, int, int, int]]
) -> None:
    config = SchedulerConfig(
        policy=policy,  # type: ignore[arg-type]
        aging=aging_s,
        retried_first=retried_first,
        short_first_tokens=short_first,
    )
    queue = WaitingQueue(config, max_model_len=1000)
    now_ns = 0
    for number, (priority, prompt, gap_ms, attempt) in enumerate(asked):
        now_ns += gap_ms * 1_000_000
        request = Request(
            str(number), [0] * prompt, SamplingParams(), priority=priority, arrival_ns=now_ns, attempt=attempt
        )
        request.sequence_number = number
        queue.push(request, prompt)
    came_out: list[Request] = []
    while (head := queue.peek()) is not None:
        queue.pop()
        came_out.append(head)
    for position, later in enumerate(came_out):
        for earlier in came_out[position + 1 :]:
            classes = earlier.priority - later.priority if policy in ("priority", "tiered") else 0
            places = 1.0 if policy in ("sjf", "tiered") else 0.5 if retried_first or short_first else 0.0
            bound_ns = max(0.0, aging_s * (classes + places) * 1e9)
            assert later.arrival_ns - earlier.arrival_ns <= bound_ns + 1000  # type: ignore[operator]


def test_the_output_of_requests_that_may_end_early_is_predicted_from_those_that_have_ended() -> None:
    expects = OutputLength()
    open_ended = Request("a", [1], SamplingParams(max_tokens=100))
    assert expects.expected(open_ended) == 100
    ended = Request("b", [1], SamplingParams(max_tokens=100))
    ended.token_ids += [5] * 12
    expects.observe(ended)
    assert expects.expected(open_ended) == 12
    assert expects.expected(Request("c", [1], SamplingParams(max_tokens=100, ignore_eos=True))) == 100
    open_ended.token_ids += [5] * 20
    assert expects.expected(open_ended) == 0
