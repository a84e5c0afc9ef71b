"""The decoder of Llama, Mistral, Qwen2, Qwen2.5 and Qwen3: one computation over a flat batch of tokens.

Families differ in what `ModelArch` says: a bias on queries, keys and values, a norm of each head, a stretched
rotary embedding, a sliding window (which is attention's affair).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from engine.attention.base import AttentionStep
from engine.model.arch import ModelArch
from engine.model.layers import tensor_bytes
from engine.model.operations import GatedLayer, LinearLayer, operations_for
from engine.model.rotary import RotaryTable
from engine.parallel.layers import RowParallel, VocabParallel

if TYPE_CHECKING:
    from engine.parallel.collectives import Collectives

_GATED = "mlp.gate_up_proj"
# Matrices that share an input are multiplied as one, in this order of rows.
_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    _GATED: ("mlp.gate_proj", "mlp.up_proj"),
}
_FUSED_PART = {part: fused for fused, parts in _FUSED.items() for part in parts}


@dataclass(frozen=True, slots=True)
class _Layer:
    """One transformer layer's weights; `q_norm` and `k_norm` only where the family has them."""

    input_norm: torch.Tensor
    qkv: LinearLayer
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: LinearLayer | RowParallel
    mlp_norm: torch.Tensor
    gate_up: GatedLayer
    down: LinearLayer | RowParallel


class Decoder:
    """A model on its device.

    Args:
        arch: its shape.
        weights: Hugging Face names and tensors, in any order, all of `parameter_shapes(arch)`; taken one at a time.
        num_positions: longest sequence, in tokens.
        dtype, device: of the weights.
        ranks: those that share the model; `arch` and `weights` are then this rank's part. None when it has all.

    Attributes:
        weights_bytes: what the model holds, a second layout of a tied output layer and the rotary table included.
    """

    def __init__(
        self,
        arch: ModelArch,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        ranks: "Collectives | None" = None,
    ) -> None:
        self.arch = arch
        vectors: dict[str, torch.Tensor] = {}
        linears: dict[str, LinearLayer] = {}
        gated: dict[str, GatedLayer] = {}
        self.dtype = dtype
        self._operations = operations_for(device, dtype)
        for name, tensor in _fuse(weights):
            module, _, kind = name.rpartition(".")
            if module == "model.embed_tokens":
                self._embedding = tensor
            elif module.endswith(_GATED):
                gated[module] = self._operations.gated(tensor)
            elif kind == "weight" and tensor.dim() == 2:
                linears[module] = self._operations.linear(tensor)
            else:
                vectors[name] = tensor
        for module, linear in linears.items():
            linear.bias = vectors.get(f"{module}.bias")
        # A packed output layer has another layout than the embedding table, even when both are the same numbers.
        self._lm_head = self._output_layer(linears, ranks)
        self._layers = [
            _layer(f"model.layers.{index}", vectors, linears, gated, ranks) for index in range(arch.num_layers)
        ]
        self._norm = vectors["model.norm.weight"]
        self._rotary = RotaryTable(arch, num_positions, dtype, device)
        self.weights_bytes = self._count_bytes(vectors, linears, gated)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionStep,
        sample_rows: torch.Tensor,
        num_layers: int | None = None,
    ) -> torch.Tensor:
        """One step.

        Args:
            token_ids, positions: int64 `[tokens]`.
            attention: prepared for this batch; keys and values of the tokens go into its cache.
            sample_rows: int64 `[samples]`, rows whose next token is asked for.
            num_layers: run only so many layers (to measure their memory); None for all.

        Returns:
            Logits `[samples, vocab]` in the model's type; `[0, vocab]` on a rank that does not sample.
        """
        rms_norm, eps = self._operations.rms_norm, self.arch.rms_norm_eps
        layers = self._layers[:num_layers]
        cos_sin = self._rotary.at(positions)
        hidden = functional.embedding(token_ids, self._embedding)  # [tokens, hidden]
        for index, layer in enumerate(layers):
            normed = rms_norm(hidden, layer.input_norm, eps)
            attended = self._attend(index, layer, normed, cos_sin, attention)
            if index == len(layers) - 1:
                # Nothing after the last layer's attention looks at the other rows.
                attended, hidden = attended.index_select(0, sample_rows), hidden.index_select(0, sample_rows)
            hidden = layer.output.add_to(hidden, attended)
            gated = layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps))
            hidden = layer.down.add_to(hidden, gated)
        return self._lm_head(rms_norm(hidden, self._norm, eps))

    def _attend(
        self, index: int, layer: _Layer, x: torch.Tensor, cos_sin: torch.Tensor, attention: AttentionStep
    ) -> torch.Tensor:
        arch = self.arch
        heads, kv_heads = arch.num_heads, arch.num_kv_heads
        qkv = layer.qkv(x).view(len(x), heads + 2 * kv_heads, arch.head_dim)
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        query, key = self._operations.turn(qkv, cos_sin, heads, kv_heads, norms, arch.rms_norm_eps)
        return attention.attend(index, query, key, qkv[:, heads + kv_heads :])

    def _output_layer(
        self, linears: Mapping[str, LinearLayer], ranks: "Collectives | None"
    ) -> LinearLayer | VocabParallel:
        arch, linear = self.arch, self._operations.linear
        if ranks is None:
            return linear(self._embedding) if arch.tie_word_embeddings else linears["lm_head"]
        rows = ranks.shard.vocab_rows(arch.vocab_size)
        part = linear(self._embedding[rows]) if arch.tie_word_embeddings else linears["lm_head"]
        return VocabParallel(part, arch.vocab_size, ranks)

    def _count_bytes(
        self,
        vectors: Mapping[str, torch.Tensor],
        linears: Mapping[str, LinearLayer],
        gated: Mapping[str, GatedLayer],
    ) -> int:
        total = tensor_bytes(self._embedding) + sum(map(tensor_bytes, vectors.values()))
        total += sum(tensor_bytes(layer.weight) for layer in (*linears.values(), *gated.values()))
        total += self._rotary.num_bytes
        tied_copy = self.arch.tie_word_embeddings and self._lm_head.packed
        return total + (tensor_bytes(self._lm_head.weight) if tied_copy else 0)


def _layer(
    prefix: str,
    vectors: Mapping[str, torch.Tensor],
    linears: Mapping[str, LinearLayer],
    gated: Mapping[str, GatedLayer],
    ranks: "Collectives | None",
) -> _Layer:
    output, down = linears[f"{prefix}.self_attn.o_proj"], linears[f"{prefix}.mlp.down_proj"]
    return _Layer(
        input_norm=vectors[f"{prefix}.input_layernorm.weight"],
        qkv=linears[f"{prefix}.self_attn.qkv_proj"],
        q_norm=vectors.get(f"{prefix}.self_attn.q_norm.weight"),
        k_norm=vectors.get(f"{prefix}.self_attn.k_norm.weight"),
        output=output if ranks is None else RowParallel(output, ranks),
        mlp_norm=vectors[f"{prefix}.post_attention_layernorm.weight"],
        gate_up=gated[f"{prefix}.{_GATED}"],
        down=down if ranks is None else RowParallel(down, ranks),
    )


def _fuse(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Join what is multiplied as one as soon as its parts are there; pass everything else on."""
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in weights:
        module, _, kind = name.rpartition(".")
        layer, part = _split_layer(module)
        if part not in _FUSED_PART:
            yield name, tensor
            continue
        fused = f"{layer}{_FUSED_PART[part]}.{kind}"
        parts = waiting.setdefault(fused, {})
        parts[part] = tensor
        order = _FUSED[_FUSED_PART[part]]
        if len(parts) == len(order):
            del waiting[fused]
            yield fused, torch.cat([parts[p] for p in order])


def _split_layer(module: str) -> tuple[str, str]:
    """`model.layers.3.mlp.up_proj` into `model.layers.3.` and `mlp.up_proj`; a module of no layer has no first part."""
    parts = module.split(".")
    if parts[:2] != ["model", "layers"]:
        return "", module
    return ".".join(parts[:3]) + ".", ".".join(parts[3:])
