"""A model's weights, one tensor at a time, so that memory never holds much more than one copy."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from engine.errors import UserError
from engine.model.arch import parameter_shapes
from engine.model.resolve import ModelSource

# Spread of the random weights, as most of these families are initialised.
_INIT_STD = 0.02


Cut = Callable[[str], tuple[slice, ...]]
"""Which part of a weight, by its name, is wanted: an index of the tensor; empty for all of it."""


def _all_of_it(name: str) -> tuple[slice, ...]:
    return ()


def load_weights(
    source: ModelSource, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0, cut: Cut = _all_of_it
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight that `parameter_shapes(source.arch)` names, in no particular order.

    Args:
        source: what `resolve_model` found; its checkpoint has been checked there.
        dtype: type to convert to.
        device: where the tensors are made.
        seed: of random weights. The same seed gives the same weights on the same kind of device.
        cut: the part of each weight to load. Of safetensors files nothing else is read; other sources make the whole
            tensor first, so that a part holds what it would hold in the whole.

    Yields:
        Hugging Face name and tensor, `[out, in]` for matrices. The tensor owns its memory.

    Raises:
        UserError: a file that can no longer be read.
    """
    yield from _LOADERS[source.weights](source, dtype, torch.device(device), seed, cut)


def _from_safetensors(
    source: ModelSource, dtype: torch.dtype, device: torch.device, seed: int, cut: Cut
) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    from engine.model.safetensors_folder import weight_files

    assert source.path is not None
    wanted = parameter_shapes(source.arch)
    for file in weight_files(source.path):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    if name in wanted:
                        # A copy, because what safetensors hands out is a window on the file.
                        part = tensors.get_slice(name)[cut(name)] if cut(name) else tensors.get_tensor(name)
                        yield name, part.to(device=device, dtype=dtype, copy=True).contiguous()
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file}: reading its weights failed ({error}); download it again") from error


def _from_gguf(
    source: ModelSource, dtype: torch.dtype, device: torch.device, seed: int, cut: Cut
) -> Iterator[tuple[str, torch.Tensor]]:
    from engine.model.gguf_file import read_gguf

    assert source.path is not None
    for name, values in read_gguf(source.path, source.arch.name).weights():
        part = np.ascontiguousarray(values[cut(name)]) if cut(name) else values
        yield name, torch.from_numpy(part).to(device=device, dtype=dtype)


def _random(
    source: ModelSource, dtype: torch.dtype, device: torch.device, seed: int, cut: Cut
) -> Iterator[tuple[str, torch.Tensor]]:
    """Normal weights; those that write to the residual stream are divided by `sqrt(2 layers)`.

    That division (Radford et al. 2019, GPT-2) keeps the stream's variance the same at any depth, so that
    16-bit activations stay finite through 80 layers.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    residual_std = _INIT_STD / math.sqrt(2 * source.arch.num_layers)
    for name, shape in parameter_shapes(source.arch).items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
        else:
            std = residual_std if name.endswith(("o_proj.weight", "down_proj.weight")) else _INIT_STD
            tensor.normal_(0.0, std, generator=generator)
        # A copy, so that the whole is given back.
        yield name, tensor[cut(name)].clone() if cut(name) else tensor


_Loader = Callable[[ModelSource, torch.dtype, torch.device, int, Cut], Iterator[tuple[str, torch.Tensor]]]
_LOADERS: dict[str, _Loader] = {
    "safetensors": _from_safetensors,
    "gguf": _from_gguf,
    "random": _random,
}
