"""A tiny model in a folder, whose greedy tokens are clear choices."""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from engine.model.resolve import ModelSource, resolve_model

_SIZES: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 160, "initializer_range": 0.2,
}  # fmt: skip


def wide_model(folder: Path, **changes: Any) -> ModelSource:
    """Its weights spread so widely that answers wander, and hang on what is attended to.

    Args:
        changes: of its sizes, by the names of `Qwen2Config`.
    """
    torch.manual_seed(7)
    Qwen2ForCausalLM(Qwen2Config(**_SIZES | changes)).save_pretrained(folder)
    return resolve_model(str(folder))
