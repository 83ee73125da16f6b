"""Errors as HTTP: the one place where exceptions become status codes and OpenAI error objects."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from app.engine.errors import ContextLengthExceeded, EngineClosed, EngineError, EngineFailed, InvalidRequest, QueueFull
from app.text.errors import ChatTemplateError, GrammarError

logger = logging.getLogger(__name__)

MAX_MESSAGE = 4000  # characters; with its frame an error stays below 8 KB
RETRY_AFTER = 5  # seconds, while loading or draining


class ApiError(Exception):
    """An error reply. message must not hold the user's text; param is a dotted path into the request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body(), self.status, self.headers)


def bad_value(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, kind="service_unavailable_error", code=code, headers={"Retry-After": str(RETRY_AFTER)})


def model_not_found(served: str) -> ApiError:
    message = f"The model you asked for does not exist here; this server serves '{served}'."
    return ApiError(404, message, param="model", code="model_not_found")


def forbidden(message: str) -> ApiError:
    return ApiError(403, message, kind="permission_error", code="forbidden")


def unauthorized(what: str = "A valid API key") -> ApiError:
    message = f"{what} is needed: send it as 'Authorization: Bearer KEY'."
    headers = {"WWW-Authenticate": 'Bearer realm="racer-csd"'}
    return ApiError(401, message, kind="authentication_error", code="invalid_api_key", headers=headers)


def queue_full(retry_after: int, message: str = "The server is busy: its queue is full. Try again later.") -> ApiError:
    headers = {"Retry-After": str(max(1, retry_after))}
    return ApiError(429, message, kind="rate_limit_error", code="queue_full", headers=headers)


def timed_out(seconds: float) -> ApiError:
    message = f"The request took longer than the {seconds:g} seconds this server allows."
    return ApiError(504, message, kind="timeout_error", code="request_timeout")


def unread() -> ApiError:
    message = "The stream was ended because its client did not read it: too much of it was waiting."
    return ApiError(408, message, kind="timeout_error", code="stream_not_read")


def server_error(message: str = "The server failed on this request; its log says why.") -> ApiError:
    return ApiError(500, message, kind="server_error", code="internal_error")


def as_api_error(error: BaseException) -> ApiError:
    """What a client may see of any exception."""
    match error:
        case ApiError():
            return error
        case ContextLengthExceeded():
            return bad_value(str(error), error.param, "context_length_exceeded")
        case InvalidRequest():
            return bad_value(str(error), error.param)
        case ChatTemplateError():
            return bad_value(str(error), error.param, "chat_template_error")
        case GrammarError():  # raised while an answer was generated
            return bad_value(str(error), error.param, "invalid_schema")
        case QueueFull():
            return queue_full(error.retry_after, str(error))
        case EngineFailed():
            return unavailable(str(error), "failed")
        case EngineClosed():
            return unavailable(str(error), "stopping")
        case EngineError():
            return server_error(str(error))
        case HTTPException():
            return _routing_error(error)
    return server_error()


def install_error_handlers(app: FastAPI) -> None:
    """Every exception a route raises leaves as an error object. The gate answers unexpected ones."""

    async def handle(request: Request, error: Exception) -> Response:
        return as_api_error(error).response()

    for kind in (ApiError, EngineError, ChatTemplateError, GrammarError, HTTPException):
        app.add_exception_handler(kind, handle)


def _routing_error(error: HTTPException) -> ApiError:
    """Unknown routes and methods; `detail` is the framework's own wording and holds no user text."""
    texts = {
        404: ("There is no such route; /docs lists them.", "not_found"),
        405: ("This route does not take this method; see the Allow header.", "method_not_allowed"),
    }
    phrase = HTTPStatus(error.status_code).phrase
    message, code = texts.get(error.status_code, (f"{phrase}.", phrase.lower().replace(" ", "_")))
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    headers = dict(error.headers or {})
    if "GET" in headers.get("Allow", ""):
        headers["Allow"] += ", HEAD"  # the gate answers it on every GET route
    return ApiError(error.status_code, message, kind=kind, code=code, headers=headers)
