"""The outermost layer: request ids, keys, counted replies, and a clean 500 for what nobody foresaw."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.admission import Lease
from app.api.auth import OPEN_PREFIXES, is_open
from app.api.errors import ApiError, forbidden, server_error, unauthorized
from app.api.service import Service

logger = logging.getLogger(__name__)

ROUTES = (
    "/",
    "/web/{file}",
    "/health",
    "/ready",
    "/metrics",
    "/docs",
    "/docs/{file}",
    "/openapi.json",
    "/v1/models",
    "/v1/models/{model}",
    "/v1/completions",
    "/v1/chat/completions",
    "/tokenize",
    "/detokenize",
    "/admin/ocm",
    "/admin/ocm/export",
    "/admin/ocm/import",
)
ADMIN = "/admin/"
GENERATING = frozenset({"/v1/completions", "/v1/chat/completions"})
RUN_AGAIN = frozenset({500, 504})  # a client that tries again has the whole generation run again, to the same end
CLIENT_LEFT = 499  # nginx's number for a client that did not wait for the reply


class Gate:
    """Plain ASGI: a wrapper that reads or buffers bodies would hide clients that leave."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = uuid.uuid4().hex
        state["arrived_at"] = time.monotonic()  # before its body is read
        status = 0
        lease: Lease | None = None
        bodiless = scope["method"] == "HEAD"
        if bodiless:  # the answer of GET without its body, on every route
            scope = {**scope, "method": "GET"}

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                marks = [(b"x-request-id", state["request_id"].encode())]
                if status in RUN_AGAIN and scope["path"] in GENERATING:
                    marks.append((b"x-should-retry", b"false"))  # OpenAI's clients go by it
                message = {**message, "headers": [*message.get("headers", ()), *marks]}
            elif bodiless and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            if self._service.keys.open:
                self._service.hosts.check(scope["method"], Headers(scope=scope))
            tenant = self._service.keys.tenant(_authorization(scope))
            state["tenant"] = tenant or ""
            if scope["path"].startswith(ADMIN):
                await self._admin(scope, receive, send_marked)
            elif tenant is None and not is_open(scope["path"], self._service.open_paths):
                await unauthorized().response()(scope, receive, send_marked)
            elif scope["path"] in GENERATING and scope["method"] == "POST":
                lease = state["lease"] = self._service.admit(tenant or "")
                await self._app(scope, receive, send_marked)
            else:
                await self._app(scope, receive, send_marked)
        except ApiError as error:  # of this layer: those of a route have become replies by now
            await error.response()(scope, receive, send_marked)
        except Exception:
            logger.exception("request %s failed", state["request_id"])
            if status:  # too late for another reply: the server closes the connection
                raise
            await server_error().response()(scope, receive, send_marked)
        finally:
            if lease is not None:
                lease.release()
            self._service.metrics.http_reply(_route(scope["path"]), status or CLIENT_LEFT)

    async def _admin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Routes that change what the server knows: behind a key of their own, and shut without one."""
        admin = self._service.admin_keys
        if admin is None:
            await forbidden("Admin routes are off: start the server with an admin_key.").response()(scope, receive, send)
        elif admin.tenant(_authorization(scope)) is None:
            await unauthorized("The admin key").response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def name_request(request: Request, prefix: str) -> str:
    """The id of the reply, which X-Request-Id repeats."""
    request.state.request_id = prefix + request.state.request_id
    return str(request.state.request_id)


def _authorization(scope: Scope) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == b"authorization"), None)


def _route(path: str) -> str:
    for prefix in OPEN_PREFIXES:
        if path.startswith(prefix):
            return prefix + "{file}"
    return "/v1/models/{model}" if path.startswith("/v1/models/") else path
