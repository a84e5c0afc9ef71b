"""Where the peers live: an environment of their own each, and the model in the form that they read."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.host import cache_root


def peers_folder() -> Path:
    """What is made for the peers: gigabytes, and safe to delete."""
    return cache_root() / "peers"


def environment(name: str, installs: Sequence[Sequence[str]], removes: Sequence[str] = ()) -> Path:
    """The Python of a virtual environment, made when it is missing or was made from something else.

    Args:
        name: of its folder.
        installs: what `pip install` is given, one call after the other; pinned, so that results can be repeated.
        removes: packages that were installed along, but harm.

    Raises:
        UserError: the packages cannot be installed.
    """
    folder = peers_folder() / name
    python, stamp = folder / "bin" / "python", folder / "made-from"
    wanted = "\n".join(" ".join(install) for install in installs)
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"making the environment of {name} (once, some minutes) ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)], f"making an environment for {name}")
    for install in installs:
        run([str(python), "-m", "pip", "install", "-qq", *install], f"installing {name}")
    if removes:
        run([str(python), "-m", "pip", "uninstall", "-qq", "-y", *removes], f"installing {name}")
    stamp.write_text(wanted)
    return python


def hugging_face_folder(model: Any, name: str) -> Path:
    """The weights as float32 safetensors beside a `config.json`, for engines that read nothing else.

    Args:
        model: a transformers model.
        name: of the model.
    """
    folder = peers_folder() / "models" / f"{name}-float32"
    if not (folder / "config.json").is_file():
        model.save_pretrained(folder)
    return folder


def run(command: Sequence[str], doing: str) -> None:
    """Run a command to its end.

    Raises:
        UserError: it failed; with the last that it said.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"{doing} failed: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(f"{doing} failed: {said[-1] if said else f'exit status {done.returncode}'}")
