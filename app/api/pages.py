"""The web pages: the playground at / out of app/web, and Swagger UI at /docs out of an installed package.

Both work in a browser without internet access. Files are cached by ETag and run under a strict content security policy.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

WEB = Path(__file__).parent.parent / "web"
INDEX = "index.html"
# Not from `mimetypes`: its answer for .js depends on the machine, and browsers run no module of another type.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "Content-Security-Policy"
HEADERS = {
    # Load from and connect to this server only; no inline script, style or event handler.
    POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",  # browsers revalidate with the ETag each time, so a new version is seen at once
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# Swagger UI's style sheet draws arrows and locks as data: images.
DOCS_HEADERS = {**HEADERS, POLICY: HEADERS[POLICY].replace("img-src 'self'", "img-src 'self' data:")}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class WebFile:
    content: bytes
    media_type: str
    etag: str


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    return file_reply(request, web_files()[INDEX])


@router.get("/web/{file}", include_in_schema=False)
async def web_file(request: Request, file: str) -> Response:
    return file_reply(request, web_files().get(file))


@router.get("/docs", include_in_schema=False)
async def docs_page(request: Request) -> Response:
    return file_reply(request, docs_files()[INDEX], DOCS_HEADERS)


@router.get("/docs/{file}", include_in_schema=False)
async def docs_file(request: Request, file: str) -> Response:
    return file_reply(request, docs_files().get(file), DOCS_HEADERS)


@functools.cache
def web_files() -> Mapping[str, WebFile]:
    """All files under /web/, by name; read once."""
    return {path.name: read_file(path) for path in sorted(WEB.iterdir()) if path.suffix in TYPES}


@functools.cache
def docs_files() -> Mapping[str, WebFile]:
    """All files under /docs/, by name; read once."""
    swagger = resources.files("fastapi_swagger") / "resources"
    found = [WEB / "docs" / INDEX, WEB / "docs" / "start.js", WEB / "icon.svg"]
    return {file.name: read_file(file) for file in (*found, swagger / "swagger-ui.css", swagger / "swagger-ui-bundle.js")}


def read_file(path: Traversable) -> WebFile:
    """The suffix of the file must be in TYPES."""
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
    """Whether If-None-Match holds the tag. Weak comparison (RFC 9110, 13.1.2): a compressing proxy marks tags as weak."""
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))
