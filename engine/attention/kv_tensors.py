"""The memory that keys and values live in."""

import math
import mmap

import torch

# bfloat16 reaches as far as float32.
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float16, torch.float8_e4m3fn)}


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
        for pages in (self.keys, self.values):
            as_words(pages).index_fill_(1, blocks, 0)


def to_pages(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers as the cache keeps them; what is too large becomes the largest, as an infinite key spoils a softmax."""
    largest = _LARGEST.get(dtype)
    if dtype == numbers.dtype or largest is None:
        return numbers.to(dtype)
    # In float32, since bfloat16 would round the limit itself up.
    return numbers.float().clamp(-largest, largest).to(dtype)


def as_words(pages: torch.Tensor) -> torch.Tensor:
    """The same memory, to be copied and filled: torch does neither with numbers of 8 bits."""
    return pages.view(torch.int8) if pages.itemsize == 1 else pages


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
