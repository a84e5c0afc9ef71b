"""The memory that keys and values live in."""

import math

import numpy as np
import torch

_ALIGNMENT = 64


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
    # numpy asks the system for pages that are zero when first touched; torch would write every one of them now.
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[start : start + num_bytes]).view(dtype).view(shape)
