"""Compiles the kernels for this very machine when they are first needed, and keeps the result in the cache folder.

Half a dozen seconds once; afterwards the library is opened in a millisecond. It shares torch's threads: both are
linked with the same OpenMP runtime, so that no second pool competes for the cores.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from engine.host import cache_root, cpu_features, cpu_name

_FOLDER = Path(__file__).parent
_SOURCES = ("linear.cpp", "rows.cpp", "attention.cpp")
_HEADERS = ("lanes.h",)
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
_TIMEOUT_S = 300

_POINTER, _COUNT, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "lanes": (),
    "linear": (_POINTER, _COUNT, _COUNT, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER, _INT),
    "linear_gated": (_POINTER, _COUNT, _COUNT, _POINTER, _COUNT, _POINTER, _INT),
    "rms_norm": (_POINTER, _COUNT, _COUNT, _COUNT, _COUNT, _POINTER, _FLOAT, _POINTER, _INT),
    "rotate": (_POINTER, _COUNT, _COUNT, _COUNT, _COUNT, _POINTER, _INT),
    "attend": (
        *(_POINTER, _COUNT, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _COUNT, _POINTER, _COUNT),
        *(_COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _INT),
    ),
    "write_pages": (
        *(_POINTER, _COUNT, _POINTER, _COUNT, _POINTER, _POINTER, _INT, _POINTER),
        *(_COUNT, _COUNT, _COUNT, _COUNT, _INT),
    ),
}


class NoNativeKernels(Exception):
    """They cannot be compiled or opened here; the text says why."""


@cache
def native_library() -> ctypes.CDLL | None:
    """The kernels, compiled now if they are not in the cache; None where that is not possible."""
    try:
        return open_library(compile_library(cache_root() / "native"))
    except NoNativeKernels:
        return None


def why_not_native() -> str | None:
    """Why there are no native kernels, for people; None where there are."""
    if native_library() is not None:
        return None
    try:
        open_library(compile_library(cache_root() / "native"))
    except NoNativeKernels as error:
        return str(error)
    return None


def compile_library(folder: Path, extra_flags: Sequence[str] = ()) -> Path:
    """Compile the kernels into `folder`, unless they lie there already.

    Args:
        extra_flags: for the compiler, behind the usual ones.

    Returns:
        The shared library.

    Raises:
        NoNativeKernels: no compiler, a compiler that fails, or a folder that cannot be written.
    """
    compiler = _find_compiler()
    command = [*compiler, *_FLAGS, *extra_flags]
    library = folder / f"kernels-{_fingerprint(command)}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="compile-", dir=folder) as scratch:
            made = Path(scratch) / library.name
            sources = [str(_FOLDER / source) for source in _SOURCES]
            done = subprocess.run(
                [*command, *sources, "-o", str(made)], capture_output=True, text=True, timeout=_TIMEOUT_S
            )
            if done.returncode:
                raise NoNativeKernels(f"{shlex.join(compiler)} could not compile them: {_first_error(done.stderr)}")
            made.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNativeKernels(f"they could not be compiled into {folder}: {error}") from error
    return library


def open_library(path: Path) -> ctypes.CDLL:
    """Open a compiled library and say what its functions take.

    Raises:
        NoNativeKernels: it cannot be opened here.
    """
    # torch brings its own copy of the OpenMP runtime; whoever loads first decides which one both use.
    import torch  # noqa: F401

    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoNativeKernels(f"the compiled kernels cannot be opened: {error}") from error
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = _INT if name == "lanes" else None
    return library


def _find_compiler() -> list[str]:
    """`$CXX` where that is set, as make and its kin take it."""
    if named := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(named[0]) is None:
            raise NoNativeKernels(f"the C++ compiler {named[0]!r}, which CXX names, was not found")
        return named
    for name in _COMPILERS:
        if shutil.which(name):
            return [name]
    raise NoNativeKernels(f"no C++ compiler was found (looked for {', '.join(_COMPILERS)}; CXX names another)")


def _fingerprint(command: Sequence[str]) -> str:
    """Of all that the library depends on: sources, command, and the machine that it was made for."""
    digest = hashlib.sha256()
    for part in (*command, shutil.which(command[0]) or "", platform.machine(), cpu_name(), cpu_features()):
        digest.update(part.encode() + b"\0")
    for name in (*_SOURCES, *_HEADERS):
        digest.update((_FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


def _first_error(text: str) -> str:
    lines = text.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "it did not say why")
