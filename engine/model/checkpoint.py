"""The check that every checkpoint passes before anything is loaded: the right tensors, in the right shapes."""

from collections.abc import Mapping
from typing import Literal

from engine.errors import UserError
from engine.model.arch import ModelArch, parameter_shapes

CheckpointDtype = Literal["float32", "bfloat16", "float16"]


def is_redundant(arch: ModelArch, name: str) -> bool:
    """Whether a tensor may lie in a checkpoint without being a weight of its own.

    Some files carry the tied output layer a second time, older ones the rotary frequencies.
    """
    return name.endswith("rotary_emb.inv_freq") or (arch.tie_word_embeddings and name == "lm_head.weight")


def check_parameters(arch: ModelArch, found: Mapping[str, tuple[int, ...]], where: object) -> None:
    """Compare a checkpoint's tensors, by Hugging Face name, with what `arch` needs.

    Raises:
        UserError: a tensor is missing, is surplus or has the wrong shape; names the first one and `where` it lies.
    """
    expected = parameter_shapes(arch)
    if missing := [name for name in expected if name not in found]:
        raise UserError(
            f"{where}: tensor {missing[0]} is missing{_and_more(missing)}; "
            f"a {arch.family} model of {arch.num_layers} layers needs {len(expected)} tensors"
        )
    if surplus := [name for name in found if name not in expected and not is_redundant(arch, name)]:
        raise UserError(
            f"{where}: tensor {surplus[0]} is no part of a {arch.family} model of {arch.num_layers} layers"
            f"{_and_more(surplus)}; the weights must belong to the configuration beside them"
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise UserError(
                f"{where}: tensor {name} has shape {list(found[name])}, but its configuration asks for {list(shape)}"
            )


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
