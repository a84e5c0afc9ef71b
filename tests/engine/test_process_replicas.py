"""Replicas in processes of their own: one engine's tokens, ends, refusals and settings."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import KVCacheTooSmall, OutOfDeviceMemory, RequestRefused, UserError
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import ModelSource
from engine.parallel.process_replicas import ProcessReplicas
from engine.parallel.replica_group import ReplicaGroup
from engine.parallel.router import ROUTERS
from engine.parallel.routing import Routing
from engine.request import FinishReason, RequestStatus
from tests.engine.small_replicas import config_of, load_replicas, request, requests, run_to_end, tokens_of
from tests.engine.wide_model import wide_model

SETTINGS = {
    "whole prompts": (SchedulerConfig(), CacheConfig(num_gpu_blocks_override=60)),
    "chunks": (SchedulerConfig(max_num_batched_tokens=16, chunk_size=7), CacheConfig(num_gpu_blocks_override=60)),
    "recomputed": (SchedulerConfig(), CacheConfig(num_gpu_blocks_override=14, block_size=8)),
    "swapped": (
        SchedulerConfig(preemption_mode="swap"),
        CacheConfig(num_gpu_blocks_override=14, block_size=8, swap_space=1 << 20),
    ),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return wide_model(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="module")
def loaded(source: ModelSource) -> Iterator[ProcessReplicas]:
    replicas = load_replicas(source)
    children = [member.child for member in replicas._group.members]
    yield replicas
    replicas.shutdown()
    assert not any(child.process.is_alive() for child in children)


@pytest.fixture
def pair(loaded: ProcessReplicas) -> ProcessReplicas:
    """Two idle replicas that know nothing of earlier tests."""
    loaded.reset()
    configure(loaded, "whole prompts")
    return loaded


@pytest.fixture(scope="module")
def alone(source: ModelSource) -> Engine:
    executor = TorchExecutor.load(source, dtype="float32", device_memory_bytes=1 << 30)
    return Engine(executor, *SETTINGS["whole prompts"])


def configure(engine: Engine | ProcessReplicas, settings: str) -> None:
    scheduler, cache = SETTINGS[settings]
    engine.reconfigure(scheduler=scheduler, cache=cache)


@pytest.mark.parametrize(
    ("router", "settings"),
    [*((router, "whole prompts") for router in ROUTERS), *(("round_robin", name) for name in list(SETTINGS)[1:])],
)
def test_tokens_are_those_of_one_engine(pair: ProcessReplicas, alone: Engine, router: str, settings: str) -> None:
    pair._routing = Routing(router)
    for engine in (pair, alone):
        configure(engine, settings)
    sent, expected = list(requests()), list(requests())
    for one, same in zip(sent, expected, strict=True):
        pair.add_request(one)
        alone.add_request(same)
    events, records = run_to_end(pair)
    tokens = tokens_of(events)
    assert tokens == tokens_of(run_to_end(alone)[0])
    assert len({tuple(output) for output in tokens.values()}) > 6  # not the same loop for every request
    assert {one.request_id: one.output_token_ids for one in sent} == tokens
    assert {one.replica for one in sent} == {record.replica for record in records} == {0, 1}
    preempted = sum(record.preemptions_recompute + record.preemptions_swap for record in records)
    assert (preempted > 0) == (settings in ("recomputed", "swapped"))


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_request_knows_what_its_replica_did_to_it(pair: ProcessReplicas, settings: str) -> None:
    configure(pair, settings)
    sent = list(requests())
    for one in sent:
        pair.add_request(one)
    _, records = run_to_end(pair)
    for one in sent:
        kinds = [event.kind for event in one.history]
        assert (kinds[:2], kinds[-1]) == (["queued", "admitted"], "finished")
        assert [event.time_ns for event in one.history] == sorted(event.time_ns for event in one.history)
        assert (one.status, one.finish_reason) == (RequestStatus.FINISHED, FinishReason.LENGTH)
        assert one.num_preemptions == kinds.count("preempted")
    assert sum(one.num_preemptions for one in sent) == sum(
        r.preemptions_recompute + r.preemptions_swap for r in records
    )
    assert sum(one.num_swaps for one in sent) == sum(r.preemptions_swap for r in records)
    assert sum(one.num_recomputed_tokens for one in sent) == sum(r.recomputed_tokens for r in records)
    for replica in (0, 1):
        steps = [record for record in records if record.replica == replica]
        assert [step.iteration for step in steps] == list(range(len(steps)))
        assert all(a.t_end <= b.t_start for a, b in pairwise(steps))


def test_prompts_that_begin_alike_are_found_in_the_cache_of_their_replica(pair: ProcessReplicas) -> None:
    pair._routing = Routing("prefix_affinity")
    pair.reset()
    found = []
    for name in ("a", "b"):
        one = request(name, 40)
        pair.add_request(one)
        run_to_end(pair)
        found.append((one.replica, one.num_cached_tokens))
    assert found[0][0] == found[1][0]
    assert (found[0][1], found[1][1]) == (0, 32)


def test_nothing_is_heard_of_an_aborted_request_and_its_id_is_free_at_once(pair: ProcessReplicas) -> None:
    lone = request("a", 9)
    pair.add_request(lone)
    expected = tokens_of(run_to_end(pair)[0])["a"]
    first, neighbour = request("a", 30, max_tokens=100), request("b", 30)
    for one in (first, request("elsewhere"), neighbour):
        pair.add_request(one)
    while first.num_output_tokens < 10:
        pair.step()
    assert pair.abort("a")
    assert not pair.abort("a")
    # In whole blocks, what its tokens have taken; and that is more than the chunk of its prompt did.
    held = -(-(first.num_tokens - 1) // 16)
    assert (first.history[-1].blocks, first.history[-2].blocks) == (held, 2)
    assert held > 2
    again = request("a", 9)
    pair.add_request(again)
    events, _ = run_to_end(pair)
    assert tokens_of(events)["a"] == again.output_token_ids == expected
    assert (first.status, first.finish_reason) == (RequestStatus.FINISHED, FinishReason.ABORT)
    assert [event.kind for event in first.history][-1] == "finished"
    assert 0 < first.num_output_tokens < 100
    assert neighbour.num_output_tokens == 16
    pair.reconfigure()  # which needs idle replicas


def test_an_abort_leaves_the_end_of_a_request_as_its_replica_has_told_it(pair: ProcessReplicas) -> None:
    late = request("a", max_tokens=100)
    pair.add_request(late)
    while not late.num_output_tokens:
        pair.step()
    # As with overlap: the event of it would come with the next step.
    late.status, late.finish_reason, history = RequestStatus.FINISHED, FinishReason.QUEUE_TIMEOUT, list(late.history)
    assert pair.abort("a")
    assert (late.finish_reason, late.history) == (FinishReason.QUEUE_TIMEOUT, history)
    assert not pair.has_work


def test_requests_shed_by_their_replica_are_told_with_its_reason(pair: ProcessReplicas) -> None:
    pair.reconfigure(scheduler=SchedulerConfig(max_num_seqs=1, max_queue_len=1))
    sent = [request(str(i), max_tokens=40) for i in range(12)]
    for one in sent:
        pair.add_request(one)
    events, _ = run_to_end(pair)
    ends = {event.request_id: event for event in events if event.finish_reason is not None}
    assert ends.keys() == {one.request_id for one in sent}
    shed = [one for one in sent if ends[one.request_id].finish_reason == FinishReason.SHED]
    assert shed
    for one in shed:
        assert one.shed is not None
        assert str(one.shed) == f"{one.request_id} was turned away: 1 requests wait already, max_queue_len=1"
        assert (one.shed.limit, one.history, one.output_token_ids) == ("max_queue_len", [], [])
        assert one.shed.retry_after_s >= 1
    assert all(len(one.output_token_ids) == 40 for one in sent if one not in shed)


def test_what_can_never_run_is_refused_at_once(pair: ProcessReplicas) -> None:
    with pytest.raises(RequestRefused, match="exceed max_model_len=160"):
        pair.add_request(request("long", 100, max_tokens=61))
    unknown = request("unknown")
    unknown.prompt_token_ids = [211]
    with pytest.raises(RequestRefused, match="outside the vocabulary, 0 to 210"):
        pair.add_request(unknown)
    pair.reconfigure(cache=CacheConfig(num_gpu_blocks_override=4))
    with pytest.raises(RequestRefused, match="can never fit into a KV cache of 64 tokens"):
        pair.add_request(request("large", 60))
    assert not pair.has_work
    one = request("twice")
    pair.add_request(one)
    with pytest.raises(UserError, match="'twice' belongs to a request that has not ended"):
        pair.add_request(request("twice"))
    run_to_end(pair)
    with pytest.raises(UserError, match="'twice' has been queued before"):
        pair.add_request(one)


def test_sizes_are_those_of_the_replica_that_has_least(pair: ProcessReplicas) -> None:
    pair.reconfigure(cache=CacheConfig(gpu_memory_utilization=0.5))
    each = pair._group.ask("sizes")
    assert pair.num_blocks == min(sizes.num_blocks for sizes in each)
    assert pair.kv_budget is not None
    assert pair.kv_budget.num_blocks == pair.num_blocks
    profile = pair.devices.profile_memory(64, 8)
    assert profile.total == 1 << 30
    assert pair.devices.device_name.startswith("2 x CPU (")
    assert pair.devices.kv_bytes_per_block(16) == 16 * 2 * 2 * 2 * 8 * 4


def test_settings_that_cannot_be_leave_the_old_ones_on_all_replicas(pair: ProcessReplicas) -> None:
    before = pair._group.ask("sizes")
    with pytest.raises(KVCacheTooSmall) as of_all:
        pair.reconfigure(cache=CacheConfig(gpu_memory_utilization=0.0001))
    assert not str(of_all.value).startswith("replica")
    assert pair._group.ask("sizes") == before
    assert pair.cache_config == SETTINGS["whole prompts"][1]
    pair.add_request(request("a"))
    assert len(run_to_end(pair)[0]) == 16


def test_swap_space_is_held_against_the_replicas_share_of_the_host(pair: ProcessReplicas) -> None:
    scheduler = SchedulerConfig(preemption_mode="swap")
    with pytest.raises(OutOfDeviceMemory, match=r"^swap_space asks for .* but its share of the host has"):
        pair.reconfigure(scheduler=scheduler, cache=CacheConfig(num_gpu_blocks_override=14, swap_space=1 << 50))


def test_settings_that_one_replica_cannot_have_are_taken_back_on_the_others(
    pair: ProcessReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pair._group.ask("sizes")
    poor = pair._group.members[1]
    tell = type(poor).tell

    def tell_less(self: Any, name: str, *arguments: Any, number: int = 0) -> None:
        if name == "reconfigure" and self is poor:
            arguments = (arguments[0], CacheConfig(gpu_memory_utilization=0.0001))
        tell(self, name, *arguments, number=number)

    with monkeypatch.context() as context:
        context.setattr(type(poor), "tell", tell_less)
        with pytest.raises(KVCacheTooSmall, match=r"^replica 1: "):
            pair.reconfigure(cache=CacheConfig(num_gpu_blocks_override=30))
    assert pair._group.ask("sizes") == before
    assert pair.num_blocks == before[0].num_blocks


def test_reconfigure_needs_idle_replicas(pair: ProcessReplicas) -> None:
    pair.add_request(request("a"))
    with pytest.raises(RuntimeError, match="idle engine"):
        pair.reconfigure()


def test_nothing_of_before_a_reset_is_heard_after_it(pair: ProcessReplicas) -> None:
    for name in ("a", "b"):
        pair.add_request(request(name, max_tokens=100))
    while len(pair._group._kept) < 2:  # each answer lets what was said before it be heard
        pair._group.ask("sizes")
    pair.reset()
    assert not pair.has_work
    assert pair.step() == ([], None)
    fresh = request("a", 3, max_tokens=4)
    pair.add_request(fresh)
    events, records = run_to_end(pair)
    assert [event.request_id for event in events] == ["a"] * 4
    assert [record.iteration for record in records] == list(range(4))
    assert fresh.num_output_tokens == 4


def test_a_model_that_does_not_fit_is_refused_as_by_one_engine_and_no_process_is_left(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[ReplicaGroup] = []
    await_loading = ReplicaGroup._await_loading

    def noted(self: ReplicaGroup) -> Any:
        groups.append(self)
        return await_loading(self)

    monkeypatch.setattr(ReplicaGroup, "_await_loading", noted)
    with pytest.raises(KVCacheTooSmall) as too_small:
        load_replicas(source, cache=CacheConfig(gpu_memory_utilization=0.0001))
    assert not str(too_small.value).startswith("replica")
    assert not any(member.child.process.is_alive() for member in groups[0].members)


def test_more_replicas_than_cards_are_refused(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = replace(config_of(), device="cuda")
    with pytest.raises(UserError, match=r"data_parallel_size=2 is not possible: torch .* finds 1 CUDA device$"):
        ProcessReplicas.load(config, source, size=2, router="round_robin")
    with pytest.raises(UserError, match=r"data_parallel_size=2 .* 'cuda:0', which is one card: choose cuda"):
        ProcessReplicas.load(replace(config, device="cuda:0"), source, size=2, router="round_robin")


def test_more_replicas_than_threads_are_refused(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    with pytest.raises(UserError, match=r"^data_parallel_size=3 is not possible: the CPU has 2 threads"):
        ProcessReplicas.load(config_of(), source, size=3, router="round_robin")


def test_an_unknown_router_is_refused_before_anything_is_loaded(source: ModelSource) -> None:
    with pytest.raises(UserError, match="router 'magic' does not exist"):
        ProcessReplicas.load(config_of(), source, size=2, router="magic")
