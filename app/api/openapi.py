"""The OpenAPI description. FastAPI does not read the bodies (app.api.body does), so their schemas are added here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.api.request_model import RequestModel
from app.api.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

BODIES: dict[str, type[RequestModel]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Built once, then cached on the app."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        models = [(model, "validation") for model in BODIES.values()]
        _, shared = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        schema["components"] = {
            "schemas": {**shared["$defs"], "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        }
        schema["security"] = [{"key": []}, {}]
        for path, model in BODIES.items():
            operation = schema["paths"][path]["post"]
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
            operation["requestBody"] = {"required": True, "content": content}
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # values are refused with 400
                error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
                operation["responses"]["default"] = {"description": "An error", "content": error}
        app.openapi_schema = schema
    return app.openapi_schema
