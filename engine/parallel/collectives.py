"""What the ranks of one model tell one another while they compute: sums of activations and parts of the logits."""

import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from engine.parallel.sharding import Shard

HOST = "127.0.0.1"


class Collectives(Protocol):
    """The ranks of one model, as a layer sees them. Every rank makes the same calls in the same order.

    Attributes:
        shard: which rank this is, and of how many.
    """

    shard: Shard

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, in the place of this one's."""
        ...

    def gather(self, part: torch.Tensor) -> list[torch.Tensor] | None:
        """All ranks' tensors, of equal shape, in the order of the ranks. None on all ranks but 0."""
        ...


class RankGroup:
    """The ranks of one model over `torch.distributed`: NCCL between GPUs, gloo on the CPU. One at a time in a process.

    Args:
        shard: which rank this is.
        store: where the ranks find one another.
        device: of the tensors.
        timeout_s: on the CPU, how long a rank may keep the others waiting. NCCL has no deadline here: whoever watches
            over the processes ends them, see `engine.parallel.processes`.

    Raises:
        RuntimeError: the others did not come.
    """

    def __init__(self, shard: Shard, store: dist.Store, device: torch.device, timeout_s: float) -> None:
        self.shard = shard
        self._on_cuda = device.type == "cuda"
        self._is_silent = False
        if self._on_cuda:
            # Else NCCL's watchdog would end this very process when another one dies, with the run's records in it.
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
            torch.cuda.set_device(device)
        else:
            # All ranks are on this machine, whose own name need not lead anywhere.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        dist.init_process_group(
            "nccl" if self._on_cuda else "gloo",
            store=store,
            rank=shard.rank,
            world_size=shard.size,
            timeout=datetime.timedelta(seconds=timeout_s),
            device_id=device if self._on_cuda else None,
        )
        # Connections and their buffers come with the first use, and must be there when free memory is counted.
        self.sum(torch.zeros(1, device=device))
        self.gather(torch.zeros(1, device=device))

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """See `Collectives.sum`."""
        if not self._is_silent:
            dist.all_reduce(partial)
        return partial

    def gather(self, part: torch.Tensor) -> list[torch.Tensor] | None:
        """See `Collectives.gather`."""
        part = part.contiguous()
        if self.shard.rank:
            if not self._is_silent:
                dist.gather(part, dst=0)
            return None
        if self._is_silent:
            return [torch.zeros_like(part) for _ in range(self.shard.size)]
        parts = [torch.empty_like(part) for _ in range(self.shard.size)]
        dist.gather(part, parts, dst=0)
        return parts

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Within it nothing is exchanged, so that a rank may run a step, and fail, by itself: to measure its memory."""
        self._is_silent = True
        try:
            yield
        finally:
            self._is_silent = False

    def abort(self) -> None:
        """Let a collective that waits for a rank that is gone return. May be called from another thread.

        What it returns means nothing. On the CPU there is nothing to do: a closed connection ends it.
        """
        if self._on_cuda and dist.is_initialized():
            distributed_c10d._abort_process_group()

    def leave(self) -> None:
        """Give up the group, whatever has become of the other ranks."""
        if self._on_cuda:
            # NCCL's orderly end waits for all ranks.
            self.abort()
        elif dist.is_initialized():
            dist.destroy_process_group()
