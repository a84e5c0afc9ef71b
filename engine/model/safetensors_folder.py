"""A model folder as Hugging Face lays it out: `config.json` and one or several `.safetensors` files."""

import json
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.model.arch import ModelArch
from engine.model.checkpoint import CheckpointDtype, check_parameters, is_redundant
from engine.model.hf_config import arch_from_hf_config, eos_ids

INDEX = "model.safetensors.index.json"
_DTYPES: dict[str, CheckpointDtype] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def read_folder(folder: Path, name: str) -> tuple[ModelArch, CheckpointDtype]:
    """Read what a folder holds from its configuration and the headers of its weights; loads no weight.

    Returns:
        The architecture, whose end-of-sequence tokens include those of `generation_config.json` (chat models
        list the end of a turn only there), and the type of the weights.

    Raises:
        UserError: a file is missing or damaged, or the tensors are not those of the configuration.
    """
    files = weight_files(folder)
    config = _read_json(folder / "config.json")
    if (folder / "generation_config.json").is_file():
        generation = _read_json(folder / "generation_config.json")
        both = (*eos_ids(config, name), *eos_ids(generation, name))
        config = {**config, "eos_token_id": list(dict.fromkeys(both))}
    arch = arch_from_hf_config(config, name)

    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    for file in files:
        _read_header(file, shapes, dtypes)
    check_parameters(arch, shapes, folder if len(files) > 1 else files[0])
    for tensor, dtype in dtypes.items():
        if dtype not in _DTYPES and not is_redundant(arch, tensor):
            raise UserError(f"{folder}: tensor {tensor} is of type {dtype}; supported are {', '.join(_DTYPES)}")
    return arch, _DTYPES[dtypes["model.embed_tokens.weight"]]


def weight_files(folder: Path) -> list[Path]:
    """The folder's weights: the shards that the index names, or the one file.

    Raises:
        UserError: no configuration, no weights, a shard that is missing, or several files without an index.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: config.json is missing; a model folder holds config.json and .safetensors files")
    if (folder / INDEX).is_file():
        weight_map = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or {type(shard) for shard in weight_map.values()} != {str}:
            raise UserError(f"{folder / INDEX}: its weight_map does not name the shards; download the file again")
        files = [folder / shard for shard in sorted(set(weight_map.values()))]
        if absent := [file for file in files if not file.is_file()]:
            raise UserError(f"{absent[0]}: this shard is missing, {INDEX} names {len(files)}; download it")
        return files
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        raise UserError(f"{folder}: {len(files)} .safetensors files but no {INDEX} that says which to use")
    if not files:
        others = [file.name for pattern in ("*.bin", "*.gguf", "*.pth") for file in sorted(folder.glob(pattern))]
        hint = f"; it has {others[0]}: convert it, or name the file itself if it is a .gguf" if others else ""
        raise UserError(f"{folder}: it has no .safetensors file{hint}")
    return files


def _read_header(file: Path, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str]) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            for tensor in tensors.keys():  # noqa: SIM118 (not a mapping)
                header = tensors.get_slice(tensor)
                shapes[tensor] = tuple(header.get_shape())
                dtypes[tensor] = header.get_dtype()
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: not a whole safetensors file ({error}); download it again") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: it holds a {type(content).__name__}, where a JSON object is due")
    return content
