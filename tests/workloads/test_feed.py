"""Which request of a closed loop is due when, as its clients are served, turned away, or become fewer."""

from workloads.feed import TURNED_AWAY_PAUSE_NS, Feed, make_feed
from workloads.plan import WorkloadPlan, make_plan
from workloads.spec import spec_from_dict

S = 1_000_000_000
MS = 1_000_000
START_NS = 7 * S


def plan_of(arrival: str, seed: int = 0) -> WorkloadPlan:
    spec = spec_from_dict({"name": "test", "arrival": arrival, "prompt_tokens": 10, "output_tokens": 1})
    return make_plan(spec, rate=None, seed=seed, vocab_size=100, warmup_s=0.0, window_s=100.0)


def sched_times(feed: Feed, now: int, under_way: int) -> list[int]:
    """The scheduled times of all requests due at `now`."""
    times: list[int] = []
    while due := feed.next_due(now, under_way + len(times)):
        times.append(due[2])
    return times


def test_a_client_that_was_turned_away_pauses_and_no_other() -> None:
    feed = make_feed(plan_of("closed:2"), START_NS)
    assert sched_times(feed, START_NS, 0) == [START_NS, START_NS]
    shed, served = START_NS + 10 * MS, START_NS + 30 * MS
    again = shed + TURNED_AWAY_PAUSE_NS
    feed.ended(shed, turned_away=True)
    assert sched_times(feed, shed, 1) == []
    assert feed.due_at(shed) == again
    feed.ended(served, turned_away=False)
    assert sched_times(feed, served + MS, 0) == [served]
    assert feed.due_at(served + MS) == again
    assert sched_times(feed, again + 40 * MS, 1) == [again]


def test_clients_that_are_turned_away_together_pause_together() -> None:
    feed = make_feed(plan_of("closed:3"), START_NS)
    assert len(sched_times(feed, START_NS, 0)) == 3
    for _ in range(3):
        feed.ended(START_NS, turned_away=True)
    again = START_NS + TURNED_AWAY_PAUSE_NS
    assert sched_times(feed, again - 1, 0) == []
    assert sched_times(feed, again, 0) == [again] * 3


def test_when_clients_become_fewer_those_leave_that_would_be_the_last_to_send() -> None:
    plan = next(p for p in (plan_of("closed:1..6,period_s=2", seed) for seed in range(99)) if falls(p))
    feed, fewer = make_feed(plan, START_NS), plan.concurrency_at(2 * S)
    many = len(sched_times(feed, START_NS, 0))
    for i in range(many):
        feed.ended(START_NS + 2 * S + i, turned_away=i > 0)
    now = START_NS + 2 * S + 10
    assert sched_times(feed, now, 0) == [START_NS + 2 * S]
    again = now + TURNED_AWAY_PAUSE_NS
    assert sched_times(feed, again, 1) == [START_NS + 2 * S + i + TURNED_AWAY_PAUSE_NS for i in range(1, fewer)]


def falls(plan: WorkloadPlan) -> bool:
    return plan.concurrency_at(0) > plan.concurrency_at(2 * S) > 1


def test_a_client_more_sends_at_once_though_others_pause() -> None:
    plan = next(p for p in (plan_of("closed:1..6,period_s=2", seed) for seed in range(99)) if rises(p))
    feed, more = make_feed(plan, START_NS), plan.concurrency_at(2 * S)
    many = len(sched_times(feed, START_NS, 0))
    now = START_NS + 2 * S
    for _ in range(many):
        feed.ended(now - 1, turned_away=True)
    assert sched_times(feed, now, 0) == [now] * (more - many)


def rises(plan: WorkloadPlan) -> bool:
    return plan.concurrency_at(0) < plan.concurrency_at(2 * S)
