"""Between text and token ids, with whatever tokenizer the model's files bring."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from engine.model.resolve import ModelSource
from engine.server.chat_template import ChatTemplate

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextTokenizer:
    """A model's tokenizer and chat template.

    Args:
        backend: of the `tokenizers` package.
        chat_template: None for a model that was not trained to chat.
    """

    def __init__(self, backend: "Tokenizer", chat_template: ChatTemplate | None) -> None:
        self._backend = backend
        self._chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the tokens that the model wants around it."""
        return self._backend.encode(text).ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[int]:
        """Token ids of a conversation; see `ChatTemplate.render`.

        Raises:
            UserError: the model has no template, or the template does not take the messages.
        """
        if self._chat_template is None:
            raise UserError("this model has no chat template: use /v1/completions")
        # The template writes the special tokens itself.
        return self._backend.encode(self._chat_template.render(messages, options), add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Their text; special tokens have none, and incomplete characters become U+FFFD."""
        return self._backend.decode(token_ids)


def load_tokenizer(source: ModelSource, say: Callable[[str], None]) -> TextTokenizer | None:
    """The tokenizer of a model; None where there is none, which `say` is told why.

    A server without a tokenizer takes and gives token ids alone.
    """
    if source.path is None:
        say(f"{source.name} has no tokenizer: prompts must be token ids")
        return None
    try:
        return _from_gguf(source.path) if source.weights == "gguf" else _from_folder(source.path)
    except UserError as error:
        say(f"{error}; prompts must be token ids")
        return None


def _from_gguf(path: Path) -> TextTokenizer:
    from engine.server.gguf_vocabulary import GGUFVocabulary

    vocabulary = GGUFVocabulary(path)
    return TextTokenizer(vocabulary.tokenizer, _template(vocabulary.chat_template, vocabulary.special_tokens))


def _from_folder(folder: Path) -> TextTokenizer:
    config = _read_json(folder / "tokenizer_config.json")
    # Files of older releases list the special tokens apart.
    named = _read_json(folder / "special_tokens_map.json") | config
    special_tokens = {
        name: token["content"] if isinstance(token, dict) else token
        for name in ("bos_token", "eos_token")
        if (token := named.get(name))
    }
    template_file = folder / "chat_template.jinja"
    template = _default_template(config.get("chat_template"))
    if template_file.is_file():
        template = template_file.read_text(encoding="utf-8")
    return TextTokenizer(_backend(folder), _template(template, special_tokens))


def _backend(folder: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises nothing more special
            raise UserError(f"{file} cannot be read: {error}") from error
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError(f"{folder} has no tokenizer.json, and transformers, which may make one, is missing") from None
    try:
        backend = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # whatever a model's own files lead to
        raise UserError(f"{folder} has no tokenizer.json, and none could be made: {error}") from error
    assert isinstance(backend, Tokenizer)
    return backend


def _default_template(value: Any) -> str | None:
    """Some models have several templates, by name."""
    if isinstance(value, list):
        return next((entry["template"] for entry in value if entry["name"] == "default"), None)
    return value


def _template(source: str | None, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    return None if source is None else ChatTemplate(source, special_tokens)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
