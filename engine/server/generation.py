"""The requests of one HTTP call, from submission to the last piece of text."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from engine.request import FinishReason, Request
from engine.scheduler.plan import TokenEvent
from engine.server.faults import QueueTimedOut
from engine.server.text_stream import TextStream
from engine.server.worker import EngineWorker, Inbox


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds to a choice.

    Attributes:
        index: of the choice.
        text: may be empty; see `TextStream`.
        finish_reason: `stop`, `length` or `abort` on the choice's last piece.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None


@dataclass(slots=True)
class Choice:
    """One prompt and its answer so far.

    Attributes:
        text_stream: None where the model has no tokenizer; the answer's text is empty then.
    """

    index: int
    request: Request
    text_stream: TextStream | None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, event: TokenEvent) -> Piece:
        """Add what an event brings."""
        self.token_ids += event.token_ids
        self.finish_reason = event.finish_reason
        text = ""
        stream = self.text_stream
        if stream is not None:
            text = stream.push(event.token_ids)
            if event.finish_reason is not None:
                text += stream.finish()
            if stream.stopped_by is not None:
                self.finish_reason = FinishReason.STOP
        self.text += text
        return Piece(self.index, text, event.token_ids, self.finish_reason)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one HTTP call.

    Attributes:
        cached: prompt tokens that lay in the prefix cache.
    """

    prompt: int
    completion: int
    cached: int


class Generation:
    """Submits requests and follows them.

    Whoever makes one calls `release` in the end, however it ends: that ends the requests that still run.

    Args:
        choices: one per prompt.
        queue_timeout_s: what the scheduler turns requests away after.
    """

    def __init__(self, worker: EngineWorker, choices: Sequence[Choice], queue_timeout_s: float) -> None:
        self.choices = choices
        self._worker = worker
        self._queue_timeout_s = queue_timeout_s
        self._open = {choice.request.request_id: choice for choice in choices}
        self._inbox = Inbox()
        for choice in choices:
            worker.submit(choice.request, self._inbox)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Every choice's pieces, as they come, until all have ended.

        Raises:
            QueueTimedOut: a request was ended before its admission.
            Exception: what `EngineWorker.submit` names.
        """
        while self._open:
            event = await self._inbox.get()
            choice = self._open.get(event.request_id)
            if choice is None:  # a stop string has ended it
                continue
            if event.finish_reason == FinishReason.QUEUE_TIMEOUT:
                del self._open[event.request_id]
                raise QueueTimedOut(
                    f"the request was not admitted within {self._queue_timeout_s:g} s (queue_timeout)",
                    self._queue_timeout_s,
                )
            piece = choice.take(event)
            if piece.finish_reason is not None:
                del self._open[event.request_id]
                if event.finish_reason is None:
                    self._worker.end(event.request_id, FinishReason.STOP)
            yield piece

    def usage(self) -> Usage:
        """Of all choices, up to now."""
        return Usage(
            sum(choice.request.num_prompt_tokens for choice in self.choices),
            sum(len(choice.token_ids) for choice in self.choices),
            sum(choice.request.num_cached_tokens for choice in self.choices),
        )

    def release(self) -> None:
        """End what still runs; nobody waits for it any more."""
        for request_id in self._open:
            self._worker.end(request_id)
        self._open.clear()
