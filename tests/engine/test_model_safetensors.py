"""Model folders: what transformers saves is read back the same; what is missing or damaged is named."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from engine.errors import UserError
from engine.model.arch import parameter_shapes
from engine.model.resolve import resolve_model
from engine.model.safetensors_folder import INDEX
from engine.model.weights import load_weights

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}


def save(folder, config_class=LlamaConfig, dtype=torch.float32, **options):
    """A small random model, saved by transformers; returns its weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_class(**SIZES, **options.pop("config", {}))).to(dtype)
    model.save_pretrained(folder, **options)
    return dict(model.named_parameters())


def load(folder, dtype=torch.float32):
    return dict(load_weights(resolve_model(str(folder)), dtype=dtype, device="cpu"))


def refusal(folder) -> str:
    with pytest.raises(UserError) as error:
        resolve_model(str(folder))
    return str(error.value)


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_saved_model_comes_back_weight_for_weight(tmp_path, config_class, sharded):
    expected = save(tmp_path, config_class, max_shard_size="20KB" if sharded else "1GB")
    assert (tmp_path / INDEX).exists() == sharded
    loaded = load(tmp_path)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_tied_output_layer_is_not_loaded_twice(tmp_path):
    expected = save(tmp_path, config={"tie_word_embeddings": True})
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, tmp_path / "model.safetensors"
    )
    assert load(tmp_path).keys() == expected.keys()
    assert "lm_head.weight" not in expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_type_of_the_checkpoint_is_told_and_converted(tmp_path, dtype):
    save(tmp_path, dtype=getattr(torch, dtype))
    assert resolve_model(str(tmp_path)).checkpoint_dtype == dtype
    assert {tensor.dtype for tensor in load(tmp_path, torch.bfloat16).values()} == {torch.bfloat16}


def test_loaded_weights_do_not_depend_on_the_file_afterwards(tmp_path):
    save(tmp_path)
    loaded = load(tmp_path)
    before = {name: tensor.clone() for name, tensor in loaded.items()}
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(bytes((tmp_path / "model.safetensors").stat().st_size))
    assert all(torch.equal(loaded[name], before[name]) for name in before)


def test_the_generation_config_adds_its_end_tokens(tmp_path):
    save(tmp_path, config={"eos_token_id": 5})
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 5]}))
    assert resolve_model(str(tmp_path)).arch.eos_token_ids == (5, 7)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.999))
def test_a_file_cut_anywhere_is_named(tmp_path, share):
    if not (tmp_path / "whole").exists():
        save(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: int(share * len(whole))])
    message = refusal(tmp_path)
    assert "model.safetensors" in message
    assert "not a whole safetensors file" in message


def test_missing_surplus_and_misshapen_tensors_are_named(tmp_path):
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.self_attn.k_proj.weight"

    save_file({key: value for key, value in tensors.items() if key != name}, file)
    assert f"tensor {name} is missing" in refusal(tmp_path)
    save_file({**tensors, "model.layers.1.self_attn.k_proj.bias": torch.zeros(16)}, file)
    assert "model.layers.1.self_attn.k_proj.bias is no part" in refusal(tmp_path)
    save_file({**tensors, name: torch.zeros(8, 32)}, file)
    assert f"tensor {name} has shape [8, 32], but its configuration asks for [16, 32]" in refusal(tmp_path)
    save_file({**tensors, name: torch.zeros(16, 32, dtype=torch.int8)}, file)
    assert f"tensor {name} is of type I8" in refusal(tmp_path)


def test_missing_files_are_named(tmp_path):
    assert "config.json is missing" in refusal(tmp_path)
    save(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.rename(tmp_path / "elsewhere")
    assert shard.name in refusal(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {}}))
    assert INDEX in refusal(tmp_path)
    (tmp_path / INDEX).unlink()
    assert f"no {INDEX}" in refusal(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    (tmp_path / "pytorch_model.bin").touch()
    assert "pytorch_model.bin" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_an_unreadable_configuration_is_named(tmp_path, text):
    save(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refusal(tmp_path)


def test_a_single_file_may_have_any_name(tmp_path):
    save(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    source = resolve_model(str(tmp_path))
    assert source.pretrained
    assert load(tmp_path).keys() == parameter_shapes(source.arch).keys()
