"""Prompts that begin alike: how they are asked for, which they are, and which hits of the prefix cache they explain."""

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from workloads.driver import drive
from workloads.plan import RequestPlan, WorkloadPlan, make_plan
from workloads.spec import WorkloadSpec, load_spec, spec_from_dict
from workloads.validity import check_validity

PREFIX = {"share": 0.6, "tokens": "fixed:64", "count": 4}


def spec_of(prefix: dict[str, Any] | None, name: str = "chat-small") -> WorkloadSpec:
    base = load_spec(name).to_dict()
    return spec_from_dict(base if prefix is None else base | {"shared_prefix": prefix})


def plan_of(prefix: dict[str, Any] | None, name: str = "chat-small", seed: int = 7) -> WorkloadPlan:
    return make_plan(spec_of(prefix, name), rate=5.0, seed=seed, vocab_size=32_000, warmup_s=2.0, window_s=10.0)


def first(
    prefix: dict[str, Any] | None, count: int = 300, name: str = "chat-small", seed: int = 7
) -> list[RequestPlan]:
    return list(islice(plan_of(prefix, name, seed), count))


def heads(requests: list[RequestPlan], length: int = 16) -> set[tuple[int, ...]]:
    return {tuple(r.prompt_token_ids[:length]) for r in requests}


def test_shared_prefixes_are_read_from_a_yaml_file_and_written_as_they_are_read(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "prompt_tokens: 500\noutput_tokens: 8\nshared_prefix: {share: 0.6, tokens: uniform:400..800, count: 8}\n"
    )
    spec = load_spec(path)
    assert spec.to_dict()["shared_prefix"] == {"share": 0.6, "tokens": "uniform:400..800", "count": 8}
    assert spec_from_dict(spec.to_dict()) == spec


def test_one_prefix_is_meant_where_no_count_is_given() -> None:
    spec = spec_of({"share": 1, "tokens": 64})
    assert spec.to_dict()["shared_prefix"] == {"share": 1.0, "tokens": "fixed:64", "count": 1}
    assert spec_from_dict(spec.to_dict()) == spec


def test_a_workload_without_shared_prefixes_is_written_without_them() -> None:
    assert "shared_prefix" not in spec_of(None).to_dict()


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ({"share": 0}, "share=0 is not possible"),
        ({"share": 1.5}, "share=1.5 is not possible"),
        ({"count": 0}, "count=0 is not possible"),
        ({"count": 100_000}, "count=100000 is not possible"),
        ({"tokens": "uniform:9..5"}, "shared_prefix.tokens='uniform:9..5'"),
        ({"prefix": 5}, "there is no 'prefix'; its keys are share, tokens, count"),
    ],
)
def test_prefixes_that_cannot_be_are_answered_in_one_readable_message(prefix: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        spec_of(PREFIX | prefix)
    assert message in str(caught.value)


@pytest.mark.parametrize("override", ["shared_prefix=0.6", "shared_prefix=fixed:5"])
def test_prefixes_that_are_no_mapping_are_answered_with_an_example(override: str) -> None:
    with pytest.raises(UserError, match=r"write in a YAML file for example {share: 0.6, tokens: uniform:400..800"):
        load_spec("chat-small", [override])


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UserError, match="shared_prefix is not possible: 'tokens' is missing"):
        spec_of({"share": 0.5})


@pytest.mark.parametrize("name", ["chat-small", "mixed-small"])
@pytest.mark.parametrize("seed", range(3))
def test_prefixes_change_nothing_of_a_request_but_the_head_of_its_prompt(name: str, seed: int) -> None:
    for fresh, shared in zip(first(None, name=name, seed=seed), first(PREFIX, name=name, seed=seed), strict=True):
        cut = shared.shared_prefix_tokens
        assert fresh.shared_prefix_tokens == 0
        assert len(shared.prompt) == len(fresh.prompt)
        assert shared.prompt_token_ids[cut:] == fresh.prompt_token_ids[cut:]
        assert (shared.t_offset_ns, shared.max_tokens, shared.class_name, shared.phase) == (
            fresh.t_offset_ns, fresh.max_tokens, fresh.class_name, fresh.phase,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_the_asked_share_begins_with_one_of_so_many_prefixes(seed: int) -> None:
    requests = first(PREFIX, count=3000, seed=seed)
    shared = [r for r in requests if r.shared_prefix_tokens]
    assert len(shared) / len(requests) == pytest.approx(0.6, abs=0.04)
    assert len(heads(shared)) == 4
    assert len(heads([r for r in requests if not r.shared_prefix_tokens])) == len(requests) - len(shared)
    counts = [sum(tuple(r.prompt_token_ids[:16]) == head for r in shared) for head in heads(shared)]
    assert min(counts) / len(shared) > 0.2


@given(seed=st.integers(0, 2**63), length=st.integers(1, 400))
def test_a_prefix_is_cut_so_that_every_prompt_keeps_a_token_of_its_own(seed: int, length: int) -> None:
    requests = first({"share": 1, "tokens": length}, count=50, seed=seed)
    assert [r.shared_prefix_tokens for r in requests] == [min(length, len(r.prompt) - 1) for r in requests]
    longest = max(requests, key=lambda r: r.shared_prefix_tokens)
    for r in requests:
        cut = r.shared_prefix_tokens
        assert r.prompt_token_ids[:cut] == longest.prompt_token_ids[:cut]


def test_a_prompt_of_one_token_shares_none() -> None:
    spec = spec_from_dict(
        {"name": "one", "prompt_tokens": 1, "output_tokens": 1, "shared_prefix": PREFIX | {"share": 1}}
    )
    plan = make_plan(spec, rate=5.0, seed=1, vocab_size=32_000, warmup_s=0.0, window_s=10.0)
    assert {r.shared_prefix_tokens for r in islice(plan, 20)} == {0}


def test_prefixes_have_lengths_of_their_own_distribution_and_each_always_the_same() -> None:
    requests = first({"share": 1, "tokens": "uniform:8..24", "count": 6}, count=500)
    lengths: dict[tuple[int, ...], set[int]] = {}
    for r in requests:
        lengths.setdefault(tuple(r.prompt_token_ids[:8]), set()).add(r.shared_prefix_tokens)
    assert len(lengths) == 6
    assert all(len(of_one) == 1 and 8 <= min(of_one) <= 24 for of_one in lengths.values())
    assert len(set.union(*lengths.values())) > 1


def test_prefixes_are_the_same_in_one_seed_and_fresh_in_another() -> None:
    everyone = PREFIX | {"share": 1}
    one, again, other = (heads(first(everyone, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert not one & other


def test_a_larger_share_takes_no_prefix_from_a_request() -> None:
    for less, more in zip(first(PREFIX | {"share": 0.3}), first(PREFIX | {"share": 0.7}), strict=True):
        if less.shared_prefix_tokens:
            assert less.prompt_token_ids == more.prompt_token_ids


def test_more_prefixes_or_longer_ones_leave_who_has_one_as_it_was() -> None:
    requests = [first(PREFIX | change) for change in ({}, {"count": 40}, {"tokens": "fixed:20"})]
    who = [[r.index for r in of_one if r.shared_prefix_tokens] for of_one in requests]
    assert who[0] == who[1] == who[2]


def cache_check(engine: Any, plan: WorkloadPlan) -> dict[str, Any]:
    checks = check_validity(drive(engine, plan), plan)["checks"]
    return next(check for check in checks if check["name"] == "unintended_cache_hits")


def test_hits_within_the_shared_prefixes_are_intended(make_engine) -> None:
    engine, plan = make_engine(), plan_of(PREFIX)
    result = drive(engine, plan)
    assert sum(r.cached_tokens for r in result.requests) > 0
    check = next(c for c in check_validity(result, plan)["checks"] if c["name"] == "unintended_cache_hits")
    assert (check["ok"], check["value"]) == (True, 0.0)
    assert "beyond its shared prefixes, the workload repeats no prompt" in check["detail"]


def test_another_runs_cache_is_found_out_beside_shared_prefixes(make_engine) -> None:
    engine, plan = make_engine(), plan_of(PREFIX)
    assert cache_check(engine, plan)["ok"]
    assert not cache_check(engine, plan)["ok"]


def test_a_hit_is_intended_only_for_the_requests_that_share(make_engine) -> None:
    plan = plan_of(PREFIX)
    result = drive(make_engine(), plan)
    shared = {p.index for p in islice(plan, len(result.requests)) if p.shared_prefix_tokens}
    hit = [r if r.index in shared else replace(r, cached_tokens=16) for r in result.requests]
    checks = check_validity(replace(result, requests=hit), plan)["checks"]
    assert not next(c["ok"] for c in checks if c["name"] == "unintended_cache_hits")
