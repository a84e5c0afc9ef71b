"""Who is blamed for the waiting for blocks, and for how much of it."""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.blame import blame

BLOCK_SIZE = 4
STEP_NS = 1_000_000_000
STEPS = 12
# By a wall clock a step plans a little after it began, and hands out its tokens a little before the next one begins.
PLANNING_NS, TAKING_IN_NS = 3_000, 5_000


@dataclass(frozen=True)
class Life:
    """A request that runs from step `admitted` until before step `left`, and perhaps again from `back` to the end."""

    prompt: int
    admitted: int
    left: int
    preempted: bool
    back: int | None


lives = st.builds(
    Life,
    prompt=st.integers(1, 20),
    admitted=st.integers(0, STEPS - 2),
    left=st.integers(1, STEPS),
    preempted=st.booleans(),
    back=st.none() | st.integers(1, STEPS - 1),
).filter(lambda life: life.left > life.admitted and (life.back is None or (life.preempted and life.back > life.left)))


def blocks_at(life: Life) -> list[int]:
    """Blocks held at each step, straight from the definition."""
    held, outputs = [], 0
    for step in range(STEPS):
        runs = life.admitted <= step < life.left or (life.back is not None and step >= life.back)
        held.append(-(-(life.prompt + outputs) // BLOCK_SIZE) if runs else 0)
        outputs += runs
    return held


def requests_of(population: list[Life]) -> pd.DataFrame:
    rows = []
    for number, life in enumerate(population):
        held = blocks_at(life)
        running = [step for step in range(STEPS) if held[step]]
        history: list[tuple[int, str, int, int, str]] = []
        for step in (life.admitted, life.back):
            if step is not None:
                planned = step * STEP_NS + PLANNING_NS
                history += [(planned, "admitted", 0, held[step], ""), (planned, "chunk", 1, held[step], "")]
            if step == life.admitted and life.left < STEPS:
                planned, ended = life.left * STEP_NS + PLANNING_NS, life.left * STEP_NS - TAKING_IN_NS
                lost = (planned, "preempted", 1, held[life.left - 1], "recompute:x")
                history.append(lost if life.preempted else (ended, "finished", 1, 1, "length"))
        rows.append(
            {
                "request_id": f"r{number}",
                "class_name": "all",
                "prompt_tokens": life.prompt,
                "chunk_times": np.array([(step + 1) * STEP_NS - TAKING_IN_NS for step in running]),
                "chunk_tokens": np.ones(len(running), dtype=np.int64),
                "history": json.dumps(history),
            }
        )
    return pd.DataFrame(rows)


def steps_of(heads: list[str | None], waiting: list[int]) -> pd.DataFrame:
    start = np.arange(STEPS) * STEP_NS
    return pd.DataFrame(
        {
            "t_start": start,
            "t_end": start + STEP_NS,
            "waiting": waiting,
            "wait_cause": ["seats" if head is None else "blocks" for head in heads],
            "blocked_request": heads,
        }
    )


scenarios = st.tuples(
    st.lists(lives, min_size=1, max_size=6),
    st.lists(st.sampled_from(["a", "b", None]), min_size=STEPS, max_size=STEPS),
    st.lists(st.integers(1, 5), min_size=STEPS, max_size=STEPS),
)


@given(scenarios)
def test_the_shares_of_one_head_add_up_to_the_time_it_waited_for_blocks_that_others_held(scenario):
    population, heads, waiting = scenario
    held = np.array([blocks_at(life) for life in population])
    found = blame(requests_of(population), steps_of(heads, waiting), BLOCK_SIZE, top=99, delayed=99)
    shares: dict[str, float] = {}
    for holder in found.top:
        for head, share in holder.delayed:
            shares[head] = shares.get(head, 0) + share
    for head in ("a", "b"):
        waited = sum(heads[step] == head and held[:, step].any() for step in range(STEPS))
        assert shares.get(head, 0) == pytest.approx(waited)
    assert sum(holder.delay_s for holder in found.top) == pytest.approx(found.blocked_s)
    assert found.heads == len(shares)


@given(scenarios)
def test_a_share_is_that_of_the_blocks_held_at_each_step(scenario):
    population, heads, waiting = scenario
    held = np.array([blocks_at(life) for life in population], dtype=float)
    blocked = np.array([head is not None for head in heads]) & held.any(axis=0)
    share = np.divide(held, held.sum(axis=0), out=np.zeros_like(held), where=held.sum(axis=0) > 0)
    found = blame(requests_of(population), steps_of(heads, waiting), BLOCK_SIZE, top=99)
    assert {holder.request_id for holder in found.top} == {
        f"r{i}" for i in np.flatnonzero(held[:, blocked].any(axis=1))
    }
    for holder in found.top:
        own = int(holder.request_id[1:])
        assert holder.block_seconds == pytest.approx(held[own, blocked].sum())
        assert holder.delay_s == pytest.approx(share[own, blocked].sum())
        assert holder.behind_request_s == pytest.approx((share[own] * (np.array(waiting) - 1))[blocked].sum())
    amounts = [holder.block_seconds for holder in found.top]
    assert amounts == sorted(amounts, reverse=True)


ALWAYS = Life(prompt=8, admitted=0, left=STEPS, preempted=False, back=None)


def test_only_the_window_counts_and_only_the_longest_are_named():
    requests = requests_of([ALWAYS] * 12)
    heads: list[str | None] = ["a", "b", "c", "d", *["a"] * (STEPS - 4)]
    window = {"start_ns": STEP_NS, "end_ns": 5 * STEP_NS}
    found = blame(requests, steps_of(heads, [1] * STEPS), BLOCK_SIZE, window)
    assert (found.blocked_s, found.heads, found.holders, len(found.top)) == (4, 4, 12, 10)
    assert [len(holder.delayed) for holder in found.top] == [3] * 10


def test_nobody_is_blamed_when_nobody_waits_for_blocks():
    quiet = blame(requests_of([ALWAYS]), steps_of([None] * STEPS, [3] * STEPS), BLOCK_SIZE)
    assert (quiet.blocked_s, quiet.heads, quiet.top) == (0, 0, ())


def test_a_run_without_steps_or_without_requests_has_nobody_to_blame():
    steps = steps_of(["a"] * STEPS, [1] * STEPS)
    assert blame(requests_of([ALWAYS]), steps.iloc[:0], BLOCK_SIZE).top == ()
    assert blame(requests_of([ALWAYS]).iloc[:0], steps, BLOCK_SIZE).top == ()
