"""What a model looks like: the numbers that fix its shapes, its memory and its arithmetic.

Knows nothing of files or tensors and imports no torch, so that the memory sizing and the simulated executor can use it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.errors import UserError

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
RopeKind = Literal["linear", "llama3", "yarn"]
SUPPORTED = "supported are the dense decoders Llama, Mistral, Qwen2, Qwen2.5 and Qwen3"


@dataclass(frozen=True, slots=True)
class FamilyTraits:
    """What every model of a family has.

    Attributes:
        qkv_bias: the query, key and value projections add a bias.
        qk_norm: each head's queries and keys are normalised before the rotary embedding.
    """

    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES: Mapping[Family, FamilyTraits] = {
    "llama": FamilyTraits(),
    "mistral": FamilyTraits(),
    "qwen2": FamilyTraits(qkv_bias=True),
    "qwen3": FamilyTraits(qk_norm=True),
}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies are stretched beyond the length of the first training.

    Attributes:
        kind: `linear` (positions divided by `factor`), `llama3` (Llama 3.1: long waves divided, short ones kept),
            `yarn` (Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models").
        factor: how many times longer, at least 1.
        original_max_position_embeddings: length of the first training, in tokens (`llama3`, `yarn`).
        low_freq_factor, high_freq_factor: `llama3`: waves longer than `original / low_freq_factor` tokens are
            divided, those shorter than `original / high_freq_factor` kept, those between are blended.
        beta_fast, beta_slow: `yarn`: rotations over the original length between which the blend runs.
        attention_factor: `yarn`: multiplies cosine and sine; already resolved, see `yarn_attention_factor`.
        truncate: `yarn`: the ends of the blend are rounded to whole dimensions.
    """

    kind: RopeKind
    factor: float
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's correction of the attention's temperature, `0.1 mscale ln(factor) + 1` (equation 22 of the paper)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class ModelArch:
    """The shape of one dense decoder-only model.

    Attributes:
        name: for people.
        family: decides which layers have a bias or a head norm.
        hidden_size, intermediate_size: width of the residual stream and of the gated MLP.
        num_layers, num_heads, num_kv_heads, head_dim: `num_heads` query heads share `num_kv_heads` KV heads evenly.
        vocab_size: rows of the embedding table.
        max_position_embeddings: longest sequence the model was made for, in tokens.
        rms_norm_eps: added to the mean square in every RMSNorm.
        rope_theta, rope_scaling: base of the rotary frequencies, and their stretching.
        tie_word_embeddings: the output layer is the embedding table.
        qkv_bias, qk_norm: see `FamilyTraits`.
        sliding_window: a token attends to itself and the `sliding_window - 1` tokens before it; None for all.
        eos_token_ids: tokens that end an answer.

    Raises:
        UserError: numbers that make no model.
    """

    name: str
    family: Family
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
        for size in (*sizes, "vocab_size", "max_position_embeddings"):
            if getattr(self, size) < 1:
                raise UserError(f"model {self.name}: {size}={getattr(self, size)} is not possible: it is at least 1")
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"model {self.name}: num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise UserError(f"model {self.name}: head_dim={self.head_dim} is odd, but the rotary embedding turns pairs")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise UserError(
                f"model {self.name}: sliding_window={self.sliding_window} is not possible: at least 1, or none"
            )
        if self.rope_scaling is not None and self.rope_scaling.factor < 1:
            raise UserError(
                f"model {self.name}: rotary factor={self.rope_scaling.factor} is not possible: it is at least 1"
            )

    @property
    def num_parameters(self) -> int:
        """Weights, a tied output layer counted once."""
        return sum(math.prod(shape) for shape in parameter_shapes(self).values())

    def weight_bytes(self, bytes_per_element: int) -> int:
        """Memory of the weights."""
        return self.num_parameters * bytes_per_element

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Memory of one token's keys and values over all layers: `2 layers kv_heads head_dim bytes`."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element

    def flops_per_token(self, context: int) -> int:
        """Floating-point operations of one token's way through the layers, with `context` tokens to attend to.

        `2 P + 4 layers heads head_dim min(context, sliding_window)`, where P counts the weights of the layers'
        matrices (each is one multiplication and one addition) and the second term is the products of queries with
        keys and of probabilities with values. The output layer is left out: see `logits_flops`.
        """
        attention_width = self.num_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        matrices = self.hidden_size * (2 * attention_width + 2 * kv_width + 3 * self.intermediate_size)
        attended = context if self.sliding_window is None else min(context, self.sliding_window)
        return self.num_layers * (2 * matrices + 4 * attention_width * attended)

    @property
    def logits_flops(self) -> int:
        """Floating-point operations of the output layer, `2 hidden vocab`, due only for a row that yields a token."""
        return 2 * self.hidden_size * self.vocab_size


def parameter_shapes(arch: ModelArch) -> dict[str, tuple[int, ...]]:
    """Every weight by its Hugging Face name, in the order of the computation. Matrices are `[out, in]`."""
    hidden, mlp = arch.hidden_size, arch.intermediate_size
    attention_width, kv_width = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    projections = {"q_proj": attention_width, "k_proj": kv_width, "v_proj": kv_width}

    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (arch.vocab_size, hidden)}
    for index in range(arch.num_layers):
        layer = f"model.layers.{index}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        for projection, width in projections.items():
            shapes[f"{layer}.self_attn.{projection}.weight"] = (width, hidden)
            if arch.qkv_bias:
                shapes[f"{layer}.self_attn.{projection}.bias"] = (width,)
        if arch.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (arch.head_dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (arch.head_dim,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, attention_width)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (mlp, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (mlp, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, mlp)
    shapes["model.norm.weight"] = (hidden,)
    if not arch.tie_word_embeddings:
        shapes["lm_head.weight"] = (arch.vocab_size, hidden)
    return shapes
