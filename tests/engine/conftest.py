"""What several tests of the engine need."""

from pathlib import Path

import pytest

from engine.model import fetch


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file, where it was fetched before."""
    path = fetch.cache_folder() / fetch.GGUF_NAME
    if not path.is_file():
        pytest.skip("SmolLM2-135M-Instruct is not in the cache")
    return path
