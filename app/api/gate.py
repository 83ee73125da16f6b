"""The outermost layer: request ids, API keys, reply counts, and a clean 500 for unexpected exceptions."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import is_open
from app.api.disconnect import CLIENT_LEFT
from app.api.errors import ApiError, forbidden, server_error, unauthorized
from app.api.routes import ADMIN, GENERATING, label
from app.api.service import Service

logger = logging.getLogger(__name__)

DO_NOT_RETRY = frozenset({500, 504})  # a retry would run the whole generation again, with the same result


class Gate:
    """Plain ASGI: a wrapper that reads or buffers bodies would hide clients that disconnect."""

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
        reply = _Reply(scope, send)
        if scope["method"] == "HEAD":  # answered as GET without the body, on every route
            scope = {**scope, "method": "GET"}
        try:
            await self._admit(scope, receive, reply.send)
        except ApiError as error:  # of this layer: those of a route have become replies by now
            await error.response()(scope, receive, reply.send)
        except Exception:
            logger.exception("request %s failed", state["request_id"])
            if reply.status:  # too late for another reply: the server closes the connection
                raise
            await server_error().response()(scope, receive, reply.send)
        finally:
            self._service.metrics.http_reply(label(scope["path"]), reply.status or CLIENT_LEFT)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that may come in. Raises ApiError."""
        service, path = self._service, scope["path"]
        if service.keys.open:
            service.hosts.check(scope["method"], Headers(scope=scope))
        authorization = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        tenant = service.keys.tenant(authorization)
        scope["state"]["tenant"] = tenant or ""
        if path.startswith(ADMIN):
            self._check_admin(authorization)
        elif tenant is None and not is_open(path, service.open_paths):
            raise unauthorized()
        if path not in GENERATING or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        lease = scope["state"]["lease"] = service.admit(tenant or "")
        try:
            await self._app(scope, receive, send)
        finally:
            lease.release()

    def _check_admin(self, authorization: bytes | None) -> None:
        """Admin routes change what the server knows: they need a key of their own, and are off without one."""
        admin = self._service.admin_keys
        if admin is None:
            raise forbidden("Admin routes are off: start the server with an admin_key.")
        if admin.tenant(authorization) is None:
            raise unauthorized("The admin key")


class _Reply:
    """Sends one reply with the gate's headers. status: 0 until the reply has begun."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._without_body = scope["method"] == "HEAD"
        self._generates = scope["path"] in GENERATING
        self._state = scope["state"]
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [(b"x-request-id", self._state["request_id"].encode())]
            if self.status in DO_NOT_RETRY and self._generates:
                headers.append((b"x-should-retry", b"false"))  # OpenAI's clients obey it
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        elif self._without_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)
