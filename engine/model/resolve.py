"""From the name that a user gives to a model that can be loaded. Imports no torch and loads no weight."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import UserError
from engine.model import fetch, hub
from engine.model.arch import ModelArch
from engine.model.checkpoint import CheckpointDtype
from engine.model.gguf_file import read_gguf
from engine.model.presets import nearest_preset, preset_arch
from engine.model.safetensors_folder import read_folder

DEFAULT_MODEL = "smollm2-135m"
RANDOM_PREFIX = "random:"
ACCEPTED = (
    f"accepted are {DEFAULT_MODEL}, a folder with config.json and .safetensors files, a .gguf file, "
    "a Hugging Face id (organisation/model), or random:NAME"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found and checked.

    Attributes:
        name: as the user gave it.
        arch: its shape.
        weights: how its weights come.
        path: the folder or file; None for random weights.
        pretrained: its answers mean something; random weights only have the speed.
        note: what the user should know before reading a result; None for nothing.
        checkpoint_dtype: type of the stored weights; for random ones that of the published release.
    """

    name: str
    arch: ModelArch
    weights: Literal["safetensors", "gguf", "random"]
    path: Path | None
    pretrained: bool
    note: str | None
    checkpoint_dtype: CheckpointDtype

    def longest_request(self, asked: int | None) -> int:
        """Tokens of the longest request, where `asked` is None the most that the model takes.

        Raises:
            UserError: a length that it cannot have.
        """
        limit = self.arch.max_position_embeddings
        longest = limit if asked is None else asked
        if not 2 <= longest <= limit:
            raise UserError(f"max_model_len={longest} is not possible: {self.name} takes from 2 to {limit} tokens")
        return longest


def _say_nothing(text: str) -> None:
    pass


def resolve_model(name: str, say: Callable[[str], None] = _say_nothing) -> ModelSource:
    """Find the model called `name` and check its files; downloads where the name asks for it.

    Args:
        name: `smollm2-135m`, a folder, a `.gguf` file, a Hugging Face id, or `random:NAME`; a local path goes
            before a Hugging Face id of the same spelling.
        say: told in one line when something is downloaded.

    Raises:
        UserError: an unknown name, a model that is not supported, or a missing or damaged file.

    Example:
        >>> resolve_model("random:llama-3.1-8b").arch.num_layers
        32
    """
    if name.lower().startswith(RANDOM_PREFIX):
        return _random(name[len(RANDOM_PREFIX) :], name)
    if name.lower() == DEFAULT_MODEL:
        return _default(say)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _folder(path, name)
    if path.suffix == ".gguf":
        return _gguf(path, name)
    if path.is_file():
        raise UserError(f"model {name!r} is a file, but no .gguf file; {ACCEPTED}")
    if hub.is_hub_id(name):
        return _folder(hub.snapshot(name, say), name)
    nearest = nearest_preset(name)
    hint = f"did you mean {RANDOM_PREFIX}{nearest}? " if nearest else ""
    raise UserError(
        f"model {name!r} is neither a known name nor a file or folder here: {hint}{ACCEPTED[0].upper()}{ACCEPTED[1:]}"
    )


def _folder(path: Path, name: str) -> ModelSource:
    arch, dtype = read_folder(path, name)
    return ModelSource(name, arch, "safetensors", path, pretrained=True, note=None, checkpoint_dtype=dtype)


def _gguf(path: Path, name: str) -> ModelSource:
    if not path.is_file():
        raise UserError(f"model {name!r}: there is no such file")
    model = read_gguf(path, name)
    note = "weights decoded from a GGUF file: the speed is that of the decoded type"
    return ModelSource(name, model.arch, "gguf", path, True, note, model.checkpoint_dtype)


def _random(preset: str, name: str) -> ModelSource:
    arch = preset_arch(preset)
    note = f"random weights in the shape of {arch.name}: speed and memory are those of the model, its answers are noise"
    return ModelSource(name, arch, "random", None, pretrained=False, note=note, checkpoint_dtype="bfloat16")


def _default(say: Callable[[str], None]) -> ModelSource:
    try:
        return _gguf(fetch.smollm2_gguf(say), DEFAULT_MODEL)
    except fetch.FetchError as error:
        shape = _random(DEFAULT_MODEL, f"{RANDOM_PREFIX}{DEFAULT_MODEL}")
        note = f"the weights of {DEFAULT_MODEL} could not be had ({error}); {shape.note}"
        return ModelSource(shape.name, shape.arch, "random", None, False, note, shape.checkpoint_dtype)
