"""Swapping: what is copied to host memory comes back as it was, wherever to, and no token can tell."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.kv_tensors import KVTensors
from engine.errors import OutOfDeviceMemory
from engine.executor import swap_space as swap_module
from engine.executor import torch_executor as executor_module
from engine.executor.swap_space import SwapSpace, require_host_memory
from engine.executor.torch_executor import TorchExecutor
from engine.kv_cache.sizing import GIB
from engine.model.arch import ModelArch
from engine.model.resolve import ModelSource
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan

BLOCKS, HOST_BLOCKS, LAYERS, BLOCK_SIZE = 9, 7, 3, 4
PAGE = (2, BLOCK_SIZE, 8)
Pairs = Sequence[tuple[int, int]]
CPU = torch.device("cpu")
ARCH = ModelArch(
    name="tiny",
    family="llama",
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=64,
    vocab_size=300,
    max_position_embeddings=256,
)


def random_kv(seed: int, page: tuple[int, ...] = PAGE, dtype: torch.dtype = torch.float32) -> KVTensors:
    generator = torch.Generator().manual_seed(seed)
    kv = KVTensors(LAYERS, BLOCKS, BLOCK_SIZE, page, dtype, CPU)
    for part in (kv.keys, kv.values):
        part.copy_(torch.randn(part.shape, generator=generator))
    return kv


def block_of(kv: KVTensors, block: int) -> torch.Tensor:
    """A block's keys and values, `[2, layers, *page]`."""
    return torch.stack((kv.keys[:, block], kv.values[:, block])).clone()


def distinct_pairs(first: int, second: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Pairs below these numbers, none of which occurs twice."""
    pairs = st.tuples(st.permutations(range(first)), st.permutations(range(second)), st.integers(0, min(first, second)))
    return pairs.map(lambda drawn: list(zip(drawn[0], drawn[1], strict=False))[: drawn[2]])


OUT, IN = distinct_pairs(BLOCKS, HOST_BLOCKS), distinct_pairs(HOST_BLOCKS, BLOCKS)


@settings(deadline=None)
@given(
    copies=st.lists(st.tuples(st.booleans(), OUT, IN), max_size=12),
    seed=st.integers(0, 2**16),
    piece=st.integers(1, 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_any_copies_out_and_in_move_blocks_and_touch_no_other(
    copies: list[tuple[bool, Pairs, Pairs]], seed: int, piece: int, dtype: torch.dtype
) -> None:
    kv = random_kv(seed, dtype=dtype)
    swap = SwapSpace(HOST_BLOCKS, kv)
    swap._piece = piece
    device = {block: block_of(kv, block) for block in range(BLOCKS)}
    host: dict[int, torch.Tensor] = {}
    for outward, out_pairs, in_pairs in copies:
        if outward:
            swap.copy_out(kv, out_pairs)
            host |= {slot: device[block] for block, slot in out_pairs}
        else:
            filled = [(slot, block) for slot, block in in_pairs if slot in host]
            swap.copy_in(kv, filled)
            device |= {block: host[slot] for slot, block in filled}
        for block, content in device.items():
            assert torch.equal(block_of(kv, block), content)


@pytest.mark.parametrize("page", [(1, 1, 1), (1, 3, 1), (3, 1, 2), (2, 16, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_of_any_width_come_back_bit_for_bit(page: tuple[int, ...], dtype: torch.dtype) -> None:
    kv = random_kv(1, page, dtype)
    kv.keys[0, 2].fill_(float("nan"))
    # A NaN with a payload, which arithmetic would not keep.
    kv.values.view(torch.int16)[0, 2] = 0x7FA1
    swap = SwapSpace(HOST_BLOCKS, kv)
    before = [block_of(kv, block).view(torch.int16) for block in (2, 5)]
    swap.copy_out(kv, [(2, 6), (5, 0)])
    swap.copy_in(kv, [(0, 1), (6, 8)])
    assert torch.equal(block_of(kv, 8).view(torch.int16), before[0])
    assert torch.equal(block_of(kv, 1).view(torch.int16), before[1])


def test_consecutive_host_blocks_travel_together() -> None:
    runs = list(swap_module._runs([2, 3, 4, 7, 9, 10]))
    assert runs == [(slice(0, 3), slice(2, 5)), (slice(3, 4), slice(7, 8)), (slice(4, 6), slice(9, 11))]


def test_measuring_the_link_leaves_the_cache_as_it_was() -> None:
    kv = random_kv(3)
    keys, values = kv.keys.clone(), kv.values.clone()
    assert SwapSpace(HOST_BLOCKS, kv).bytes_per_s > 0
    assert torch.equal(kv.keys, keys)
    assert torch.equal(kv.values, values)


def test_the_slower_direction_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Five times out, then five times in; the least disturbed of each counts.
    seconds = iter([5.0, 1.0, 3.0, 7.0, 6.0, 2.0, 4.0, 8.0, 9.0, 3.0])
    monkeypatch.setattr(swap_module, "_seconds", lambda *_: next(seconds))
    kv = random_kv(4)
    assert SwapSpace(HOST_BLOCKS, kv).bytes_per_s == HOST_BLOCKS * block_of(kv, 0).nbytes / 2.0


def load(arch: ModelArch = ARCH, dtype: str = "float32") -> TorchExecutor:
    source = ModelSource("random:tiny", arch, "random", None, pretrained=False, note=None, checkpoint_dtype="bfloat16")
    return TorchExecutor.load(source, dtype=dtype)


class Run:
    """Steps of one executor, made by hand. Remembers the logits of the request under test."""

    def __init__(self, block_size: int, dtype: str, window: int | None) -> None:
        self.executor = load(replace(ARCH, sliding_window=window), dtype=dtype)
        self.block_size = block_size
        self.executor.allocate_kv(64, block_size, 32)
        self.logits: list[torch.Tensor] = []
        sample = self.executor._runner._sampler.sample

        def remember(logits: torch.Tensor, requests: Any) -> torch.Tensor:
            self.logits += [row.clone() for row, request in zip(logits, requests, strict=True) if request.seen]
            return sample(logits, requests)

        self.executor._runner._sampler.sample = remember  # type: ignore[method-assign]

    def step(self, request: "Asked | None" = None, count: int = 1, swap_out: Pairs = (), swap_in: Pairs = ()) -> None:
        """Let a request compute its next tokens, after the copies."""
        plan = StepPlan(swap_out=list(swap_out), swap_in=list(swap_in))
        if request is not None:
            computed = request.num_computed_tokens
            samples = computed + count == request.num_tokens
            plan.scheduled = [ScheduledRequest(request, computed, count, samples, count == 1)]
            request.num_computed_tokens += count
        tokens = self.executor.execute(plan).token_ids
        if request is not None:
            request.token_ids += tokens

    def blocks(self, count: int, seed: int, total: int = 64) -> list[int]:
        return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count].tolist()


class Asked(Request):
    """A request that knows whether its logits are to be remembered."""

    def __init__(self, tokens: list[int], blocks: list[int], seen: bool) -> None:
        super().__init__("a", tokens, SamplingParams(temperature=0))
        self.block_table = blocks
        self.seen = seen


def ask(run: Run, num_tokens: int, seed: int, seen: bool) -> Asked:
    tokens = torch.randint(3, 300, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Asked(tokens, run.blocks(-(-(num_tokens + 8) // run.block_size), seed), seen)


def swap_tables(run: Run, request: Asked, seed: int) -> tuple[Pairs, Pairs, list[int]]:
    """Copies that send a request's computed blocks away and bring them back into others."""
    held = -(-request.num_computed_tokens // run.block_size)
    hosts = run.blocks(held, seed, total=32)
    others = [block for block in run.blocks(64, seed + 1) if block not in request.block_table]
    home = others[: len(request.block_table)]
    out = list(zip(request.block_table, hosts, strict=False))
    return out, list(zip(hosts, home, strict=False)), home


CASES = [
    pytest.param(block_size, dtype, window, id=f"{block_size}-{dtype}-window{window}")
    for block_size in (2, 5, 16)
    for dtype in ("float32", "bfloat16")
    for window in (None, 9)
]


@pytest.mark.parametrize(("block_size", "dtype", "window"), CASES)
@pytest.mark.parametrize("apart", [False, True], ids=["in the next step", "after others overwrote its blocks"])
def test_a_swapped_request_goes_on_with_the_same_bits(
    block_size: int, dtype: str, window: int | None, apart: bool
) -> None:
    run = Run(block_size, dtype, window)
    undisturbed = ask(run, 23, seed=5, seen=True)
    for count in (13, 10, 1, 1, 1, 1, 1):
        run.step(undisturbed, count)
    expected, run.logits = run.logits, []

    request = ask(run, 23, seed=5, seen=True)
    run.step(request, 13)
    # In the middle of its prompt, and of a block unless the size divides 13.
    out, back, home = swap_tables(run, request, seed=11)
    intruder = ask(run, 40, seed=17, seen=False)
    free = [block for block in range(64) if block not in (*request.block_table, *home)]
    intruder.block_table = [block for block, _ in out] + free
    if apart:
        run.step(intruder, 40, swap_out=out)
        run.step(intruder)
        request.block_table = home
        run.step(request, 10, swap_in=back)
    else:
        run.step(swap_out=out)
        request.block_table = home
        run.step(request, 10, swap_in=back)
    run.step(request)
    # Once more, while it decodes; out and back within one step, its old blocks being free for its return.
    out, back, home = swap_tables(run, request, seed=23)
    request.block_table = home
    run.step(swap_out=out, swap_in=back)
    for _ in range(4):
        run.step(request)

    assert request.output_token_ids == undisturbed.output_token_ids
    assert len(run.logits) == len(expected) == 6
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(run.logits, expected, strict=True))


def test_blocks_taken_over_in_the_same_step_leave_for_the_host_first() -> None:
    run = Run(4, "float32", None)
    first, second = ask(run, 12, seed=1, seen=True), ask(run, 12, seed=2, seen=False)
    first.block_table, second.block_table = [3, 9, 4, 7, 8], [20, 21, 22, 23, 24]
    run.step(first, 12)
    run.step(second, 12)
    run.step(first)
    alone, run.logits = run.logits[-1], []
    first.num_computed_tokens -= 1
    del first.token_ids[-1]
    # Two requests trade places by way of the host.
    run.step(swap_out=[(block, i) for i, block in enumerate(second.block_table[:3])])
    run.step(
        swap_out=[(block, 10 + i) for i, block in enumerate(first.block_table[:3])],
        swap_in=[(i, block) for i, block in enumerate(first.block_table[:3])],
    )
    first.block_table = [20, 22, 24, 21, 23]
    run.step(first, swap_in=[(10, 20), (11, 22), (12, 24)])
    assert torch.equal(run.logits[-1], alone)


def test_swapping_needs_swap_space() -> None:
    executor = load()
    executor.allocate_kv(4, 4)
    assert executor.host_link_bytes_per_s is None
    with pytest.raises(RuntimeError, match="swap space"):
        executor.execute(StepPlan(swap_out=[(0, 0)]))


def test_swap_space_is_kept_until_its_size_changes_and_given_back_before_it_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = load()
    executor.allocate_kv(6, 4, 5)
    assert executor._swap is not None
    assert executor.host_link_bytes_per_s == executor._swap.bytes_per_s > 0
    first = weakref.ref(executor._swap)
    executor.allocate_kv(6, 4, 5)
    assert executor._swap is first()
    alive: list[bool] = []

    class Watched(SwapSpace):
        def __init__(self, *args: Any) -> None:
            gc.collect()
            alive.append(first() is not None)
            super().__init__(*args)

    monkeypatch.setattr(executor_module, "SwapSpace", Watched)
    executor.allocate_kv(6, 4, 3)
    executor.allocate_kv(6, 8, 3)
    assert alive == [False, False]
    executor.allocate_kv(6, 8)
    assert executor._swap is executor.host_link_bytes_per_s is None
    assert executor._kv is not None


def test_on_the_cpu_cache_and_swap_space_share_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = load()
    block = executor.kv_bytes_per_block(16)
    monkeypatch.setattr(executor_module, "available_host_bytes", lambda: 100 * block)
    executor.allocate_kv(60, 16, 40)
    with pytest.raises(OutOfDeviceMemory, match="swap_space asks for"):
        executor.allocate_kv(61, 16, 40)
    executor.allocate_kv(61, 16, 39)


def test_a_host_with_too_little_memory_is_named_with_the_numbers_and_the_way_out() -> None:
    require_host_memory(2 * GIB, 3 * GIB, 5 * GIB)
    with pytest.raises(OutOfDeviceMemory) as refusal:
        require_host_memory(2 * GIB, 3 * GIB, 5 * GIB - 1)
    assert str(refusal.value) == (
        "swap_space asks for 2.00 GiB, but the host has 5.00 GiB available, and the KV cache takes 3.00 GiB of the "
        "same memory: lower swap_space, or choose preemption_mode=recompute, which needs none"
    )
    with pytest.raises(OutOfDeviceMemory, match=r"available: lower"):
        require_host_memory(GIB, 0, GIB - 1)
