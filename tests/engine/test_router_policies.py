"""Routing policies as pure logic: who gets a request, by what is known of the replicas when it arrives."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from engine.parallel.router import ROUTERS, ReplicaLoad, Router, require_router
from engine.request import Request, SamplingParams

BLOCK_SIZE = 4
IDLE = (ReplicaLoad(0, 0),) * 3


def make(name: str) -> Router:
    return ROUTERS[name](BLOCK_SIZE)


def request(tokens: Sequence[int] = (1,)) -> Request:
    return Request("r", list(tokens), SamplingParams())


def loads(*pairs: tuple[int, int]) -> list[ReplicaLoad]:
    return [ReplicaLoad(*pair) for pair in pairs]


def prompt(group: int, own: int) -> list[int]:
    """Three blocks that a group shares, then some tokens of its own."""
    return [group] * 3 * BLOCK_SIZE + [100 + own] * 5


def test_round_robin_takes_turns_whatever_the_loads() -> None:
    router = make("round_robin")
    busy = loads((9, 9), (0, 0), (5, 5))
    assert [router.choose(request(), busy) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_in_flight_counts_requests_and_not_their_tokens() -> None:
    assert make("least_in_flight").choose(request(), loads((3, 10), (2, 900), (4, 0))) == 1


def test_least_kv_counts_tokens_and_not_requests() -> None:
    assert make("least_kv").choose(request(), loads((1, 500), (9, 100), (2, 300))) == 1


@pytest.mark.parametrize("name", ["least_in_flight", "least_kv", "prefix_affinity"])
def test_equal_replicas_take_turns(name: str) -> None:
    router = make(name)
    assert [router.choose(request(), IDLE) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_prefix_affinity_sends_equal_beginnings_to_one_replica() -> None:
    router = make("prefix_affinity")
    first = {group: router.choose(request(prompt(group, 0)), IDLE) for group in range(3)}
    assert set(first.values()) == {0, 1, 2}
    for own in range(1, 4):
        assert {group: router.choose(request(prompt(group, own)), IDLE) for group in range(3)} == first


def test_prefix_affinity_goes_by_the_longest_beginning() -> None:
    router = make("prefix_affinity")
    short = [7] * BLOCK_SIZE
    assert router.choose(request([*short, *[1] * BLOCK_SIZE]), IDLE) == 0
    # The first block is known, but its replica is far too busy: the longer prompt goes elsewhere.
    assert router.choose(request([*short, *[2] * BLOCK_SIZE]), loads((50, 0), (0, 0), (0, 0))) == 1
    assert router.choose(request([*short, *[2] * BLOCK_SIZE, 3]), IDLE) == 1
    assert router.choose(request([*short, *[1] * BLOCK_SIZE, 3]), IDLE) == 0


def test_prefix_affinity_gives_a_prefix_up_where_its_replica_is_far_busier() -> None:
    router = make("prefix_affinity")
    assert router.choose(request(prompt(1, 0)), IDLE) == 0
    assert router.choose(request(prompt(1, 1)), loads((8, 0), (0, 0), (0, 0))) == 0
    assert router.choose(request(prompt(1, 2)), loads((9, 0), (0, 0), (0, 0))) == 1
    # From now on two replicas have the prefix, and the less busy one gets it.
    assert router.choose(request(prompt(1, 3)), loads((5, 0), (2, 0), (0, 0))) == 1
    assert router.choose(request(prompt(1, 4)), loads((40, 0), (42, 0), (30, 0))) == 0


def test_prefix_affinity_sees_no_less_than_a_block() -> None:
    router = make("prefix_affinity")
    short = [5] * (BLOCK_SIZE - 1)
    assert [router.choose(request(short), IDLE) for _ in range(2)] == [0, 1]


@given(
    name=st.sampled_from(sorted(ROUTERS)),
    arrivals=st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=24),
            st.lists(st.tuples(st.integers(0, 60), st.integers(0, 999)), min_size=4, max_size=4),
        ),
        max_size=20,
    ),
)
def test_every_policy_names_a_replica_and_repeats_itself(
    name: str, arrivals: list[tuple[list[int], list[tuple[int, int]]]]
) -> None:
    def play() -> list[int]:
        router = make(name)
        return [router.choose(request(tokens), loads(*pairs)) for tokens, pairs in arrivals]

    choices = play()
    assert all(0 <= choice < 4 for choice in choices)
    assert play() == choices


def test_unknown_router_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"router 'random' does not exist: choose one of round_robin, least_in_flight"):
        require_router("random")
