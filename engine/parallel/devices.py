"""Which devices several processes run on, and what each may take of a machine that they share."""

import os

import torch

from engine.errors import UserError
from engine.executor.device import available_host_bytes, resolve_dtype
from engine.executor.memory import default_cpu_total
from engine.model.resolve import ModelSource
from engine.parallel.sharding import WHOLE, Shard

# Processes that may share a single thread: it is slow, and enough to try it out.
_ALWAYS = 2


def several_devices(option: str, size: int, device: str) -> list[str]:
    """The device of each of `size` processes: `cuda:0` and those after it, or the CPU for all.

    Args:
        option: that asks for so many, for the message.
        device: `cuda` or `cpu`.

    Raises:
        UserError: there are not so many, or `device` names a single one.
    """
    if device == "cpu":
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if size > max(_ALWAYS, threads):
            raise UserError(
                f"{option}={size} is not possible: the CPU has {threads} thread{'' if threads == 1 else 's'}, and each "
                f"process needs one; choose at most {max(_ALWAYS, threads)}"
            )
        return ["cpu"] * size
    if device != "cuda":
        raise UserError(
            f"{option}={size} is not possible with device {device!r}, which is one card: "
            f"choose cuda, for cuda:0 to cuda:{size - 1}"
        )
    count = torch.cuda.device_count()
    if size > count:
        raise UserError(
            f"{option}={size} is not possible: torch {torch.__version__} finds {count} CUDA "
            f"device{'' if count == 1 else 's'}"
        )
    return [f"cuda:{number}" for number in range(size)]


def share_of_threads(size: int) -> int:
    """Threads of each of `size` processes, for arithmetic on the CPU."""
    return max(1, torch.get_num_threads() // size)


def share_of_host(source: ModelSource, size: int, dtype: str, shard: Shard = WHOLE) -> int:
    """What counts as the total memory of each of `size` processes on the CPU, in bytes.

    Args:
        shard: the part of the model that each of them holds.
    """
    element = resolve_dtype(dtype, torch.device("cpu"), source.checkpoint_dtype).itemsize
    return default_cpu_total(shard.weight_bytes(source.arch, element), available_host_bytes() // size)
