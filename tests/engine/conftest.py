"""What several tests of the engine need."""

import os
from pathlib import Path

import pytest
import torch

from engine.model import fetch

# Triton decides on import whether it compiles or interprets, so this has to come before any test is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file, where it was fetched before."""
    path = fetch.cache_folder() / fetch.GGUF_NAME
    if not path.is_file():
        pytest.skip("SmolLM2-135M-Instruct is not in the cache")
    return path
