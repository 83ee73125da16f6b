"""GET /health, /ready and /metrics."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from app.api.service import not_ready, service_of
from app.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/health", summary="200 while the process and its worker live, also while the model loads")
async def health(request: Request) -> Response:
    service = service_of(request)
    status = service.status()
    body: dict[str, Any] = {
        "status": "ok",
        "state": service.state,
        "heartbeat_age": None if status is None else round(status.heartbeat_age, 3),
    }
    if body["state"] != "failed":
        return JSONResponse(body)
    error = not_ready("failed")
    return JSONResponse({**body, "status": "failed", **error.body()}, error.status, error.headers)


@router.get("/ready", summary="200 when the model answers and new requests are taken")
async def ready(request: Request) -> Response:
    service = service_of(request)
    state, status, info = service.state, service.status(), service.info
    body: dict[str, Any] = {"ready": state == "ready", "state": state, "store": None}
    if status is not None and status.store is not None:
        store = status.store
        body["store"] = {"state": store.state, "name": store.name, "entries": store.entries, "last_error": store.last_error}
    if status is not None:
        body |= {
            "running": status.running,
            "waiting": status.waiting,
            "kv_usage_ratio": round(status.kv_usage_ratio, 4),
            "heartbeat_age": round(status.heartbeat_age, 3),
        }
    if info is not None:
        body |= {
            "model": info.name,
            "device": info.device,
            "dtype": info.dtype,
            "threads": info.threads,
            "max_context": info.max_context,
            "drafter": info.drafter,
            "verifier": info.verifier,
            "csd": info.csd,
            "draft": info.draft,
            "max_nodes": info.max_nodes,
            "tree_attention": info.tree_attention,
        }
    if state == "ready":
        return JSONResponse(body)
    error = not_ready(state)
    return JSONResponse({**body, **error.body()}, error.status, error.headers)


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    page = await to_thread.run_sync(service_of(request).metrics.render)
    return Response(page, headers={"Content-Type": CONTENT_TYPE})
