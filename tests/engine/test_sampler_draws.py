"""The sampler's choices: their distribution, their cuts, and that nothing but the request decides them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.executor import sampler as sampler_module
from engine.executor.sampler import Sampler, likeliest
from engine.request import Request, SamplingParams

VOCAB = 50


def request(request_id: str = "a", outputs: int = 0, **sampling: Any) -> Request:
    made = Request(request_id, [1, 2], SamplingParams(**sampling))
    made.token_ids += [0] * outputs
    return made


def logits(rows: int, seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def sample(rows: torch.Tensor, requests: list[Request], seed: int = 0) -> list[int]:
    return Sampler(seed).sample(rows, requests).tolist()


def draws(row: torch.Tensor, count: int, **sampling: Any) -> torch.Tensor:
    """How often each token is drawn, as shares, over `count` seeds."""
    requests = [request(seed=seed, **sampling) for seed in range(count)]
    tokens = sample(row.expand(count, -1), requests)
    return torch.bincount(torch.tensor(tokens), minlength=len(row)) / count


def test_temperature_zero_takes_the_likeliest() -> None:
    rows = logits(4, 1)
    assert sample(rows, [request(temperature=0)] * 4) == rows.argmax(-1).tolist()


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, VOCAB), []) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax_at_that_temperature(temperature: float) -> None:
    row = logits(1, 2)
    expected = (row[0] / temperature).softmax(-1)
    # 4 standard errors of a share out of 4,000 draws.
    assert (draws(row[0], 4000, temperature=temperature) - expected).abs().max() < 4 * 0.5 / 4000**0.5


def test_top_k_and_top_p_keep_the_shape_of_what_they_leave() -> None:
    row = logits(1, 3)[0]
    kept = row.topk(8)
    expected = torch.zeros(VOCAB).scatter(0, kept.indices, kept.values.softmax(-1))
    assert (draws(row, 4000, top_k=8) - expected).abs().max() < 4 * 0.5 / 4000**0.5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(0, VOCAB + 5),
    top_p=st.floats(0.01, 1.0),
    temperature=st.floats(0.2, 3.0),
)
def test_a_draw_lies_in_the_nucleus_of_the_top_k(seed: int, top_k: int, top_p: float, temperature: float) -> None:
    row = logits(1, seed)[0]
    order = row.argsort(descending=True)[: top_k or VOCAB]
    probabilities = (row[order].double() / temperature).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    allowed = set(order[before < top_p + 1e-6].tolist())
    requests = [request(seed=seed + i, top_k=top_k, top_p=top_p, temperature=temperature) for i in range(16)]
    assert set(sample(row.expand(16, -1), requests)) <= allowed


def test_a_nucleus_wider_than_the_first_guess_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = logits(40, 4)
    requests = [request(seed=i, top_p=0.97) for i in range(40)]
    whole = sample(rows, requests)
    monkeypatch.setattr(sampler_module, "_NUCLEUS_GUESS", 2)
    assert sample(rows, requests) == whole


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(8)), outputs=st.integers(0, 500))
def test_neighbours_do_not_change_a_draw(seed: int, order: list[int], outputs: int) -> None:
    rows = logits(8, seed)
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0}, {"top_k": 5}, {"top_p": 0.8}] * 2
    requests = [request(str(i), outputs, seed=seed + i, **kind) for i, kind in enumerate(kinds)]
    alone = [sample(rows[i : i + 1], [requests[i]])[0] for i in range(8)]
    together = sample(rows[list(order)], [requests[i] for i in order])
    assert together == [alone[i] for i in order]


@pytest.mark.parametrize("seed", range(8))
def test_a_neighbour_that_wants_more_tokens_does_not_reorder_equal_16_bit_logits(seed: int) -> None:
    rows = logits(4, seed, vocab=2000).bfloat16()
    kinds: list[dict[str, Any]] = [{"top_k": 50, "top_p": 0.5}, {"top_p": 0.99999}, {"top_k": 1000}, {"top_k": 300}]
    for outputs in range(30):
        requests = [request(str(i), outputs, seed=seed + i, **kind) for i, kind in enumerate(kinds)]
        alone = sample(rows[:1], requests[:1])[0]
        assert sample(rows, requests)[0] == alone


def test_the_smallest_top_p_leaves_the_likeliest_token() -> None:
    rows = logits(1, 4, vocab=2000)
    assert sample(rows, [request(top_p=1e-300, seed=3)]) == rows.argmax(-1).tolist()


def test_the_stream_goes_by_seed_and_number_of_outputs() -> None:
    row = torch.zeros(1, 1000)
    by_output = [sample(row, [request(outputs=n, seed=5)])[0] for n in range(20)]
    assert by_output == [sample(row, [request("other id", outputs=n, seed=5)])[0] for n in range(20)]
    assert len(set(by_output)) > 15
    assert by_output != [sample(row, [request(outputs=n, seed=6)])[0] for n in range(20)]


def test_requests_without_a_seed_draw_apart_and_follow_the_samplers_seed() -> None:
    rows = torch.zeros(20, 1000)
    requests = [request(str(i)) for i in range(20)]
    first = sample(rows, requests, seed=1)
    assert len(set(first)) > 15
    assert first == sample(rows, requests, seed=1)
    assert first != sample(rows, requests, seed=2)


def test_broken_logits_still_give_tokens_of_the_vocabulary() -> None:
    rows = torch.full((3, VOCAB), float("nan"))
    tokens = sample(rows, [request(temperature=0), request(), request(top_p=0.5)])
    assert all(0 <= token < VOCAB for token in tokens)


@given(count=st.integers(1, 5), pieces=st.integers(1, 4), levels=st.integers(1, 300), seed=st.integers(0, 2**16))
def test_the_likeliest_is_the_first_of_the_greatest(count: int, pieces: int, levels: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(levels, (count, 64 * pieces), generator=draw).float()
    rows[0, -1] = float("-inf")
    expected = [row.index(max(row)) for row in rows.tolist()]
    assert likeliest(rows).tolist() == expected
    assert likeliest(rows[:, :-1]).tolist() == [row.index(max(row)) for row in rows[:, :-1].tolist()]
