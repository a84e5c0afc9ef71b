"""How a model is cut for several ranks: every part once, and the same logits when the parts are put together."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.attention.base import AttentionSpec
from engine.attention.kv_tensors import KVTensors
from engine.attention.registry import make_attention
from engine.errors import UserError
from engine.executor.input_batch import build_input_batch
from engine.model.arch import ModelArch, parameter_shapes
from engine.model.decoder import Decoder
from engine.model.resolve import ModelSource, resolve_model
from engine.model.weights import load_weights
from engine.parallel.sharding import WHOLE, Shard
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest

CPU = torch.device("cpu")
ARCH = ModelArch("small", "qwen3", 48, 2, 8, 4, 8, 64, 101, 64, tie_word_embeddings=True, qk_norm=True)
UNTIED = ModelArch("untied", "qwen2", 48, 2, 8, 2, 8, 64, 101, 64, qkv_bias=True)


def source(arch: ModelArch) -> ModelSource:
    return ModelSource(f"random:{arch.name}", arch, "random", None, False, None, "bfloat16")


def weights(arch: ModelArch, shard: Shard, seed: int = 5) -> dict[str, torch.Tensor]:
    """Random weights, scaled up so that greedy tokens are not decided by the last bits."""
    cut = partial(shard.cut, arch)
    loaded = load_weights(source(arch), dtype=torch.float32, device=CPU, seed=seed, cut=cut)
    return {name: tensor if name.endswith("norm.weight") else tensor * 10 for name, tensor in loaded}


@pytest.mark.parametrize("arch", [ARCH, UNTIED], ids=lambda arch: arch.name)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_parts_have_the_shapes_of_their_architecture_and_make_up_the_whole(arch: ModelArch, size: int) -> None:
    whole = weights(arch, WHOLE)
    parts = [weights(arch, Shard(rank, size)) for rank in range(size)]
    for rank, part in enumerate(parts):
        shapes = parameter_shapes(Shard(rank, size).arch(arch))
        for name, tensor in part.items():
            expected = shapes[name] if name != "lm_head.weight" else (len(part[name]), arch.hidden_size)
            assert tuple(tensor.shape) == expected
        assert sum(t.numel() * 4 for t in part.values()) == Shard(rank, size).weight_bytes(arch, 4)
    for name, tensor in whole.items():
        cut = Shard(0, size).cut(arch, name)
        if not cut:
            assert all(torch.equal(part[name], tensor) for part in parts)
            continue
        pieces = [part[name] for part in parts]
        if name.split(".")[-2] in ("k_proj", "v_proj") and size > arch.num_kv_heads:
            pieces = pieces[:: size // arch.num_kv_heads]  # neighbours hold the same head
        assert torch.equal(torch.cat(pieces, dim=len(cut) - 1), tensor)


def test_a_part_of_a_safetensors_file_is_that_of_the_whole(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=101, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = resolve_model(str(tmp_path))
    whole = dict(load_weights(model, dtype=torch.float32, device=CPU))
    shard = Shard(1, 2)
    for name, part in load_weights(model, dtype=torch.float32, device=CPU, cut=partial(shard.cut, model.arch)):
        cut = shard.cut(model.arch, name)
        assert torch.equal(part, whole[name][cut] if cut else whole[name])
        assert part.is_contiguous()


class ThreadedRanks:
    """Collectives between threads of this process, for the arithmetic alone."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots: list[torch.Tensor] = [torch.empty(0)] * size

    def rank(self, rank: int) -> "ThreadedRank":
        return ThreadedRank(self, Shard(rank, self.size))


class ThreadedRank:
    def __init__(self, ranks: ThreadedRanks, shard: Shard) -> None:
        self.ranks = ranks
        self.shard = shard

    def _meet(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.ranks.slots[self.shard.rank] = tensor.clone()
        self.ranks.barrier.wait(30)
        slots = list(self.ranks.slots)
        self.ranks.barrier.wait(30)
        return slots

    def sum(self, partial_sum: torch.Tensor) -> torch.Tensor:
        return partial_sum.copy_(torch.stack(self._meet(partial_sum)).sum(0))

    def gather(self, part: torch.Tensor) -> list[torch.Tensor] | None:
        slots = self._meet(part)
        return slots if self.shard.rank == 0 else None


def logits_of(arch: ModelArch, shard: Shard, ranks: ThreadedRank | None) -> torch.Tensor:
    """Logits of three requests of one step: two prompts and a decode whose context is written first."""
    local = shard.arch(arch)
    decoder = Decoder(
        local, weights(arch, shard).items(), num_positions=64, dtype=torch.float32, device=CPU, ranks=ranks
    )
    attention = make_attention(
        "reference",
        AttentionSpec(local.num_heads, local.num_kv_heads, local.head_dim, None, torch.float32, CPU),
    )
    kv = KVTensors(local.num_layers, 6, 16, attention.page_shape(16), torch.float32, CPU)
    found = []
    for shares in batches():
        batch = build_input_batch(shares, 16)
        inputs = batch.to(CPU, None)
        step = attention.begin_step(batch.attention, kv)
        with torch.inference_mode():
            found.append(decoder.forward(inputs.token_ids, inputs.positions, step, inputs.sample_rows))
    return torch.cat(found)


def batches() -> Iterator[list[ScheduledRequest]]:
    requests = []
    for number, length in enumerate((20, 9, 3)):
        tokens = [(37 * number + 11 * i) % 101 for i in range(length)]
        one = Request(str(number), tokens, SamplingParams(temperature=0))
        one.block_table = [2 * number, 2 * number + 1]
        requests.append(one)
    yield [ScheduledRequest(requests[0], 0, 19, False, False), ScheduledRequest(requests[1], 0, 9, True, False)]
    yield [ScheduledRequest(requests[0], 19, 1, True, True), ScheduledRequest(requests[2], 0, 3, True, False)]


def sharded_logits(arch: ModelArch, size: int) -> list[torch.Tensor]:
    ranks = ThreadedRanks(size)
    results: list[torch.Tensor] = [torch.empty(0)] * size

    def run(rank: int) -> None:
        results[rank] = logits_of(arch, Shard(rank, size), ranks.rank(rank))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("arch", "size"), [(ARCH, 2), (ARCH, 8), (UNTIED, 2), (UNTIED, 4)])
def test_logits_are_those_of_one_rank_but_for_the_order_of_sums(arch: ModelArch, size: int) -> None:
    whole = logits_of(arch, WHOLE, None)
    first, *others = sharded_logits(arch, size)
    assert all(other.shape == (0, arch.vocab_size) for other in others)
    error = (first - whole).abs().max().item()
    best_two = whole.topk(2, dim=-1).values
    margin = (best_two[:, 0] - best_two[:, 1]).min().item()
    # Equal greedy tokens prove something only where the runner-up is farther away than the error could reach.
    assert error < 1e-4 * whole.abs().max().item()
    assert margin > 10 * error, f"margin {margin}, error {error}"
    assert torch.equal(first.argmax(-1), whole.argmax(-1))


def test_without_the_sums_the_logits_are_others() -> None:
    class Deaf(ThreadedRank):
        def sum(self, partial_sum: torch.Tensor) -> torch.Tensor:
            return partial_sum

        def gather(self, part: torch.Tensor) -> list[torch.Tensor] | None:
            return [part] * self.shard.size

    alone = logits_of(ARCH, Shard(0, 2), Deaf(ThreadedRanks(2), Shard(0, 2)))
    assert not torch.allclose(alone, logits_of(ARCH, WHOLE, None), atol=0.01)


@pytest.mark.parametrize("size", [3, 5, 16])
def test_a_size_that_does_not_divide_the_model_is_refused_with_those_that_do(size: int) -> None:
    with pytest.raises(UserError, match=rf"tensor_parallel_size={size} is not possible: .* choose one of 1, 2, 4, 8$"):
        Shard(0, size).arch(ARCH)


def test_kv_heads_are_shared_by_neighbours_where_they_are_fewer_than_ranks() -> None:
    held = [Shard(rank, 8).cut(UNTIED, "model.layers.0.self_attn.k_proj.weight")[0].start // 8 for rank in range(8)]
    assert held == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Shard(5, 8).arch(UNTIED).num_kv_heads == 1
