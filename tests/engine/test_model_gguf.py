"""GGUF files written with the gguf package: architecture, names, encodings and the order of the rotary rows."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import UserError
from engine.model.arch import RopeScaling, yarn_attention_factor
from engine.model.fetch import GGUF_NAME, cache_folder
from engine.model.gguf_file import half_split_rotary
from engine.model.presets import preset_arch
from engine.model.resolve import resolve_model
from engine.model.weights import load_weights

F32, F16, Q8_0, Q4_1 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0", "Q4_1"))
GGUF_NAMES = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.", "attn_"),
    ("mlp.", "ffn_"),
    ("_proj", ""),
]
PRESETS = {"llama": "tiny", "qwen2": "tiny-qwen2", "qwen3": "tiny-qwen3"}


def tiny_weights(family: str) -> dict[str, np.ndarray]:
    source = resolve_model(f"random:{PRESETS[family]}")
    return {name: tensor.numpy() for name, tensor in load_weights(source, dtype=torch.float32, device="cpu", seed=1)}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row by row what llama.cpp's converter does to a query or key projection."""
    size = len(weight) // heads
    rows = [h * size + j * (size // 2) + i for h in range(heads) for i in range(size // 2) for j in range(2)]
    return weight[rows]


def write(path, family="llama", weights=None, kind=F32, metadata=(), extra=(), skip=()):
    """A whole small model; `metadata` are further calls on the writer, `extra` further tensors."""
    arch = preset_arch(PRESETS.get(family, "tiny"))
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(arch.num_layers)
    writer.add_context_length(arch.max_position_embeddings)
    writer.add_embedding_length(arch.hidden_size)
    writer.add_feed_forward_length(arch.intermediate_size)
    writer.add_head_count(arch.num_heads)
    writer.add_head_count_kv(arch.num_kv_heads)
    writer.add_key_length(arch.head_dim)
    writer.add_value_length(arch.head_dim)
    writer.add_layer_norm_rms_eps(arch.rms_norm_eps)
    writer.add_rope_freq_base(arch.rope_theta)
    writer.add_token_list([f"t{index}" for index in range(8)])
    writer.add_token_types([1] * 8)
    writer.add_eos_token_id(2)
    for method, *values in metadata:
        getattr(writer, method)(*values)
    for name, values in (weights or tiny_weights(family if family in PRESETS else "llama")).items():
        if name in skip:
            continue
        if family == "llama" and "q_proj" in name:
            values = interleaved(values, arch.num_heads)
        if family == "llama" and "k_proj" in name:
            values = interleaved(values, arch.num_kv_heads)
        for hf, short in GGUF_NAMES:
            name = name.replace(hf, short)
        encoding = kind if values.ndim > 1 else F32
        writer.add_tensor(name, quantize(values, encoding), raw_dtype=encoding)
    for name, values in extra:
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def refusal(path) -> str:
    with pytest.raises(UserError) as error:
        resolve_model(str(path))
    return str(error.value)


@pytest.mark.parametrize("family", PRESETS)
def test_a_written_model_comes_back_weight_for_weight(tmp_path, family):
    path, weights = tmp_path / "m.gguf", tiny_weights(family)
    write(path, family, weights)
    source = resolve_model(str(path))
    assert source.arch == replace(preset_arch(PRESETS[family]), name=str(path))
    assert (source.weights, source.pretrained, source.checkpoint_dtype) == ("gguf", True, "float32")
    loaded = dict(load_weights(source, dtype=torch.float32, device="cpu"))
    assert loaded.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(loaded[name].numpy(), values, err_msg=name)


@pytest.mark.parametrize(("kind", "dtype"), [(F16, "float16"), (Q8_0, "bfloat16"), (Q4_1, "bfloat16")])
def test_quantised_tensors_are_decoded_before_rows_are_put_in_order(tmp_path, kind, dtype):
    path, weights = tmp_path / "m.gguf", tiny_weights("llama")
    write(path, "llama", weights, kind)
    source = resolve_model(str(path))
    assert source.checkpoint_dtype == dtype
    loaded = dict(load_weights(source, dtype=torch.float32, device="cpu"))
    for name, values in weights.items():
        encoding = kind if values.ndim > 1 else F32
        np.testing.assert_array_equal(loaded[name].numpy(), dequantize(quantize(values, encoding), encoding))
        assert torch.allclose(loaded[name], torch.from_numpy(values), atol=0.02)


@given(heads=st.integers(1, 6), pairs=st.integers(1, 8), columns=st.integers(1, 3))
def test_rotary_reordering_undoes_the_converters(heads, pairs, columns):
    weight = np.arange(heads * pairs * 2 * columns).reshape(-1, columns)
    np.testing.assert_array_equal(half_split_rotary(interleaved(weight, heads), heads), weight)


def test_an_output_layer_of_its_own_is_untied(tmp_path):
    weights = tiny_weights("llama")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 2
    write(tmp_path / "m.gguf", weights=weights)
    assert not resolve_model(str(tmp_path / "m.gguf")).arch.tie_word_embeddings


def test_the_end_of_a_turn_is_an_end_token_too(tmp_path):
    write(tmp_path / "m.gguf", metadata=[("add_eot_token_id", 7)])
    assert resolve_model(str(tmp_path / "m.gguf")).arch.eos_token_ids == (2, 7)


def test_linear_and_yarn_scaling_are_read(tmp_path):
    linear = [("add_rope_scaling_type", gguf.RopeScalingType.LINEAR), ("add_rope_scaling_factor", 2.0)]
    write(tmp_path / "linear.gguf", metadata=linear)
    assert resolve_model(str(tmp_path / "linear.gguf")).arch.rope_scaling == RopeScaling("linear", 2.0)

    yarn = [("add_rope_scaling_type", gguf.RopeScalingType.YARN), ("add_rope_scaling_factor", 4.0)]
    write(tmp_path / "yarn.gguf", metadata=[*yarn, ("add_rope_scaling_orig_ctx_len", 512)])
    expected = RopeScaling("yarn", 4.0, 512, attention_factor=yarn_attention_factor(4.0))
    assert resolve_model(str(tmp_path / "yarn.gguf")).arch.rope_scaling == expected


def frequency_divisors(factor: float, original: int) -> np.ndarray:
    """The table that llama.cpp's converter would write, by transformers' own Llama 3.1 frequencies."""
    rope = {"rope_theta": 10000.0, "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": original}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    return (plain / scaled).numpy().astype(np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_found_from_its_table(tmp_path, factor):
    write(tmp_path / "m.gguf", extra=[("rope_freqs.weight", frequency_divisors(factor, 8192))])
    scaling = resolve_model(str(tmp_path / "m.gguf")).arch.rope_scaling
    assert scaling == RopeScaling("llama3", factor, original_max_position_embeddings=8192)


def test_a_frequency_table_of_other_origin_is_refused(tmp_path):
    write(tmp_path / "m.gguf", extra=[("rope_freqs.weight", frequency_divisors(8.0, 1024))])
    assert "rope_freqs.weight" in refusal(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"family": "gemma2"}, "gemma2"),
        ({"metadata": [("add_expert_count", 8)]}, "mixture of experts"),
        ({"metadata": [("add_sliding_window", 64)]}, "sliding window"),
        ({"metadata": [("add_rope_dimension_count", 8)]}, "rope.dimension_count=8"),
        ({"metadata": [("add_rope_scaling_type", gguf.RopeScalingType.LONGROPE)]}, "longrope"),
        ({"metadata": [("add_array", "llama.rope.dimension_count", [16, 16])]}, "whole number"),
        ({"metadata": [("add_uint16", "split.count", 3)]}, "3 parts"),
        ({"skip": ["model.embed_tokens.weight"]}, "token_embd.weight"),
        ({"skip": ["model.layers.1.mlp.up_proj.weight"]}, "model.layers.1.mlp.up_proj.weight is missing"),
        ({"extra": [("blk.0.attn_q.bias", np.zeros(64, np.float32))]}, "q_proj.bias is no part"),
        ({"extra": [("rope_freqs.weight", np.zeros(8, np.float32))]}, "rope_freqs.weight"),
        ({"extra": [("mystery.weight", np.zeros(64, np.float32))]}, "mystery.weight is no part"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, options, named):
    write(tmp_path / "m.gguf", **options)
    assert named in refusal(tmp_path / "m.gguf")
    assert "m.gguf" in refusal(tmp_path / "m.gguf")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.999))
def test_a_file_cut_anywhere_is_named(tmp_path, share):
    if not (tmp_path / "whole").exists():
        write(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: int(share * len(whole))])
    message = refusal(tmp_path / "m.gguf")
    assert "m.gguf" in message
    assert "not a whole GGUF file" in message


def test_the_cached_default_model_has_the_shape_of_its_preset():
    path = cache_folder() / GGUF_NAME
    if not path.is_file():
        pytest.skip("SmolLM2-135M is not in the cache")
    assert replace(resolve_model(str(path)).arch, name="smollm2-135m") == preset_arch("smollm2-135m")
