"""The tokenizer that a GGUF file carries: its vocabulary, merge rules and chat template.

Byte-level BPE only, which is what Llama 3, Qwen and SmolLM have. How text is cut into words before the merges is not in
the file; it only names the cut (`tokenizer.ggml.pre`), and each model's own tokenizer defines it.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL, _USER_DEFINED = 3, 4  # of llama.cpp's token types
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_3_DIGITS = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_1_DIGIT = _WORDS_3_DIGITS.replace("{1,3}", "")


class GGUFVocabulary:
    """What a file says of its tokens.

    Attributes:
        tokenizer: ready to use.
        chat_template: Jinja source; None when the file has none.
        special_tokens: `bos_token` and `eos_token`, as far as the file names them.

    Raises:
        UserError: a kind of tokenizer that is not supported.
    """

    def __init__(self, path: Path) -> None:
        from engine.model.gguf_header import HeaderReader

        self._path = path
        self._reader = HeaderReader(path)
        kind, cut = self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.pre")
        if kind != "gpt2" or cut not in _CUTS:
            raise UserError(
                f"{path}: a tokenizer of kind {kind!r}, {cut!r} is not supported; supported are gpt2 with "
                f"{', '.join(_CUTS)}"
            )
        tokens = list(self._strings("tokenizer.ggml.tokens"))
        bos, eos = (self._value(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
        self.special_tokens = {
            f"{name}_token": tokens[token_id] for name, token_id in (("bos", bos), ("eos", eos)) if token_id is not None
        }
        self.chat_template: str | None = self._value("tokenizer.chat_template")
        self.tokenizer = self._build(tokens, cut, bos)

    def _build(self, tokens: list[str], cut: str, bos: int | None) -> "Tokenizer":
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

        rules = (rule.partition(" ") for rule in self._strings("tokenizer.ggml.merges"))
        merges = [(left, right) for left, _, right in rules]
        vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut == "llama-bpe"))
        if cut == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[cut]())
        tokenizer.decoder = decoders.ByteLevel()
        added = {_CONTROL: tokenizer.add_special_tokens, _USER_DEFINED: tokenizer.add_tokens}
        for kind, add in added.items():
            add(
                [
                    AddedToken(token, special=kind == _CONTROL, normalized=False)
                    for token, its_kind in zip(tokens, self._int32s("tokenizer.ggml.token_type"), strict=True)
                    if its_kind == kind
                ]
            )
        adds_bos = self._value("tokenizer.ggml.add_bos_token", default=cut == "llama-bpe")
        if adds_bos and bos is not None:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
            )
        return tokenizer

    def _value(self, key: str, default: Any = None) -> Any:
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def _list(self, key: str) -> tuple[int, int]:
        """Number of items of a list, which the reader steps over, and where the first lies."""
        field = self._reader.fields.get(key)
        if field is None:
            raise UserError(f"{self._path}: {key} is missing")
        # Before the items: the key with its length, the types of value and item, the number of items.
        start = field.offset + 8 + len(key.encode()) + 4
        _, count = struct.unpack_from("=IQ", self._reader.data.data, start)
        return count, start + struct.calcsize("=IQ")

    def _strings(self, key: str) -> Iterator[str]:
        view = self._reader.data.data
        count, at = self._list(key)
        for _ in range(count):
            (length,) = struct.unpack_from("=Q", view, at)
            yield bytes(view[at + 8 : at + 8 + length]).decode("utf-8")
            at += 8 + length

    def _int32s(self, key: str) -> tuple[int, ...]:
        count, at = self._list(key)
        return struct.unpack_from(f"={count}i", self._reader.data.data, at)


def _gpt2() -> "list[PreTokenizer]":
    from tokenizers import pre_tokenizers

    return [pre_tokenizers.ByteLevel(add_prefix_space=False)]


def _smollm() -> "list[PreTokenizer]":
    from tokenizers import pre_tokenizers

    return [pre_tokenizers.Digits(individual_digits=True), *_gpt2()]


def _by_words(pattern: str) -> "list[PreTokenizer]":
    from tokenizers import Regex, pre_tokenizers

    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


_CUTS = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _by_words(_WORDS_3_DIGITS),
    "qwen2": lambda: _by_words(_WORDS_1_DIGIT),
}
