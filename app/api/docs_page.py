"""The page at /docs: Swagger UI out of an installed package, so that a browser without internet has it too."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.page import HEADERS, WEB, WebFile, file_reply, read_file

INDEX = "index.html"
POLICY = "Content-Security-Policy"
# Its style sheet draws arrows and locks as data: images.
DOCS_HEADERS = {**HEADERS, POLICY: HEADERS[POLICY].replace("img-src 'self'", "img-src 'self' data:")}

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def page(request: Request) -> Response:
    return file_reply(request, docs_files()[INDEX], DOCS_HEADERS)


@router.get("/docs/{name}", include_in_schema=False)
async def docs_file(request: Request, name: str) -> Response:
    return file_reply(request, docs_files().get(name), DOCS_HEADERS)


@functools.cache
def docs_files() -> Mapping[str, WebFile]:
    """File name -> file, read once: the closed set of what is served."""
    swagger = resources.files("fastapi_swagger") / "resources"
    found = [WEB / "docs" / INDEX, WEB / "docs" / "start.js", WEB / "icon.svg"]
    return {file.name: read_file(file) for file in (*found, swagger / "swagger-ui.css", swagger / "swagger-ui-bundle.js")}
