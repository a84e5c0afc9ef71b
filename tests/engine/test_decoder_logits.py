"""The decoder's logits are those of transformers, for every family and every stretching of the rotary embedding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from engine.attention.base import AttentionSpec
from engine.attention.kv_tensors import KVTensors
from engine.attention.reference import ReferenceAttention
from engine.executor.input_batch import build_input_batch
from engine.model.decoder import Decoder
from engine.model.layers import Linear, gated_silu, rms_norm
from engine.model.resolve import resolve_model
from engine.model.weights import load_weights
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest

CPU = torch.device("cpu")
BLOCK_SIZE = 8
SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Larger than usual, so that attention is far from uniform and an error in a position shows.
    "initializer_range": 0.3,
}


def rope(kind: str, **values: float) -> Any:
    return {"rope_type": kind, "rope_theta": 5000.0, **values}


MODELS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama, wide heads": LlamaConfig(**SIZES, head_dim=32),
    "llama, linear": LlamaConfig(**SIZES, rope_parameters=rope("linear", factor=2.5)),
    "llama, llama3": LlamaConfig(
        **SIZES,
        rope_parameters=rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
        ),
    ),
    "llama, yarn": LlamaConfig(
        **SIZES, rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=32)
    ),
    "llama, yarn of mscale, not truncated": LlamaConfig(
        **SIZES,
        rope_parameters=rope(
            "yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.2, mscale_all_dim=0.8,
            beta_fast=16.0, beta_slow=2.0, truncate=False,
        ),
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral, window": MistralConfig(**SIZES, sliding_window=9),
    "qwen2": Qwen2Config(**SIZES, use_sliding_window=False),
    "qwen3": Qwen3Config(**SIZES, head_dim=16, use_sliding_window=False),
}  # fmt: skip


def save_random_model(config: PretrainedConfig, folder: Path, seed: int) -> Any:
    """A model whose norms and biases are random too, saved as a folder."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def load_decoder(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Decoder, ReferenceAttention, KVTensors]:
    arch = resolve_model(str(folder)).arch
    weights = load_weights(resolve_model(str(folder)), dtype=dtype, device="cpu")
    with torch.inference_mode():
        decoder = Decoder(arch, weights, num_positions=arch.max_position_embeddings, dtype=dtype, device=CPU)
    spec = AttentionSpec(arch.num_heads, arch.num_kv_heads, arch.head_dim, arch.sliding_window, dtype, CPU)
    backend = ReferenceAttention(spec)
    return decoder, backend, KVTensors(arch.num_layers, 40, BLOCK_SIZE, backend.page_shape(BLOCK_SIZE), dtype, CPU)


@torch.inference_mode()
def logits_of_all_rows(
    model: tuple[Decoder, ReferenceAttention, KVTensors], prompts: list[list[int]], chunk: int
) -> list[torch.Tensor]:
    """Every row's logits, `[tokens, vocab]` per prompt, the prompts side by side in steps of `chunk` tokens each."""
    decoder, backend, kv = model
    requests = [Request(str(i), prompt, SamplingParams()) for i, prompt in enumerate(prompts)]
    for i, request in enumerate(requests):
        request.block_table = list(range(i * 13, i * 13 + 13))
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    for begin in range(0, max(map(len, prompts)), chunk):
        alive = [i for i, prompt in enumerate(prompts) if len(prompt) > begin]
        counts = [min(chunk, len(prompts[i]) - begin) for i in alive]
        shares = [ScheduledRequest(requests[i], begin, n, True, n == 1) for i, n in zip(alive, counts, strict=True)]
        batch = build_input_batch(shares, BLOCK_SIZE)
        token_ids, positions, _ = batch.to(CPU, None)
        step = backend.begin_step(batch.attention, kv)
        logits = decoder.forward(token_ids, positions, step, torch.arange(len(token_ids)))
        # `sample_rows` tells in the plan's order where each request ends.
        for i, n, last in zip(alive, counts, batch.sample_rows.tolist(), strict=True):
            rows[i].append(logits[last - n + 1 : last + 1])
    return [torch.cat(parts) for parts in rows]


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    reference = save_random_model(MODELS[name], tmp_path, seed=1)
    model = load_decoder(tmp_path)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, 199, (n,), generator=generator).tolist() for n in (100, 37, 70)]
    with torch.no_grad():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    for chunk in (100, 16, 1):
        for got, want in zip(logits_of_all_rows(model, prompts, chunk), expected, strict=True):
            torch.testing.assert_close(got, want, atol=5e-4, rtol=1e-4)


def test_bfloat16_logits_are_near_those_of_float32(tmp_path: Path) -> None:
    reference = save_random_model(LlamaConfig(**{**SIZES, "initializer_range": 0.1}), tmp_path, seed=3)
    model = load_decoder(tmp_path, torch.bfloat16)
    prompt = list(range(5, 45))
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0]
    got = logits_of_all_rows(model, [prompt], 16)[0]
    assert got.dtype is torch.bfloat16
    assert (got.float() - expected).norm() < 0.03 * expected.norm()


def test_only_the_rows_that_sample_have_logits(tmp_path: Path) -> None:
    save_random_model(LlamaConfig(**SIZES), tmp_path, seed=4)
    decoder, backend, kv = load_decoder(tmp_path)
    request = Request("a", list(range(20)), SamplingParams())
    request.block_table = [0, 1, 2]
    batch = build_input_batch([ScheduledRequest(request, 0, 20, True, False)], BLOCK_SIZE)
    token_ids, positions, sample_rows = batch.to(CPU, None)
    with torch.inference_mode():
        step = backend.begin_step(batch.attention, kv)
        last = decoder.forward(token_ids, positions, step, sample_rows)
        none = decoder.forward(token_ids, positions, step, sample_rows[:0])
        every = decoder.forward(token_ids, positions, step, torch.arange(20))
    assert (last.shape, none.shape) == ((1, 199), (0, 199))
    torch.testing.assert_close(last[0], every[19], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 64, 300, 1500])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_packed_weight_multiplies_like_a_plain_one(rows: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(70, 33, generator=generator)
    bias = torch.randn(70, generator=generator) if with_bias else None
    x, residual = torch.randn(rows, 33, generator=generator), torch.randn(rows, 70, generator=generator)
    expected = torch.nn.functional.linear(x, weight, bias)
    with torch.inference_mode():
        linear = Linear(weight.clone(), bias)
        torch.testing.assert_close(linear(x), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(linear.add_to(residual, x), residual + expected, atol=1e-4, rtol=1e-4)


def test_norm_and_gate_follow_their_formulas() -> None:
    x = torch.randn(5, 3, 24, generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(0.5, 2, 24)
    want = x / (x.pow(2).mean(-1, keepdim=True) + 1e-2).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-2), want, atol=1e-6, rtol=1e-5)
    gate, up = x[:, 0, :12], x[:, 0, 12:]
    torch.testing.assert_close(gated_silu(x[:, 0]), gate * gate.sigmoid() * up)
