"""Model folders from the Hugging Face hub, through its own client and its own cache."""

import re
from collections.abc import Callable
from pathlib import Path

from engine.errors import UserError
from engine.model.safetensors_folder import weight_files

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ["*.json", "*.safetensors", "tokenizer*", "*.jinja", "merges.txt"]
# The same weights once more, in their makers' own layout.
_UNWANTED = ["consolidated*", "original/*"]


def is_hub_id(name: str) -> bool:
    """Whether `name` reads as `organisation/model`."""
    return _ID.fullmatch(name) is not None


def snapshot(model_id: str, say: Callable[[str], None]) -> Path:
    """The folder of a hub model: from the local cache when it is whole there, else downloaded.

    `HF_HUB_OFFLINE`, `HF_HOME`, `HF_TOKEN` and the other variables of the client hold.

    Args:
        model_id: `organisation/model`.
        say: told in one line before a download.

    Raises:
        UserError: not in the cache and not to be had.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(model_id, local_files_only=True, allow_patterns=_WANTED))
        weight_files(folder)
        return folder
    except (OSError, UserError):
        say(f"downloading {model_id} from the Hugging Face hub")
    try:
        return Path(snapshot_download(model_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except Exception as error:  # the client's errors, those of its HTTP library among them, share no base class
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"model {model_id!r} is not in the local cache and could not be downloaded: {reason}. "
            "Give a local folder or .gguf file, or random:NAME for the speed of a shape without its weights"
        ) from error
