"""Random weights: complete, seeded, and tame enough for sixteen bits."""

import pytest
import torch

from engine.model.arch import parameter_shapes
from engine.model.resolve import resolve_model
from engine.model.weights import load_weights


@pytest.mark.parametrize("name", ["tiny", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"])
def test_random_weights_are_complete(name):
    source = resolve_model(f"random:{name}")
    weights = list(load_weights(source, dtype=torch.bfloat16, device="cpu"))
    assert {name: tuple(tensor.shape) for name, tensor in weights} == parameter_shapes(source.arch)
    assert {tensor.dtype for _, tensor in weights} == {torch.bfloat16}


def test_the_same_seed_gives_the_same_weights():
    source = resolve_model("random:tiny-qwen2")
    first, again, other = (
        dict(load_weights(source, dtype=torch.float32, device="cpu", seed=seed)) for seed in (3, 3, 4)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_norms_are_ones_and_the_residual_writers_are_scaled_down():
    weights = dict(load_weights(resolve_model("random:tiny-qwen3"), dtype=torch.float32, device="cpu"))
    assert all((tensor == 1).all() for name, tensor in weights.items() if "norm" in name)
    assert weights["model.layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(0.02, rel=0.1)
    assert weights["model.layers.0.mlp.down_proj.weight"].std().item() == pytest.approx(0.01, rel=0.1)
