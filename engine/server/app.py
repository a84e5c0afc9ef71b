"""The HTTP application: OpenAI's endpoints over an engine's worker.

Paths: `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`, `/metrics`. The status of an answer, streamed
or not, is sent when the first token is there or the request is turned away, so that a client can tell the two apart.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from engine.errors import UserError
from engine.request import Request as EngineRequest
from engine.server.answers import AnswerShape, AnswerWriter, ChatShape, CompletionShape, error_event
from engine.server.connection import ClientGone, EventStream, unless_gone
from engine.server.errors import ModelNotFound, answer_to, register_handlers
from engine.server.generation import Choice, Generation, Piece
from engine.server.metrics import ServerMetrics
from engine.server.protocol import ChatRequest, CompletionRequest, Prompt
from engine.server.text_stream import TextStream
from engine.server.tokenizer import TextTokenizer
from engine.server.worker import EngineWorker

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
# More than any vocabulary has in the mean of a text.
_MOST_CHARACTERS_PER_TOKEN = 64
# The client's own count of its attempts, as OpenAI's libraries send it.
ATTEMPT_HEADER = "x-stainless-retry-count"
_CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody is there to read it


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the application must know of the model and the engine's settings.

    Attributes:
        name: that clients call it by.
        created: when it was loaded, in seconds since 1970.
        max_model_len: longest request in tokens.
        longest_request: the same, or less where the KV cache is too small for that.
        tokenizer: None for a model without one.
        queue_timeout_s: the scheduler's `queue_timeout`.
    """

    name: str
    created: int
    max_model_len: int
    longest_request: int
    tokenizer: TextTokenizer | None
    queue_timeout_s: float


def make_app(worker: EngineWorker, model: ServedModel, metrics: ServerMetrics) -> FastAPI:
    """The application. Its lifespan starts the worker; whoever serves it stops the worker."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start(asyncio.get_running_loop())
        yield

    app = FastAPI(title="tune", lifespan=lifespan, docs_url=None, redoc_url=None)
    register_handlers(app)
    service = _Service(worker, model)

    @app.get("/health")
    async def health() -> Response:
        problem = worker.problem
        if problem is not None:
            return JSONResponse({"status": "unavailable", "reason": problem}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.render(worker.load()), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": model.name, "object": "model", "created": model.created, "owned_by": "tune"}
        return {"object": "list", "data": [entry | {"max_model_len": model.max_model_len}]}

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, http: Request) -> Response:
        return await service.complete(body, http)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, http: Request) -> Response:
        return await service.chat(body, http)

    return app


class _Service:
    """From a request's body to its answer."""

    def __init__(self, worker: EngineWorker, model: ServedModel) -> None:
        self._worker = worker
        self._model = model

    async def complete(self, body: CompletionRequest, http: Request) -> Response:
        arrival_ns = self._worker.clock.now_ns()
        self._require_readable([prompt for prompt in body.prompt if isinstance(prompt, str)])
        prompts = [await self._token_ids(prompt) for prompt in body.prompt]
        return await self._answer(body, http, CompletionShape(), prompts, COMPLETION_MAX_TOKENS, arrival_ns)

    async def chat(self, body: ChatRequest, http: Request) -> Response:
        arrival_ns = self._worker.clock.now_ns()
        messages = [message.model_dump() for message in body.messages]
        self._require_readable([json.dumps(messages, ensure_ascii=False)])
        encode = self._tokenizer("/v1/chat/completions").encode_chat
        prompt = await asyncio.to_thread(encode, messages, body.chat_template_kwargs or {})
        max_tokens = max(1, self._model.longest_request - len(prompt))
        return await self._answer(body, http, ChatShape(), [prompt], max_tokens, arrival_ns)

    def _require_readable(self, texts: Sequence[str]) -> None:
        """Refuse what no tokenizer takes, and what it would take too long over, before it is tried."""
        limit = _MOST_CHARACTERS_PER_TOKEN * self._model.longest_request
        for text in texts:
            if len(text) > limit:
                raise UserError(
                    f"a prompt of {len(text):,} characters cannot fit into {self._model.longest_request:,} tokens"
                )
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise UserError(f"the prompt is not text: it holds half of a surrogate pair ({error.reason})") from None

    async def _token_ids(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        return await asyncio.to_thread(self._tokenizer("a prompt of text").encode, prompt)

    def _tokenizer(self, needed_for: str) -> TextTokenizer:
        tokenizer = self._model.tokenizer
        if tokenizer is None:
            raise UserError(
                f"{self._model.name} has no tokenizer, which {needed_for} needs: give the prompt as a list of token "
                "ids to /v1/completions"
            )
        return tokenizer

    async def _answer(
        self,
        body: CompletionRequest | ChatRequest,
        http: Request,
        shape: AnswerShape,
        prompts: Sequence[list[int]],
        default_max_tokens: int,
        arrival_ns: int,
    ) -> Response:
        if body.model is not None and body.model != self._model.name:
            raise ModelNotFound(f"model {body.model!r} is not served here: {self._model.name!r} is")
        writer = AnswerWriter(
            shape, self._model.name, with_token_ids=body.return_token_ids, include_usage=body.include_usage
        )
        sampling = body.sampling(default_max_tokens)
        attempt = http.headers.get(ATTEMPT_HEADER, "")
        choices = []
        for index, prompt in enumerate(prompts):
            request = EngineRequest(
                f"{writer.id}-{index}",
                prompt,
                sampling,
                priority=body.priority,
                arrival_ns=arrival_ns,
                attempt=int(attempt) if attempt.isdecimal() else 0,
            )
            choices.append(Choice(index, request, self._text_stream(prompt, body.stop)))
        generation = Generation(self._worker, choices, self._model.queue_timeout_s)
        try:
            if not body.stream:
                await unless_gone(http, _to_the_end(generation))
                generation.release()
                return JSONResponse(writer.whole(generation))
            pieces = generation.pieces()
            first = await unless_gone(http, anext(pieces))
            return EventStream(_events(writer, generation, first, pieces), generation.release)
        except ClientGone:
            generation.release()
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        except BaseException:
            generation.release()
            raise

    def _text_stream(self, prompt: Sequence[int], stop: Sequence[str]) -> TextStream | None:
        if self._model.tokenizer is not None:
            return TextStream(self._model.tokenizer.decode, prompt, stop)
        if stop:
            self._tokenizer("stop")
        return None


async def _to_the_end(generation: Generation) -> None:
    async for _ in generation.pieces():
        pass


async def _events(
    writer: AnswerWriter, generation: Generation, first: Piece, rest: AsyncIterator[Piece]
) -> AsyncIterator[str]:
    yield writer.chunk(first)
    try:
        async for piece in rest:
            yield writer.chunk(piece)
    except Exception as error:
        # The status is sent; what went wrong can only be said in the stream.
        yield error_event(answer_to(error).body)
        return
    yield writer.end(generation.usage())
