"""Published model shapes, for `random:NAME`: the speed of a model without its weights.

Numbers are those of the instruction-tuned releases' own configuration files.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches

from engine.errors import UserError
from engine.model.arch import FAMILIES, Family, ModelArch, RopeScaling


@dataclass(frozen=True, slots=True)
class _FamilyPreset:
    """What the releases in one table below share."""

    family: Family
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    rope_scaling: RopeScaling | None = None


def _llama3(factor: float) -> RopeScaling:
    return RopeScaling("llama3", factor, original_max_position_embeddings=8192)


_SMOLLM2 = _FamilyPreset("llama", 1e-5, 100_000.0, 8192, (2,))
_SMOLLM2_LARGE = replace(_SMOLLM2, rope_theta=130_000.0)
_TINYLLAMA = _FamilyPreset("llama", 1e-5, 10_000.0, 2048, (2,))
_LLAMA_3_1 = _FamilyPreset("llama", 1e-5, 500_000.0, 131_072, (128001, 128008, 128009), _llama3(8.0))
_LLAMA_3_2 = replace(_LLAMA_3_1, rope_scaling=_llama3(32.0))
_MISTRAL = _FamilyPreset("mistral", 1e-5, 1_000_000.0, 32_768, (2,))
_QWEN2_5 = _FamilyPreset("qwen2", 1e-6, 1_000_000.0, 32_768, (151645, 151643))
_QWEN3 = _FamilyPreset("qwen3", 1e-6, 1_000_000.0, 40_960, (151645, 151643))
_TINY_LLAMA = _FamilyPreset("llama", 1e-5, 10_000.0, 2048, (2,))
_TINY_MISTRAL = replace(_TINY_LLAMA, family="mistral")
_TINY_QWEN2 = replace(_TINY_LLAMA, family="qwen2", rms_norm_eps=1e-6)
_TINY_QWEN3 = replace(_TINY_LLAMA, family="qwen3", rms_norm_eps=1e-6)

# name: family, hidden, layers, heads, KV heads, head dim, MLP, vocabulary, tied embeddings
_TABLE: dict[str, tuple[_FamilyPreset, int, int, int, int, int, int, int, bool]] = {
    "smollm2-135m": (_SMOLLM2, 576, 30, 9, 3, 64, 1536, 49152, True),
    "smollm2-360m": (_SMOLLM2, 960, 32, 15, 5, 64, 2560, 49152, True),
    "smollm2-1.7b": (_SMOLLM2_LARGE, 2048, 24, 32, 32, 64, 8192, 49152, True),
    "tinyllama-1.1b": (_TINYLLAMA, 2048, 22, 32, 4, 64, 5632, 32000, False),
    "llama-3.2-1b": (_LLAMA_3_2, 2048, 16, 32, 8, 64, 8192, 128256, True),
    "llama-3.2-3b": (_LLAMA_3_2, 3072, 28, 24, 8, 128, 8192, 128256, True),
    "llama-3.1-8b": (_LLAMA_3_1, 4096, 32, 32, 8, 128, 14336, 128256, False),
    "llama-3.1-70b": (_LLAMA_3_1, 8192, 80, 64, 8, 128, 28672, 128256, False),
    "mistral-7b": (_MISTRAL, 4096, 32, 32, 8, 128, 14336, 32768, False),
    "qwen2.5-0.5b": (_QWEN2_5, 896, 24, 14, 2, 64, 4864, 151936, True),
    "qwen2.5-1.5b": (_QWEN2_5, 1536, 28, 12, 2, 128, 8960, 151936, True),
    "qwen2.5-3b": (_QWEN2_5, 2048, 36, 16, 2, 128, 11008, 151936, True),
    "qwen2.5-7b": (_QWEN2_5, 3584, 28, 28, 4, 128, 18944, 152064, False),
    "qwen2.5-14b": (_QWEN2_5, 5120, 48, 40, 8, 128, 13824, 152064, False),
    "qwen2.5-32b": (_QWEN2_5, 5120, 64, 40, 8, 128, 27648, 152064, False),
    "qwen3-0.6b": (_QWEN3, 1024, 28, 16, 8, 128, 3072, 151936, True),
    "qwen3-1.7b": (_QWEN3, 2048, 28, 16, 8, 128, 6144, 151936, True),
    "qwen3-4b": (_QWEN3, 2560, 36, 32, 8, 128, 9728, 151936, True),
    "qwen3-8b": (_QWEN3, 4096, 36, 32, 8, 128, 12288, 151936, False),
    "qwen3-14b": (_QWEN3, 5120, 40, 40, 8, 128, 17408, 151936, False),
    "qwen3-32b": (_QWEN3, 5120, 64, 64, 8, 128, 25600, 151936, False),
    "tiny": (_TINY_LLAMA, 64, 2, 4, 2, 16, 128, 512, True),
    "tiny-mistral": (_TINY_MISTRAL, 64, 2, 4, 2, 16, 128, 512, False),
    "tiny-qwen2": (_TINY_QWEN2, 64, 2, 4, 2, 16, 128, 512, True),
    "tiny-qwen3": (_TINY_QWEN3, 64, 2, 4, 2, 32, 128, 512, True),
}
_ALIASES = {"tiny-llama": "tiny"}


def preset_names() -> tuple[str, ...]:
    """Every shape that `random:NAME` knows, in the table's order."""
    return tuple(_TABLE)


def nearest_preset(name: str) -> str | None:
    """The preset that `name` most likely meant, or None when nothing is close."""
    matches = get_close_matches(name.lower().rpartition("/")[2], (*_TABLE, *_ALIASES), n=1, cutoff=0.6)
    return matches[0] if matches else None


def preset_arch(name: str) -> ModelArch:
    """The published shape called `name` (case does not matter).

    Raises:
        UserError: no such preset; names the nearest and lists all.
    """
    key = _ALIASES.get(name.lower(), name.lower())
    if key not in _TABLE:
        nearest = nearest_preset(name)
        hint = f"did you mean {nearest!r}? " if nearest else ""
        raise UserError(f"no model shape is called {name!r}: {hint}Known shapes: {', '.join(_TABLE)}")
    common, hidden, layers, heads, kv_heads, head_dim, mlp, vocab, tied = _TABLE[key]
    traits = FAMILIES[common.family]
    return ModelArch(
        name=key,
        family=common.family,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=mlp,
        vocab_size=vocab,
        max_position_embeddings=common.max_position_embeddings,
        rms_norm_eps=common.rms_norm_eps,
        rope_theta=common.rope_theta,
        rope_scaling=common.rope_scaling,
        tie_word_embeddings=tied,
        qkv_bias=traits.qkv_bias,
        qk_norm=traits.qk_norm,
        eos_token_ids=common.eos_token_ids,
    )
