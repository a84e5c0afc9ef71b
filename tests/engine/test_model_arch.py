"""Architectures read from `config.json` files, refusals by name, and the published shapes."""

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import UserError
from engine.model.arch import FAMILIES, ModelArch, parameter_shapes
from engine.model.hf_config import arch_from_hf_config
from engine.model.presets import preset_arch, preset_names

CONFIG_CLASSES = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARNS: list[dict[str, Any]] = [
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.2},
]


def written(config) -> dict:
    """The configuration as transformers writes it to `config.json`."""
    return json.loads(config.to_json_string())


def old_spelling(config: dict) -> dict:
    """The same configuration as transformers 4 wrote it."""
    rope = dict(config["rope_parameters"])
    theta = rope.pop("rope_theta")
    scaling = None if rope["rope_type"] == "default" else rope
    return {key: value for key, value in config.items() if key != "rope_parameters"} | {
        "rope_theta": theta,
        "rope_scaling": scaling,
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_parameter_shapes_are_those_of_the_transformers_model(family, tied):
    config = CONFIG_CLASSES[family](**SIZES, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    arch = arch_from_hf_config(written(config), "m")
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == parameter_shapes(arch)
    assert arch.num_parameters == model.num_parameters()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}, LLAMA3, *YARNS])
def test_both_spellings_of_rope_give_the_same_architecture(family, rope):
    config = written(CONFIG_CLASSES[family](**SIZES, rope_parameters={"rope_theta": 5e5, **rope}))
    arch = arch_from_hf_config(config, "m")
    assert arch == arch_from_hf_config(old_spelling(config), "m")
    assert arch.rope_theta == 5e5
    assert arch.family == family
    assert arch.head_dim == 24
    assert (arch.rope_scaling.kind if arch.rope_scaling else "default") == rope["rope_type"]


@pytest.mark.parametrize("rope", YARNS)
def test_yarn_attention_factor_is_that_of_transformers(rope):
    config = LlamaConfig(**SIZES, rope_parameters={"rope_theta": 1e4, **rope})
    _, expected = ROPE_INIT_FUNCTIONS["yarn"](config)
    scaling = arch_from_hf_config(written(config), "m").rope_scaling
    assert scaling is not None
    assert scaling.attention_factor == pytest.approx(expected)


def test_fields_an_old_llama_file_leaves_out_take_their_usual_values():
    config = {key: SIZES[key] for key in SIZES if key not in ("head_dim", "num_key_value_heads")}
    arch = arch_from_hf_config({"model_type": "llama", **config}, "m")
    assert (arch.num_kv_heads, arch.head_dim, arch.rope_theta, arch.rms_norm_eps) == (4, 16, 1e4, 1e-6)
    assert not arch.tie_word_embeddings
    assert arch.eos_token_ids == ()


@pytest.mark.parametrize(("given", "expected"), [(2, (2,)), ([5, 7], (5, 7)), (None, ())])
def test_end_of_sequence_may_be_one_token_several_or_none(given, expected):
    assert arch_from_hf_config({"model_type": "llama", **SIZES, "eos_token_id": given}, "m").eos_token_ids == expected


def test_only_mistral_keeps_a_sliding_window():
    windowed = {**SIZES, "sliding_window": 32}
    assert arch_from_hf_config({"model_type": "mistral", **windowed}, "m").sliding_window == 32
    assert arch_from_hf_config({"model_type": "mistral", **SIZES, "sliding_window": None}, "m").sliding_window is None
    assert arch_from_hf_config({"model_type": "mistral", **SIZES}, "m").sliding_window == 4096
    assert arch_from_hf_config({"model_type": "qwen2", **windowed}, "m").sliding_window is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gemma3_text"}, "gemma3_text"),
        ({"model_type": None}, "None"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "mixture of experts"),
        ({"text_config": {}, "model_type": "qwen2_5_vl"}, "multimodal"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"attention_bias": True}, "attention_bias"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "0.5"),
        ({"rope_scaling": {"type": "linear"}}, "factor=None"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "same for all layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size=None"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers='two'"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3"),
        ({"head_dim": 15}, "head_dim=15"),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1"),
        ({"eos_token_id": "</s>"}, "</s>"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change, named):
    with pytest.raises(UserError) as refusal:
        arch_from_hf_config({"model_type": "llama", **SIZES, **change}, "some-model")
    assert named in str(refusal.value)
    assert "some-model" in str(refusal.value)


def test_dynamic_scaling_by_one_is_no_scaling():
    rope = {"rope_scaling": {"type": "dynamic", "factor": 1}}
    assert arch_from_hf_config({"model_type": "llama", **SIZES, **rope}, "m").rope_scaling is None


@pytest.mark.parametrize(
    ("name", "published_millions"),
    [
        ("smollm2-135m", 134.5),
        ("smollm2-360m", 361.8),
        ("smollm2-1.7b", 1711.4),
        ("tinyllama-1.1b", 1100.0),
        ("llama-3.2-1b", 1235.8),
        ("llama-3.2-3b", 3212.7),
        ("llama-3.1-8b", 8030.3),
        ("llama-3.1-70b", 70553.7),
        ("mistral-7b", 7248.0),
        ("qwen2.5-0.5b", 494.0),
        ("qwen2.5-1.5b", 1543.7),
        ("qwen2.5-3b", 3085.9),
        ("qwen2.5-7b", 7615.6),
        ("qwen2.5-14b", 14770.0),
        ("qwen2.5-32b", 32763.9),
        ("qwen3-0.6b", 596.0),
        ("qwen3-1.7b", 1720.6),
        ("qwen3-4b", 4022.5),
        ("qwen3-8b", 8190.7),
        ("qwen3-14b", 14768.3),
        ("qwen3-32b", 32762.1),
    ],
)
def test_presets_have_the_published_number_of_parameters(name, published_millions):
    assert preset_arch(name).num_parameters / 1e6 == pytest.approx(published_millions, abs=0.06)


def test_there_is_a_tiny_preset_of_each_family():
    tiny = [preset_arch(name) for name in preset_names() if name.startswith("tiny") and "1.1b" not in name]
    assert {arch.family for arch in tiny} == set(FAMILIES)
    assert all(arch.num_parameters < 200_000 for arch in tiny)
    assert preset_arch("Tiny-Llama") == preset_arch("tiny")


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UserError, match=r"did you mean 'qwen2\.5-7b'"):
        preset_arch("qwen2.5-7")


def test_sizes_follow_from_the_shape():
    arch = preset_arch("llama-3.1-8b")
    assert arch.weight_bytes(2) == 2 * arch.num_parameters
    assert arch.kv_bytes_per_token(2) == 2 * 32 * 8 * 128 * 2
    table = arch.vocab_size * arch.hidden_size
    norms = (2 * 32 + 1) * arch.hidden_size
    assert arch.flops_per_token(0) == 2 * (arch.num_parameters - 2 * table - norms)
    assert arch.logits_flops == 2 * table
    assert arch.flops_per_token(100) - arch.flops_per_token(0) == 100 * 32 * 4 * 32 * 128


def test_attention_beyond_the_sliding_window_costs_nothing():
    config = {"model_type": "mistral", **SIZES, "sliding_window": 32}
    arch: ModelArch = arch_from_hf_config(config, "m")
    assert arch.flops_per_token(32) == arch.flops_per_token(1000) > arch.flops_per_token(31)
