"""Admin routes of the correction memory: show, export, import, clear. They need the admin key."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from app.api.body import check_type, read_raw
from app.api.errors import bad_value, unavailable
from app.api.service import service_of
from csd.exchange import ExchangeError, read, write
from csd.stores.base import StoreError

if TYPE_CHECKING:
    from app.engine.correction import Corrections

router = APIRouter(prefix="/admin")
T = TypeVar("T")
NDJSON = "application/x-ndjson"
MAX_TABLE_BYTES = 64 << 20  # a million pairs
SHOWN = 20
BATCH = "Any name: counts sent again under the same name are added only once"


def _corrections(request: Request) -> Corrections:
    corrections = service_of(request).ready_engine().corrections
    if corrections is None:
        raise bad_value("This server keeps no correction memory: start it with allow_csd.", "verifier")
    return corrections


async def _on_thread(work: Callable[[], T]) -> T:
    try:
        return await to_thread.run_sync(work)
    except StoreError as error:
        raise unavailable(f"The store did not do it: {error}", "store_unavailable") from error


def _shown(corrections: Corrections, text: Callable[[int], str], top: int) -> dict[str, Any]:
    status = corrections.status
    frequent = itertools.islice(corrections.memory.entries(), top)
    entries = [
        {"draft": draft, "target": target, "count": count, "draft_text": text(draft), "target_text": text(target)}
        for draft, target, count in frequent
    ]
    return {
        "fingerprint": corrections.fingerprint,
        "entries": status.entries,
        "store": {"state": status.state, "name": status.name, "errors": status.errors, "last_error": status.last_error},
        "most_frequent": entries,
    }


@router.get("/ocm", summary="The correction memory: its size, its store, and the most frequent pairs")
async def show(request: Request) -> Response:
    corrections = _corrections(request)
    codec = service_of(request).ready_engine().codec

    def text(token: int) -> str:
        return codec.decode([token], skip_special_tokens=False)

    return JSONResponse(await _on_thread(lambda: _shown(corrections, text, SHOWN)))


@router.get("/ocm/export", summary="The table as JSON lines")
async def export(request: Request) -> Response:
    corrections = _corrections(request)

    def dump() -> bytes:
        stream = io.BytesIO()
        write(stream, corrections.fingerprint, corrections.memory.entries())
        return stream.getvalue()

    return Response(await _on_thread(dump), media_type=NDJSON)


@router.post("/ocm/import", summary="Add the counts of an exported table; nothing changes if any line is wrong")
async def import_(request: Request, batch: str | None = Query(None, description=BATCH)) -> Response:
    corrections = _corrections(request)
    check_type(request, NDJSON, "application/json", "application/jsonl")
    body = await read_raw(request, MAX_TABLE_BYTES, service_of(request).settings)

    def add() -> int:
        entries = read(io.BytesIO(body), corrections.fingerprint, name="body")
        return len(entries) if corrections.add(entries, batch) else 0

    try:
        added = await _on_thread(add)
    except ExchangeError as error:
        raise bad_value(f"{error}.", "body") from error
    return JSONResponse({"added": added, "entries": corrections.status.entries})


@router.delete("/ocm", summary="Empty the table, in the store as well")
async def clear(request: Request) -> Response:
    corrections = _corrections(request)
    await _on_thread(corrections.clear)
    return JSONResponse({"entries": corrections.status.entries})
