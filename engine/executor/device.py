"""Which device, what it is called, which number type on it, and what its lack of memory looks like."""

import gc
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import psutil
import torch

from engine.errors import OutOfDeviceMemory, UserError
from engine.host import cpu_name
from engine.model.checkpoint import CheckpointDtype

_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_KV_DTYPES: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}

# What the CPU's allocator, the CUDA driver and cuBLAS say where torch raises no error of its own kind.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "[CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)

# What this process may take of the host's memory in all; see `share_host`.
_share_bytes: int | None = None


def resolve_device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N` as a device that is there.

    Raises:
        UserError: another name, or no such card.
    """
    kind, _, number = name.partition(":")
    if name == "cpu":
        return torch.device("cpu")
    if kind != "cuda" or (number and not number.isdecimal()) or name.endswith(":"):
        raise UserError(f"device {name!r} is not possible: choose cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        found = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0" if count else "no CUDA device"
        raise UserError(f"device {name!r} is not there: torch {torch.__version__} finds {found}; cpu always works")
    return torch.device("cuda", int(number or 0))


def resolve_dtype(name: str, device: torch.device, checkpoint: CheckpointDtype) -> torch.dtype:
    """The number type to compute in; `auto` is float32 on the CPU, else the checkpoint's 16-bit type or bfloat16.

    Raises:
        UserError: another name.
    """
    if name == "auto":
        automatic = "float32" if device.type == "cpu" else checkpoint if checkpoint != "float32" else "bfloat16"
        return _DTYPES[automatic]
    if name not in _DTYPES:
        raise UserError(f"dtype={name!r} is not possible: choose one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def resolve_kv_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """What the KV cache is kept in beside a model of `dtype`, which is what `auto` means.

    Raises:
        UserError: another name.
    """
    if name == "auto":
        return dtype
    if name not in _KV_DTYPES:
        raise UserError(f"kv_cache_dtype={name!r} is not possible: choose one of auto, {', '.join(_KV_DTYPES)}")
    return _KV_DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """The name that options have for a type, such as `float32` or `fp8`."""
    return next((name for name, kind in _KV_DTYPES.items() if kind == dtype), str(dtype).removeprefix("torch."))


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a card the current one, which is where Triton launches and events are recorded."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def describe_device(device: torch.device) -> str:
    """The device's name for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({cpu_name()}, {threads} thread{'s' if threads > 1 else ''})"


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Arrays of one type to a device, in one copy that the host does not wait for.

    Pinned memory comes from torch's pool, which hands it out again only when the copy from it is done.
    """
    lengths = [len(array) for array in arrays]
    dtype = torch.from_numpy(arrays[0][:0]).dtype
    flat = torch.empty(sum(lengths), dtype=dtype, pin_memory=device.type == "cuda")
    np.concatenate(arrays, out=flat.numpy())
    return list(flat.to(device, non_blocking=True).split(lengths))


def share_host(share_bytes: int) -> None:
    """From now on this process counts on no more of the host's memory than that, with what it has taken already.

    Several that are alike have the same, whichever of them looks first, where what is available would shrink for those
    that look later.
    """
    global _share_bytes
    _share_bytes = share_bytes


def host_in_words() -> str:
    """What the memory is that `available_host_bytes` speaks of."""
    return "the host" if _share_bytes is None else "its share of the host"


def available_host_bytes() -> int:
    """Physical memory that this process could still take, a container's limit included."""
    available = psutil.virtual_memory().available
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0].isdecimal():
        # Files that were read count as used, weights among them, yet make way for whoever asks.
        stat = dict(line.split() for line in _lines("/sys/fs/cgroup/memory.stat"))
        reclaimable = int(stat.get("inactive_file", 0))
        available = min(available, max(int(limit[0]) - int(used[0]) + reclaimable, 0))
    if _share_bytes is None:
        return available
    return min(available, max(0, _share_bytes - psutil.Process().memory_full_info().uss))


@contextmanager
def memory_errors_translated(device: torch.device, doing: str) -> Iterator[None]:
    """Turn the ways in which torch and numpy run out of memory into one, after giving back what was taken.

    Args:
        device: whose memory it is.
        doing: what needed it, for the message.

    Raises:
        OutOfDeviceMemory: in their place.
    """
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # The failed call's frames hold the tensors that filled the memory.
        traceback.clear_frames(error.__traceback__)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    raise OutOfDeviceMemory(f"{device} ran out of memory while {doing}: {reason}") from None


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(s in str(error) for s in _OUT_OF_MEMORY)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
