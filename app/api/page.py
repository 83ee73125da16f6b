"""The playground: the page at / and the files beside it, out of app/web, with caching by ETag and a closed security policy."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

WEB = Path(__file__).parent.parent / "web"
INDEX = "index.html"
# Named here: what machines' own tables say about .js differs, and browsers run no module of another type.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Everything comes from this server and nothing may be asked of another; no inline script, style or handler runs.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",  # kept by browsers, and asked for again with the ETag: a new version is seen at once
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class WebFile:
    content: bytes
    media_type: str
    etag: str


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    return file_reply(request, web_files()[INDEX])


@router.get("/web/{name}", include_in_schema=False)
async def web_file(request: Request, name: str) -> Response:
    return file_reply(request, web_files().get(name))


@functools.cache
def web_files() -> Mapping[str, WebFile]:
    """File name -> file, read once: the closed set of what is served."""
    return {path.name: read_file(path) for path in sorted(WEB.iterdir()) if path.suffix in TYPES}


def read_file(path: Traversable) -> WebFile:
    """A file with a name that ends as one of TYPES does."""
    content = path.read_bytes()
    return WebFile(content, TYPES[Path(path.name).suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def file_reply(request: Request, file: WebFile | None, headers: Mapping[str, str] = HEADERS) -> Response:
    """200 with the file, or 304 when the client has it. Raises HTTPException 404 for None."""
    if file is None:
        raise HTTPException(404)
    headers = {**headers, "ETag": file.etag}
    if _known(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "Content-Type": file.media_type})


def _known(header: str, etag: str) -> bool:
    """If-None-Match compares weakly (RFC 9110, 13.1.2): a proxy that compresses marks the tag as weak."""
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))
