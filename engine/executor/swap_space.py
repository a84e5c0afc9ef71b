"""Host memory for the KV blocks of requests that were swapped out, and the copies there and back.

Every copy is issued on the device's current stream, where the steps' kernels run too, and a stream carries out its
work in order. No other synchronisation is needed:

- a step's copies out have read their blocks before its copies in and its kernels write to them;
- a host block is read back only after the copy that filled it, and filled anew only after it was read;
- staging memory may be given back at once, as whoever gets it next works on the same stream.

The host never looks at the contents, so it has nothing to wait for.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from engine.attention.kv_tensors import KVTensors
from engine.errors import OutOfDeviceMemory
from engine.executor.device import host_in_words
from engine.kv_cache.sizing import GIB

# Blocks travel in pieces of this size. On the CPU what is staged should stay in the cache; on a card a piece should
# take far longer than the launches around it.
_PIECE_BYTES = {"cpu": 4 << 20}
_PIECE_BYTES_ACCELERATOR = 32 << 20
# Rows are gathered and scattered as the widest integers that divide them: a kernel's work per element is the same.
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_PAGE_BYTES = 4096
_CUDA_HOST_REGISTER_PORTABLE = 1
_MEASUREMENTS = 5
_REMEDY = "lower swap_space, or choose preemption_mode=recompute, which needs none"


class SwapSpace:
    """Blocks `0 .. num_blocks - 1` in host memory, `[num_blocks, 2, layers, *page]`: one block lies in one piece.

    Pinned where the device is a card. On the CPU the system hands the memory out as it is first written.

    Args:
        num_blocks: how many, at least 1.
        kv: a KV cache whose blocks these are to hold; it is left as it was.

    Attributes:
        block_size: tokens per block.
        bytes_per_s: how fast blocks travel, measured in both directions; the slower one.

    Raises:
        OutOfDeviceMemory: the memory could not be pinned.
    """

    def __init__(self, num_blocks: int, kv: KVTensors) -> None:
        device = kv.keys.device
        self.num_blocks = num_blocks
        self.block_size = kv.block_size
        rows = _rows(kv.keys)
        self._blocks = _page_aligned((num_blocks, 2, kv.keys.shape[0], rows.shape[1]), rows.dtype)
        if device.type == "cuda":
            _pin(self._blocks, device)
            # Memory that is handed back while it is pinned stays locked, and its addresses could not be pinned again.
            weakref.finalize(self, _unpin, self._blocks, device).atexit = False
        self._piece = max(1, _piece_bytes(device) // self._blocks[0].nbytes)
        self.bytes_per_s = self._measure(kv)

    def copy_out(self, kv: KVTensors, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks of the cache to host memory: pairs of (block, host block), no host block twice."""
        for piece in self._pieces((host, block) for block, host in pairs):
            self._copy_piece_out(kv, piece)

    def copy_in(self, kv: KVTensors, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks back from host memory: pairs of (host block, block), no block twice."""
        for piece in self._pieces(pairs):
            self._copy_piece_in(kv, piece)

    # A piece's staging memory is given back as its function returns, before the next piece takes any.

    def _copy_piece_out(self, kv: KVTensors, piece: Sequence[tuple[int, int]]) -> None:
        hosts, index = self._locate(kv, piece)
        shape = (len(piece), self._blocks.shape[2], self._blocks.shape[3])
        gathered = [_rows(part).index_select(0, index).view(shape) for part in (kv.keys, kv.values)]
        staging = torch.stack(gathered, dim=1)
        for where, run in _runs(hosts):
            self._blocks[run].copy_(staging[where], non_blocking=True)

    def _copy_piece_in(self, kv: KVTensors, piece: Sequence[tuple[int, int]]) -> None:
        hosts, index = self._locate(kv, piece)
        shape = (len(piece), *self._blocks.shape[1:])
        staging = torch.empty(shape, dtype=self._blocks.dtype, device=kv.keys.device)
        for where, run in _runs(hosts):
            staging[where].copy_(self._blocks[run], non_blocking=True)
        for side, part in enumerate((kv.keys, kv.values)):
            _rows(part).index_copy_(0, index, staging[:, side].reshape(len(index), -1))

    def _pieces(self, pairs: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Pairs of (host block, block), cut by size. In the order of the host blocks, which makes for long runs."""
        ordered = sorted(pairs)
        for begin in range(0, len(ordered), self._piece):
            yield ordered[begin : begin + self._piece]

    def _locate(self, kv: KVTensors, piece: Sequence[tuple[int, int]]) -> tuple[list[int], torch.Tensor]:
        """Host blocks of a piece, and the rows `[blocks * layers]` of `_rows` that go with them."""
        num_layers, num_blocks = kv.keys.shape[:2]
        blocks = np.array([block for _, block in piece], dtype=np.int64)
        index = (blocks[:, None] + np.arange(num_layers) * num_blocks).reshape(-1)
        return [host for host, _ in piece], torch.from_numpy(index).to(kv.keys.device, non_blocking=True)

    def _measure(self, kv: KVTensors) -> float:
        count = min(self._piece, self.num_blocks, kv.num_blocks)
        # Every block comes back to where it was, so the cache is left as it was.
        pairs = [(block, block) for block in range(count)]
        slowest = 0.0
        for copy in (self.copy_out, self.copy_in):
            action = partial(copy, kv, pairs)
            action()
            slowest = max(slowest, min(_seconds(action, kv.keys.device) for _ in range(_MEASUREMENTS)))
        return count * self._blocks[0].nbytes / slowest


def staging_bytes(device: torch.device) -> int:
    """The most device memory that copies hold at a time, as long as a block is no larger than a piece.

    Twice a piece: the gathered keys and values, and the two side by side.
    """
    return 2 * _piece_bytes(device)


def require_host_memory(swap_bytes: int, kv_bytes: int, available: int) -> None:
    """See that host memory suffices, before any of it is taken.

    Args:
        swap_bytes: of the swap space.
        kv_bytes: of a KV cache that is to come from the same memory; 0 on a card.
        available: what the host, or this process's share of it, has left, in bytes.

    Raises:
        OutOfDeviceMemory: it does not.
    """
    if swap_bytes + kv_bytes <= available:
        return
    beside = f", and the KV cache takes {kv_bytes / GIB:.2f} GiB of the same memory" if kv_bytes else ""
    raise OutOfDeviceMemory(
        f"swap_space asks for {swap_bytes / GIB:.2f} GiB, but {host_in_words()} has {available / GIB:.2f} GiB "
        f"available{beside}: {_REMEDY}"
    )


def _piece_bytes(device: torch.device) -> int:
    return _PIECE_BYTES.get(device.type, _PIECE_BYTES_ACCELERATOR)


def _rows(part: torch.Tensor) -> torch.Tensor:
    """Keys or values `[layers, num_blocks, *page]` as one row of words per page, `[layers * num_blocks, words]`."""
    pages = part.view(part.shape[0] * part.shape[1], -1)
    return pages.view(_WORDS[math.gcd(pages.shape[1] * part.itemsize, max(_WORDS))])


def _runs(hosts: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Cut ascending numbers into runs of consecutive ones: where each lies in `hosts`, and which numbers it has."""
    begin = 0
    for end in range(1, len(hosts) + 1):
        if end == len(hosts) or hosts[end] != hosts[end - 1] + 1:
            yield slice(begin, end), slice(hosts[begin], hosts[end - 1] + 1)
            begin = end


def _page_aligned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Host memory that begins where a page does, since the system pins whole pages."""
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = torch.empty(num_bytes + _PAGE_BYTES, dtype=torch.uint8)
    start = -raw.data_ptr() % _PAGE_BYTES
    return raw[start : start + num_bytes].view(dtype).view(shape)


def _pin(memory: torch.Tensor, device: torch.device) -> None:
    """Lock memory where it lies, so that the card copies from and to it by itself.

    Not taken from torch's allocator of pinned memory: it rounds up to a power of two, and keeps what is freed.
    """
    cudart = torch.cuda.cudart()
    with torch.cuda.device(device):
        error = cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, _CUDA_HOST_REGISTER_PORTABLE)
        if error == cudart.cudaError.success:
            return
        # A failed call leaves its error behind for the next launch to find.
        with suppress(RuntimeError):
            torch.zeros(1, device=device)
    raise OutOfDeviceMemory(
        f"swap_space: {memory.nbytes / GIB:.2f} GiB of host memory could not be pinned "
        f"({cudart.cudaGetErrorString(error)}): {_REMEDY}"
    )


def _unpin(memory: torch.Tensor, device: torch.device) -> None:
    # Copies may still be under way. A device that has failed has none, and says so by raising.
    with suppress(RuntimeError), torch.cuda.device(device):
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def _seconds(action: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        begin_s = time.perf_counter()
        action()
        return time.perf_counter() - begin_s
    with torch.cuda.device(device):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        action()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
