"""`--search`: a user's own ranges, and what is refused."""

from dataclasses import replace

import pytest

from engine.errors import UserError
from tuner.settings import Settings
from tuner.space import Choices, Range, SearchSpace, default_space, with_search

EMPTY = SearchSpace({}, Settings())


def test_search_option_gives_ranges_and_choices() -> None:
    base = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.4, max_resident_requests=100)
    texts = [
        "max_num_seqs=8..64", "block_size=16,32", "chunk_size=off,256", "policy=fcfs,priority", "aging=1s..1m",
        "preemption_mode=recompute,swap", "swap_space=512MiB..8GiB", "queue_timeout=off, 5s",
    ]  # fmt: skip
    space = with_search(base, texts)
    assert space.dimensions["max_num_seqs"] == Range(8, 64)
    assert space.dimensions["block_size"] == Choices((16, 32))
    assert space.dimensions["chunk_size"] == Choices((0, 256))
    assert space.dimensions["policy"] == Choices(("fcfs", "priority"))
    assert space.dimensions["aging"] == Range(1.0, 60.0)
    assert space.dimensions["swap_space"] == Range(512 << 20, 8 << 30)
    assert space.dimensions["queue_timeout"] == Choices((0.0, 5.0))
    assert space.dimensions["max_num_batched_tokens"] == base.dimensions["max_num_batched_tokens"]


@pytest.mark.parametrize(
    "text",
    [
        "seats=8..64",
        "max_num_seqs",
        "max_num_seqs=",
        "max_num_seqs=64..8",
        "max_num_seqs=8..8",
        "max_num_seqs=0..8",
        "max_num_seqs=8..many",
        "max_num_seqs=8,,16",
        "chunk_size=0..512",
        "gpu_memory_utilization=0.5..1.5",
        "policy=fcfs..priority",
        "policy=fcfs,lifo",
        "enable_prefix_caching=off..on",
        "queue_timeout=1..5",
        "queue_timeout=off..5s",
        "max_queue_len=off..64",
    ],
)
def test_impossible_search_is_refused(text: str) -> None:
    with pytest.raises(UserError) as refusal:
        with_search(EMPTY, [text])
    assert text.partition("=")[0] in str(refusal.value)


@pytest.mark.parametrize(
    ("texts", "beside"),
    [
        (["aging=1s..1m"], "policy=fcfs"),
        (["max_queue_delay=10ms..1s", "batching=continuous,static"], "batching=continuous"),
        (["preferred_batch_size=4..64"], "batching=continuous"),
        (["swap_space=1GiB..8GiB"], "preemption_mode=recompute"),
    ],
)
def test_a_search_that_could_never_act_is_refused_with_what_it_needs(texts: list[str], beside: str) -> None:
    with pytest.raises(UserError, match=beside):
        with_search(EMPTY, texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["aging=1s..1m", "policy=fcfs,sjf"],
        ["aging=1s..1m", "short_first_tokens=off,64"],
        ["aging=1s..1m", "retried_first=on,off"],
        ["aging=1s..1m", "preemption_victim=auto,lowest_priority"],
        ["max_queue_delay=10ms..1s", "batching=static,dynamic"],
        ["swap_space=1GiB..8GiB", "preemption_mode=recompute,auto"],
    ],
)
def test_a_search_that_acts_beside_a_searched_value_is_taken(texts: list[str]) -> None:
    assert len(with_search(EMPTY, texts).dimensions) == 2


def test_a_search_that_acts_beside_a_fixed_value_is_taken() -> None:
    assert with_search(replace(EMPTY, fixed=Settings(policy="sjf")), ["aging=1s..1m"]).dimensions
