"""Errors as HTTP answers, in OpenAI's shape."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from engine.errors import RequestShed, UserError
from engine.server.faults import EngineFailed, QueueTimedOut, ServerUnavailable

_RATE_LIMIT, _UNAVAILABLE, _INVALID = "rate_limit_error", "service_unavailable", "invalid_request_error"
# A full queue empties; too long a wait means that the server is behind, and other replicas should be asked.
_SHED_STATUS = {"max_queue_len": 429, "max_queue_tokens": 429, "max_predicted_wait": 503}


class ModelNotFound(Exception):
    """The request names another model than the one that is served."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as a client sees it.

    Attributes:
        code: the limit or reason, for programs.
        retry_after_s: goes into `Retry-After`, rounded up to whole seconds, at least 1.
    """

    status: int
    kind: str
    message: str
    code: str | None = None
    retry_after_s: float | None = None

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.code}}

    def response(self) -> JSONResponse:
        """With status and headers."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return JSONResponse(self.body, self.status, headers)


def _shed(error: RequestShed) -> ErrorAnswer:
    status = _SHED_STATUS.get(error.limit, 503)
    kind = _RATE_LIMIT if status == 429 else _UNAVAILABLE
    return ErrorAnswer(status, kind, str(error), error.limit, error.retry_after_s)


def _invalid_body(error: RequestValidationError) -> ErrorAnswer:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return ErrorAnswer(400, _INVALID, f"the body is no JSON: {first['ctx']['error']}")
    return ErrorAnswer(400, _INVALID, f"{where}: {message}" if where else message)


_ANSWERS: dict[type[Exception], Callable[[Any], ErrorAnswer]] = {
    RequestShed: _shed,
    QueueTimedOut: lambda e: ErrorAnswer(503, _UNAVAILABLE, str(e), "queue_timeout", e.retry_after_s),
    ServerUnavailable: lambda e: ErrorAnswer(503, _UNAVAILABLE, str(e)),
    EngineFailed: lambda e: ErrorAnswer(500, "server_error", str(e)),
    ModelNotFound: lambda e: ErrorAnswer(404, "not_found_error", str(e), "model_not_found"),
    UserError: lambda e: ErrorAnswer(400, _INVALID, str(e)),
    RequestValidationError: _invalid_body,
    HTTPException: lambda e: ErrorAnswer(e.status_code, _INVALID, str(e.detail)),
    Exception: lambda e: ErrorAnswer(500, "server_error", f"{type(e).__name__}: {e}"),
}


def answer_to(error: Exception) -> ErrorAnswer:
    """What a client is told of an error."""
    return next(_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS)(error)


def register_handlers(app: FastAPI) -> None:
    """Let the application answer errors in this shape."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return answer_to(error).response()

    for kind in _ANSWERS:
        app.add_exception_handler(kind, handle)
