"""A plan follows from spec, seed and index alone."""

from hashlib import sha256
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from engine.errors import UserError
from workloads.plan import make_plan
from workloads.spec import load_spec

SPEC = load_spec("chat-small")


def plan_of(rate=5.0, seed=7, vocab_size=1000, spec=SPEC, warmup_s=2.0, window_s=10.0):
    return make_plan(spec, rate=rate, seed=seed, vocab_size=vocab_size, warmup_s=warmup_s, window_s=window_s)


def first(plan, count):
    return list(islice(plan, count))


def rows(plan, count):
    return [(r.index, r.t_offset_ns, r.prompt_token_ids, r.max_tokens, r.phase) for r in first(plan, count)]


@pytest.mark.parametrize(
    ("arrival", "digest"),
    [("poisson", "94cb672e6b9a6f4d"), ("gamma:burstiness=0.5", "e01c2e68696c5720")],
)
def test_a_seed_gives_this_very_plan_on_every_machine(arrival, digest):
    # Microseconds: logarithms may differ in their last bit between C libraries.
    spec = load_spec("chat-small", [f"arrival={arrival}"])
    content = [(i, round(t / 1000), tokens, n, phase) for i, t, tokens, n, phase in rows(plan_of(spec=spec), 100)]
    assert sha256(repr(content).encode()).hexdigest()[:16] == digest


def test_a_plan_gives_the_same_requests_however_often_it_is_read():
    plan = plan_of()
    assert rows(plan, 300) == rows(plan, 300) == rows(plan_of(), 300)


@given(seed=st.integers(0, 2**63), rates=st.tuples(st.floats(0.1, 50), st.floats(0.1, 50)))
def test_request_i_is_the_same_at_every_rate(seed, rates):
    slow, fast = (first(plan_of(rate=rate, seed=seed, window_s=0.5), 60) for rate in rates)
    for one, other in zip(slow, fast, strict=True):
        assert one.prompt_token_ids == other.prompt_token_ids
        assert one.max_tokens == other.max_tokens


@pytest.mark.parametrize("arrival", ["poisson", "gamma:0.25", "constant", "spikes:multiplier=4,length_s=1,every_s=5"])
@given(seed=st.integers(0, 2**63), rate=st.floats(0.1, 50))
def test_warmup_and_window_hold_as_many_arrivals_as_the_rate_asks_for(arrival, seed, rate):
    plan = plan_of(rate=rate, seed=seed, spec=load_spec("chat-small", [f"arrival={arrival}"]), window_s=8.0)
    warmup, window = (plan.spec.arrival.work_until(end) for end in (2.0, 10.0))
    assert abs(plan.num_window_requests - rate * (window - warmup)) <= 1
    offsets = [r.t_offset_ns for r in first(plan, plan.num_window_requests + 150)]
    assert offsets == sorted(offsets)
    assert abs(sum(t < 2e9 for t in offsets) - rate * warmup) <= 1


def test_poisson_arrivals_of_a_window_are_uniform_order_statistics():
    shares = []
    for seed in range(400):
        requests = first(plan_of(rate=2.0, seed=seed, warmup_s=0.0), 20)
        shares += [r.t_offset_ns / 10e9 for r in requests]
    assert kstest(shares, "uniform").pvalue > 0.01


@given(seed=st.integers(0, 2**63), vocab_size=st.integers(1, 200_000))
def test_the_vocabulary_bounds_the_tokens_and_leaves_the_lengths(seed, vocab_size):
    plan = first(plan_of(seed=seed, vocab_size=vocab_size), 20)
    reference = first(plan_of(seed=seed), 20)
    assert all(0 <= token < vocab_size for r in plan for token in r.prompt_token_ids)
    assert [(len(r.prompt), r.max_tokens) for r in plan] == [(len(r.prompt), r.max_tokens) for r in reference]


def test_prompts_are_fresh_in_each_seed():
    one, other = first(plan_of(seed=1), 50), first(plan_of(seed=2), 50)
    prompts = {tuple(r.prompt_token_ids[:16]) for r in one + other}
    assert len(prompts) == 100


def test_an_output_distribution_leaves_prompts_and_arrivals_alone():
    other = load_spec("chat-small", ["output_tokens=lognormal:median=30,sigma=1,high=200"])
    drop_outputs = [[row[:3] for row in rows(plan_of(spec=spec), 50)] for spec in (SPEC, other)]
    assert drop_outputs[0] == drop_outputs[1]


@pytest.mark.parametrize("seed", range(5))
def test_phases_follow_the_schedule_and_the_window_is_counted(seed):
    plan = plan_of(seed=seed)
    requests = first(plan, 200)
    for request in requests:
        t_s = request.t_offset_ns / 1e9
        assert request.phase == ("warmup" if t_s < 2 else "window" if t_s < 12 else "cooldown")
    assert plan.num_window_requests == sum(r.phase == "window" for r in requests)
    assert requests[-1].phase == "cooldown"


def test_a_closed_loop_has_no_schedule():
    plan = plan_of(rate=None, spec=load_spec("chat-small", ["arrival=closed:2..9,period_s=1"]))
    assert plan.num_window_requests is None
    assert {(r.t_offset_ns, r.phase) for r in first(plan, 10)} == {(None, None)}
    levels = [plan.concurrency_at(s * 10**9) for s in range(100)]
    assert set(levels) == set(range(2, 10))
    assert plan.concurrency_at(3 * 10**9 + 5) == levels[3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0}, "rate=0 is not possible: it is a number of requests per second above 0"),
        ({"rate": -1.0}, "rate=-1.0"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"rate": float("inf")}, "rate=inf"),
        ({"rate": 1e9}, "rate=1e\\+09 over 12 s asks for more than 1,000,000 requests"),
        ({"rate": None}, "arrival=poisson needs a rate"),
        ({"spec": load_spec("chat", ["arrival=closed:4"])}, "a closed loop has no rate"),
        ({"window_s": 0}, "window_s=0"),
        ({"warmup_s": -1}, "warmup_s=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"vocab_size": 0}, "vocab_size=0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        plan_of(**changes)
