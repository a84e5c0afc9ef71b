"""Names: what each form leads to, and what is said when nothing is found."""

import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers import LlamaConfig

from engine.errors import UserError
from engine.model.arch import parameter_shapes
from engine.model.hf_config import arch_from_hf_config
from engine.model.resolve import resolve_model


def write_folder(folder):
    """A folder with a whole tiny model."""
    config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    config.save_pretrained(folder)
    shapes = parameter_shapes(arch_from_hf_config(config.to_dict(), "m"))
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")


def test_random_names_a_published_shape():
    source = resolve_model("random:Qwen2.5-7B")
    assert (source.arch.name, source.weights, source.pretrained) == ("qwen2.5-7b", "random", False)
    assert source.checkpoint_dtype == "bfloat16"
    assert "random weights" in (source.note or "")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "random:NAME"),
        ("qwen2.5-7b", "did you mean random:qwen2.5-7b?"),
        ("lama-3.1-8b", "did you mean random:llama-3.1-8b?"),
        ("./nowhere", "'./nowhere' is neither"),
        ("zzz", "a Hugging Face id"),
        ("random:", "Known shapes"),
        ("random:smollm", "did you mean 'smollm2"),
        ("nowhere.gguf", "no such file"),
    ],
)
def test_an_unknown_name_says_what_is_accepted(name, said):
    with pytest.raises(UserError) as error:
        resolve_model(name)
    assert said in str(error.value)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(UserError, match=r"no \.gguf file"):
        resolve_model(str(tmp_path / "model.bin"))


def test_a_local_folder_goes_before_a_hub_id(tmp_path, monkeypatch):
    (tmp_path / "org" / "model").mkdir(parents=True)
    write_folder(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    assert resolve_model("org/model").pretrained


def test_a_hub_model_in_the_cache_is_used_without_asking_the_hub(tmp_path, monkeypatch):
    write_folder(tmp_path)

    def snapshot_download(model_id, local_files_only=False, **patterns):
        assert local_files_only
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    source = resolve_model("org/model")
    assert (source.name, source.path, source.weights) == ("org/model", tmp_path, "safetensors")


def test_a_hub_model_that_is_half_in_the_cache_is_downloaded(tmp_path, monkeypatch):
    half, whole = tmp_path / "half", tmp_path / "whole"
    half.mkdir()
    write_folder(whole)

    def snapshot_download(model_id, local_files_only=False, **patterns):
        return str(half if local_files_only else whole)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    said: list[str] = []
    assert resolve_model("org/model", said.append).path == whole
    assert "org/model" in said[0]


def test_a_hub_model_that_cannot_be_had_names_the_ways_out(tmp_path, monkeypatch):
    def snapshot_download(model_id, local_files_only=False, **patterns):
        if local_files_only:
            raise FileNotFoundError("not in the cache")
        raise RuntimeError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(UserError, match=r"no route to host.*local folder.*random:NAME"):
        resolve_model("org/model")


def test_resolving_imports_no_torch():
    code = "import sys; from engine.model.resolve import resolve_model; resolve_model('random:tiny'); "
    code += "print([name for name in ('torch', 'transformers', 'gguf', 'huggingface_hub') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
