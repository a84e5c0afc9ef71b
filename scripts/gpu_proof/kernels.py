"""Part 1: every kernel against the plain computation in float32, and whole answers with graphs against eager ones.

A row's tolerance is that of the tests: an absolute part and the same part of the expected number.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import torch
from triton.runtime.errors import OutOfResources, PTXASError

from engine.attention.base import AttentionSpec, StepBounds
from engine.attention.kv_tensors import KVTensors, as_words, to_pages
from engine.attention.triton_attention import TritonAttention
from engine.attention.triton_shapes import TileShape, TileShapes, decode_candidates, fixed_shapes, prefill_candidates
from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.cuda_graphs import CudaRecorder, Replay
from engine.executor.device import resolve_dtype, resolve_kv_dtype
from engine.model import triton_layers
from engine.model.arch import ModelArch
from engine.model.layers import gated_silu, rms_norm
from engine.model.resolve import resolve_model
from engine.model.rotary import RotaryTable, rotate
from scripts.gpu_proof.modes import AS_SERVED, EAGER, Mode
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.served import BLOCK_SIZE, greedy, load_in_mode
from scripts.gpu_proof.sizes import KernelShape, Sizes
from tests.engine.triton_cases import DEVICE, TOLERANCE, Case, Step, spec

_SEED = 1
_ROWS = 5
_TINY_MODEL, _TINY_LENGTH = "random:tiny-qwen3", 96
_TINY_REQUESTS, _TINY_ANSWER = 6, 24
_ANSWERS = "tokens of a small model, graphs and overlap beside eager"


def measure(sizes: Sizes, notes: Notes) -> None:
    """Attention over the shapes of the tests, then all that the two models run."""
    dtype = resolve_dtype(sizes.kernel_dtype, DEVICE, "bfloat16")
    check = Check(notes, TOLERANCE[dtype])
    notes.set(dtype=sizes.kernel_dtype, tolerance=check.tolerance, interpreted=DEVICE.type == "cpu")
    for shape in sizes.kernel_shapes:
        for shares in sizes.kernel_steps:
            with notes.attempt(f"attention, {_name(shape)}", ok=False):
                step = CheckedStep(shape, shares, dtype)
                _check_attention(check, _name(shape), step, fixed_shapes(step.case.spec))
    # Before the many tile shapes, whose compilation is what may take too long.
    with notes.attempt(_ANSWERS, ok=False):
        _check_answers(sizes, notes)
    for arch in (resolve_model(sizes.model).arch, resolve_model(sizes.small_model).arch):
        shape = KernelShape(arch.num_heads, arch.num_kv_heads, arch.head_dim, BLOCK_SIZE)
        step = CheckedStep(shape, sizes.model_step, dtype)
        for name, shapes in _tile_shapes(step.case.spec):
            with notes.attempt(f"attention, {arch.name}, {name}", ok=False):
                _check_attention(check, f"{arch.name}, {name}", step, shapes)
        with notes.attempt(f"layers, {arch.name}", ok=False):
            _check_layers(check, arch, dtype)
        with notes.attempt(f"graph, {arch.name}", ok=False):
            _check_graph(check, arch.name, step)


class Check:
    """Compares and notes.

    Args:
        tolerance: largest difference, and largest share of the expected number beside it.
    """

    def __init__(self, notes: Notes, tolerance: float) -> None:
        self.tolerance = tolerance
        self._notes = notes

    def close(self, what: str, result: torch.Tensor, expected: torch.Tensor) -> None:
        """Note how far a result is from what it should be."""
        difference = (result.float().cpu() - expected.float().cpu()).abs()
        most = difference.max().item()
        used = (difference / (self.tolerance * (1 + expected.float().cpu().abs()))).max().item()
        finite = math.isfinite(most)
        self._notes.add(
            what,
            f"largest error {most:.2g}, {used:.0%} of what is allowed",
            ok=finite and used <= 1,
            max_abs_error=most if finite else None,
            of_tolerance=used if finite else None,
        )

    def same(self, what: str, result: torch.Tensor, expected: torch.Tensor) -> None:
        """Note whether every number is the same; NaN is the same as NaN."""
        result, expected = result.float().cpu(), expected.float().cpu()
        others = int(((result != expected) & ~(result.isnan() & expected.isnan())).sum())
        self._notes.add(what, f"{others} of {result.numel()} numbers differ", ok=others == 0, differ=others)

    def refused(self, what: str, reason: str, *, allowed: bool) -> None:
        """Note what the card has not the resources for."""
        self._notes.add(what, f"not for this card: {reason}", ok=allowed, refused=True)


def _name(shape: KernelShape) -> str:
    window = "" if shape.window is None else f", window {shape.window}"
    kept = "" if shape.kv_cache_dtype == "auto" else f", KV cache in {shape.kv_cache_dtype}"
    return f"{shape.heads}/{shape.kv_heads} heads of {shape.head_dim}, blocks of {shape.block_size}{window}{kept}"


class CheckedStep(Step):
    """A step with what should come of it, worked out once.

    Attributes:
        result: float32 `[tokens, heads * head_dim]`.
        written: keys and values as they should be after it, `[2, num_blocks, kv_heads, block_size, head_dim]`.
    """

    def __init__(self, shape: KernelShape, shares: tuple[tuple[int, int], ...], dtype: torch.dtype) -> None:
        kv_dtype = resolve_kv_dtype(shape.kv_cache_dtype, dtype)
        kept = None if kv_dtype == dtype else kv_dtype
        attention = spec(shape.heads, shape.kv_heads, shape.head_dim, shape.window, dtype, kept)
        super().__init__(Case(attention, shape.block_size, shares, _SEED))
        self.result = self.expected()
        self.written = self.pages.to(dtype).to(kv_dtype)
        slots = torch.from_numpy(self.metadata.slot_mapping)
        for pages, rows in zip(self.written, (self.key, self.value), strict=True):
            kept_rows = as_words(to_pages(rows.cpu(), kv_dtype))
            as_words(pages)[slots // shape.block_size, :, slots % shape.block_size] = kept_rows


def _tile_shapes(attention: AttentionSpec) -> Iterator[tuple[str, TileShapes]]:
    """All that may be chosen for this shape."""
    fixed = fixed_shapes(attention)
    for shape in decode_candidates(attention):
        yield _tile_name("decode", shape), replace(fixed, decode=shape)
    for shape in prefill_candidates(attention):
        yield _tile_name("prefill", shape), replace(fixed, prefill=shape)


def _tile_name(kind: str, shape: TileShape) -> str:
    return f"{kind} tile {shape.rows} x {shape.keys}, {shape.num_warps} warps, {shape.num_stages} stages"


def _check_attention(check: Check, name: str, step: CheckedStep, shapes: TileShapes) -> None:
    try:
        out, kv = step.run(TritonAttention(step.case.spec, shapes))
    except (OutOfResources, PTXASError) as error:
        # The fixed shapes are those that every card must be able to run.
        is_fixed = shapes == fixed_shapes(step.case.spec)
        check.refused(f"attention, {name}", str(error).splitlines()[0], allowed=not is_fixed)
        return
    check.close(f"attention, {name}", out, step.result)
    check.same(f"slots, {name}", _written(kv), step.written)


def _check_graph(check: Check, name: str, step: CheckedStep) -> None:
    """A step in a graph with padding, filled after it was captured."""
    backend = TritonAttention(step.case.spec, fixed_shapes(step.case.spec))
    kv = step.cache(step.pages, step.case.spec.page_dtype, DEVICE)
    rows, metadata = len(step.query), step.metadata
    chunks = len(metadata.context_lens) - metadata.num_decodes
    num_pages = int((-(-metadata.context_lens // step.case.block_size)).sum())
    graph = backend.graph_step(kv, StepBounds(rows + 7, chunks, num_pages))
    padded = [torch.zeros(rows + 7, *part.shape[1:], dtype=part.dtype, device=DEVICE) for part in _qkv(step)]
    results: list[torch.Tensor] = []

    def work() -> None:
        results[:] = [graph.attend(0, *padded)]

    replay = (CudaRecorder(DEVICE) if DEVICE.type == "cuda" else _do_again)(work)
    for whole, part in zip(padded, _qkv(step), strict=True):
        whole[:rows] = part
    graph.fill(metadata)
    replay()
    check.close(f"attention in a graph, {name}", results[0][:rows], step.result)
    check.same(f"padding of a graph, {name}", results[0][rows:], torch.zeros_like(results[0][rows:]))
    check.same(f"slots of a graph, {name}", _written(kv), step.written)


def _written(kv: KVTensors) -> torch.Tensor:
    return torch.stack([kv.keys[0].float(), kv.values[0].float()])


def _qkv(step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return step.query, step.key, step.value


def _do_again(work: Callable[[], None]) -> Replay:
    """What stands for a CUDA graph on the CPU."""
    work()
    return work


def _check_layers(check: Check, arch: ModelArch, dtype: torch.dtype) -> None:
    """Norm, rotary embedding and gate, as the model has them."""
    generator = torch.Generator().manual_seed(_SEED)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    hidden, weight = numbers(_ROWS, arch.hidden_size), numbers(arch.hidden_size)
    normed = rms_norm(hidden.float().cpu(), weight.float().cpu(), arch.rms_norm_eps)
    check.close(f"norm, {arch.name}", rms_norm(hidden, weight, arch.rms_norm_eps), normed)

    gate_up = 2 * numbers(_ROWS, 2 * arch.intermediate_size)
    check.close(f"gate, {arch.name}", triton_layers.gated_silu(gate_up), gated_silu(gate_up.float().cpu()))

    heads, kv_heads = arch.num_heads, arch.num_kv_heads
    qkv = numbers(_ROWS, heads + 2 * kv_heads, arch.head_dim)
    table = RotaryTable(arch, 1000, dtype, DEVICE)
    cos_sin = table.at(torch.arange(_ROWS, device=DEVICE) * 199)
    norms = (numbers(arch.head_dim), numbers(arch.head_dim)) if arch.qk_norm else None
    query, key, value = qkv.float().cpu().split([heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        query, key = (
            rms_norm(part, norm.float().cpu(), arch.rms_norm_eps)
            for part, norm in zip((query, key), norms, strict=True)
        )
    angles = cos_sin.float().cpu()
    expected = torch.cat([rotate(query.contiguous(), angles), rotate(key.contiguous(), angles), value], dim=1)
    triton_layers.rotate_in_place(qkv, cos_sin, heads, kv_heads, norms, arch.rms_norm_eps)
    check.close(f"rotary embedding, {arch.name}", qkv, expected)


def _check_answers(sizes: Sizes, notes: Notes) -> None:
    """Graphs and overlap must not change a token. In float32, where padding leaves nothing to chance."""
    expected, found = (_answers(sizes, mode) for mode in (EAGER, AS_SERVED))
    differ = sum(a != b for a, b in zip(found, expected, strict=True))
    notes.add(_ANSWERS, f"{differ} of {len(expected)} tokens differ", ok=differ == 0, differ=differ)


def _answers(sizes: Sizes, mode: Mode) -> list[int]:
    """The tokens of several requests, one answer after another."""
    executor = load_in_mode(sizes, _TINY_MODEL, mode, max_model_len=_TINY_LENGTH, dtype="float32")
    scheduler = SchedulerConfig(max_num_seqs=_TINY_REQUESTS, max_num_batched_tokens=40)
    engine = Engine(executor, scheduler, CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=40))
    numbers = random.Random(_SEED)
    answers: dict[str, list[int]] = {}
    for index in range(_TINY_REQUESTS):
        prompt = [numbers.randrange(executor.vocab_size) for _ in range(numbers.randint(1, 60))]
        engine.add_request(greedy(str(index), prompt, _TINY_ANSWER))
        answers[str(index)] = []
    while engine.has_work:
        for event in engine.step()[0]:
            answers[event.request_id] += event.token_ids
    return list(chain.from_iterable(answers.values()))
