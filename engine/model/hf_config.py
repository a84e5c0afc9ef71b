"""A Hugging Face `config.json` as a `ModelArch`, or a refusal that names what is not supported.

A setting that this engine does not compute is refused, never ignored: it would give wrong tokens without a word.
"""

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import UserError
from engine.model.arch import FAMILIES, SUPPORTED, Family, ModelArch, RopeKind, RopeScaling, yarn_attention_factor

_CAUSAL_LM: dict[Family, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# What transformers assumes when a Mistral configuration does not mention its window.
_MISTRAL_DEFAULT_WINDOW = 4096


def arch_from_hf_config(config: Mapping[str, Any], name: str) -> ModelArch:
    """Read the content of a `config.json`, in the spelling of transformers 5 (`rope_parameters`) or older.

    Args:
        config: the parsed file.
        name: the model's name, for messages and reports.

    Raises:
        UserError: a model that this engine does not compute, or a value that is missing or makes no sense.
    """
    family = _family(config, name)
    _refuse_variants(config, family, name)
    hidden_size = _whole(config, "hidden_size", name)
    num_heads = _whole(config, "num_attention_heads", name)
    max_position_embeddings = _whole(config, "max_position_embeddings", name)
    rope_theta, rope_scaling = _rope(config, max_position_embeddings, name)
    return ModelArch(
        name=name,
        family=family,
        hidden_size=hidden_size,
        num_layers=_whole(config, "num_hidden_layers", name),
        num_heads=num_heads,
        num_kv_heads=_whole(config, "num_key_value_heads", name, default=num_heads),
        head_dim=_whole(config, "head_dim", name, default=hidden_size // num_heads),
        intermediate_size=_whole(config, "intermediate_size", name),
        vocab_size=_whole(config, "vocab_size", name),
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=_number(config, "rms_norm_eps", name, default=1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=FAMILIES[family].qkv_bias,
        qk_norm=FAMILIES[family].qk_norm,
        sliding_window=_sliding_window(config, family, name),
        eos_token_ids=eos_ids(config, name),
    )


def eos_ids(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The end-of-sequence tokens of a `config.json` or `generation_config.json`: one number, a list or none.

    Raises:
        UserError: something else stands there.
    """
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_whole(item) for item in ids):
        raise UserError(f"{name}: eos_token_id={value!r} is not possible: it is a token id or a list of them")
    return tuple(ids)


def _family(config: Mapping[str, Any], name: str) -> Family:
    model_type = config.get("model_type")
    if "text_config" in config or "vision_config" in config:
        raise UserError(f"{name}: a multimodal model ({model_type}) is not supported; {SUPPORTED}")
    if any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UserError(f"{name}: a mixture of experts ({model_type}) is not supported; {SUPPORTED}")
    for family, architecture in _CAUSAL_LM.items():
        if model_type == family:
            given = config.get("architectures") or [architecture]
            if given != [architecture]:
                raise UserError(f"{name}: architecture {given} is not supported; a {family} model is {architecture}")
            return family
    raise UserError(f"{name}: model type {model_type!r} is not supported; {SUPPORTED}")


def _refuse_variants(config: Mapping[str, Any], family: Family, name: str) -> None:
    for key in ("quantization_config", "compression_config"):
        if quantization := config.get(key):
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            raise UserError(
                f"{name}: a checkpoint quantised with {method or key} is not supported; "
                "use float32, bfloat16 or float16 safetensors, or a .gguf file"
            )
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise UserError(f"{name}: {key}=true is not supported; {SUPPORTED} without such biases")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UserError(f"{name}: hidden_act={activation!r} is not supported; the supported models use 'silu'")
    windowed = config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ())
    if windowed and family != "mistral":
        raise UserError(
            f"{name}: use_sliding_window=true is not supported for {family} models; only Mistral's sliding window is"
        )


def _sliding_window(config: Mapping[str, Any], family: Family, name: str) -> int | None:
    if family != "mistral" or config.get("sliding_window", _MISTRAL_DEFAULT_WINDOW) is None:
        return None
    return _whole(config, "sliding_window", name, default=_MISTRAL_DEFAULT_WINDOW)


def _rope(config: Mapping[str, Any], max_length: int, name: str) -> tuple[float, RopeScaling | None]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"{name}: rotary settings {rope!r} are not supported; they must be the same for all layers")
    for settings in (config, rope):
        if settings.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise UserError(f"{name}: partial_rotary_factor is not supported; the supported models rotate whole heads")
    theta = _number({**config, **rope}, "rope_theta", name, default=10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    trivial = kind == "default" or (kind == "dynamic" and rope.get("factor") == 1)
    if trivial:
        return theta, None
    if kind not in _SCALINGS:
        raise UserError(f"{name}: rope_type {kind!r} is not supported; supported are default, {', '.join(_SCALINGS)}")
    original = config.get("original_max_position_embeddings")
    if original is not None:
        rope = {**rope, "original_max_position_embeddings": original}
    return theta, _SCALINGS[kind](rope, max_length, name)


def _linear(rope: Mapping[str, Any], max_length: int, name: str) -> RopeScaling:
    return RopeScaling("linear", _number(rope, "factor", name))


def _llama3(rope: Mapping[str, Any], max_length: int, name: str) -> RopeScaling:
    return RopeScaling(
        "llama3",
        _number(rope, "factor", name),
        original_max_position_embeddings=_whole(rope, "original_max_position_embeddings", name, default=max_length),
        low_freq_factor=_number(rope, "low_freq_factor", name),
        high_freq_factor=_number(rope, "high_freq_factor", name),
    )


def _yarn(rope: Mapping[str, Any], max_length: int, name: str) -> RopeScaling:
    original = _whole(rope, "original_max_position_embeddings", name, default=max_length)
    factor = _number(rope, "factor", name, default=max_length / original)
    attention_factor = yarn_attention_factor(factor)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        attention_factor = yarn_attention_factor(factor, _number(rope, "mscale", name)) / yarn_attention_factor(
            factor, _number(rope, "mscale_all_dim", name)
        )
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=original,
        beta_fast=_number(rope, "beta_fast", name, default=32.0),
        beta_slow=_number(rope, "beta_slow", name, default=1.0),
        attention_factor=_number(rope, "attention_factor", name, default=attention_factor),
        truncate=bool(rope.get("truncate", True)),
    )


_SCALINGS: dict[RopeKind, Callable[[Mapping[str, Any], int, str], RopeScaling]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _whole(config: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or not _is_whole(value) or value < 1:
        raise UserError(f"{name}: {key}={value!r} is not possible: it is a whole number of at least 1")
    return value


def _number(config: Mapping[str, Any], key: str, name: str, default: float | None = None) -> float:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"{name}: {key}={value!r} is not possible: it is a number above 0")
    return float(value)
