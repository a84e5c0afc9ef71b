"""A request's text while its tokens come in: whole characters only, and nothing from a stop string on."""

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
# The beginning of a character is at most a few of them. Bytes that make none for longer are no text.
_MAX_BROKEN = 8
# A token's text may depend on the ones before it: many tokenizers drop the space at the beginning of a text.
_CONTEXT_TOKENS = 6


class TextStream:
    """Decodes tokens as they come, and watches for stop strings.

    Invariant: all that `push` and `finish` returned is the beginning of the whole text, without a broken character at
    its end, and holds no stop string.

    Args:
        decode: token ids to text, with U+FFFD for incomplete characters.
        prompt: its last tokens are the context that the first ones are decoded in.
        stop: strings that end the text; they are no part of it.

    Attributes:
        stopped_by: the stop string that was found; None so far.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._decode = decode
        self._set_context(list(prompt[-_CONTEXT_TOKENS:]))
        self._pending: list[int] = []  # tokens after the context, of whose text so much is out:
        self._num_taken = 0
        self._stop = stop
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now and was not before."""
        self._pending += token_ids
        text = self._pending_text()
        whole = text.rstrip(_BROKEN)
        if len(text) - len(whole) > _MAX_BROKEN:
            whole = text
        taken = whole[self._num_taken :]
        self._num_taken += len(taken)
        if text and whole == text:
            self._set_context(self._pending)
            self._pending, self._num_taken = [], 0
        return self._up_to_stop(taken)

    def finish(self) -> str:
        """What was held back, when no more tokens come; a character that lacks bytes is dropped."""
        held, self._held = self._held, ""
        return held

    def _set_context(self, token_ids: list[int]) -> None:
        self._context = token_ids
        self._context_length = len(self._decode(token_ids))

    def _pending_text(self) -> str:
        return self._decode(self._context + self._pending)[self._context_length :]

    def _up_to_stop(self, text: str) -> str:
        """`text` without what may yet turn out to be a stop string, which is held back."""
        text = self._held + text
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self._held = ""
            return text[:at]
        longest = max(map(len, self._stop), default=1) - 1
        held = next((n for n in range(min(longest, len(text)), 0, -1) if self._may_begin_stop(text[-n:])), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _may_begin_stop(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stop)
