"""The memory that keys and values live in."""

import math
import mmap

import torch


class KVTensors:
    """Keys and values of all layers, `[layers, num_blocks, *page]` each, zero at first.

    Attributes:
        block_size: tokens per block.
        keys, values: the tensors; `keys[layer]` is contiguous.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        page_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (num_layers, num_blocks, *page_shape)
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)

    def wipe(self, blocks: torch.Tensor) -> None:
        """Fill blocks with zeros in every layer.

        Attention masks what lies behind a context, but a mask cannot undo the NaN or infinity of a former owner:
        a probability of zero times NaN is NaN. So a block is wiped when its first position is about to be written.
        """
        self.keys.index_fill_(1, blocks, 0)
        self.values.index_fill_(1, blocks, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # The system gives pages that are zero when first touched; torch would write every one of them now. Large pages
    # are touched for the first time 512 times as rarely.
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        raw = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes for keys and values: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        raw.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(raw, dtype=dtype).view(shape)
