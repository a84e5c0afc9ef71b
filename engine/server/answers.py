"""The bodies of answers: of OpenAI's shapes, whole or in chunks."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

from engine.server.generation import Choice, Generation, Piece, Usage

DONE = "data: [DONE]\n\n"


class AnswerShape(Protocol):
    """What tells the endpoints apart.

    Attributes:
        id_prefix: of the answer's id.
        whole, chunk: the `object` of a whole answer, and of a part of one.
    """

    id_prefix: str
    whole: str
    chunk: str

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A choice's own part of a whole answer."""
        ...

    def delta(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        """Its part of a chunk."""
        ...


class CompletionShape:
    """`/v1/completions`."""

    id_prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def choice(self, choice: Choice) -> dict[str, Any]:
        return {"text": choice.text}

    def delta(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        return {"text": piece.text}


class ChatShape:
    """`/v1/chat/completions`."""

    id_prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, choice: Choice) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": choice.text}}

    def delta(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if is_first else {}
        return {"delta": {**role, "content": piece.text}}


class AnswerWriter:
    """Writes one answer.

    Args:
        shape: of the endpoint.
        model: name under which the model is served.
        with_token_ids: beside the text, as vLLM's `return_token_ids`.
        include_usage: close a stream with its usage.
    """

    def __init__(self, shape: AnswerShape, model: str, *, with_token_ids: bool, include_usage: bool) -> None:
        self.id = f"{shape.id_prefix}-{uuid.uuid4().hex}"
        self._shape = shape
        self._model = model
        self._created = int(time.time())
        self._with_token_ids = with_token_ids
        self._include_usage = include_usage
        self._begun: set[int] = set()

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self._choice(choice) for choice in generation.choices]
        return self._body(self._shape.whole, choices) | {"usage": usage_body(generation.usage())}

    def chunk(self, piece: Piece) -> str:
        """One server-sent event."""
        delta = self._shape.delta(piece, piece.index not in self._begun)
        self._begun.add(piece.index)
        choice = {"index": piece.index, **delta, "logprobs": None, "finish_reason": piece.finish_reason}
        if self._with_token_ids:
            choice["token_ids"] = list(piece.token_ids)
        usage = {"usage": None} if self._include_usage else {}
        return _event(self._body(self._shape.chunk, [choice]) | usage)

    def end(self, usage: Usage) -> str:
        """What closes a stream."""
        if not self._include_usage:
            return DONE
        return _event(self._body(self._shape.chunk, []) | {"usage": usage_body(usage)}) + DONE

    def _choice(self, choice: Choice) -> dict[str, Any]:
        own = self._shape.choice(choice)
        body = {"index": choice.index, **own, "logprobs": None, "finish_reason": choice.finish_reason}
        if self._with_token_ids:
            body |= {"token_ids": choice.token_ids, "prompt_token_ids": choice.request.prompt_token_ids}
        return body

    def _body(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


def error_event(body: dict[str, Any]) -> str:
    """What ends a stream that broke off after its status was sent."""
    return _event(body) + DONE


def usage_body(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
