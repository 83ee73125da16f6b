"""GET /v1/models, POST /tokenize, POST /detokenize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.body import parse, read_json
from app.api.disconnect import CLIENT_LEFT, run_until_gone
from app.api.json_text import dump_large
from app.api.preparation import chat_prompt, check_ids, text_ids
from app.api.schemas import DetokenizeBody, TokenizeBody
from app.api.service import Service, service_of
from app.api.text_work import SHORT, LaneName
from app.engine.interface import EngineInterface, ModelInfo
from app.settings import Settings
from app.text.codec import TextCodec

router = APIRouter()
Body = TypeVar("Body", TokenizeBody, DetokenizeBody)


@router.get("/v1/models", summary="The served model, as a list")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(service_of(request))]}


@router.get("/v1/models/{model:path}", summary="The served model")
async def model(request: Request, model: str) -> dict[str, Any]:
    service = service_of(request)
    found = _model(service)
    service.check_model(model)
    return found


@router.post("/tokenize", summary="Token ids of a text or of chat messages")
async def tokenize(request: Request) -> Response:
    engine = service_of(request).ready_engine()

    def convert(body: TokenizeBody) -> dict[str, Any]:
        tokens, dropped = _encode(body, engine.codec)
        reply = {"tokens": tokens, "count": len(tokens), "max_model_len": engine.info.max_context}
        return reply | ({"dropped_characters": dropped} if dropped else {})

    return await _convert(request, TokenizeBody, convert)


@router.post("/detokenize", summary="Text of token ids")
async def detokenize(request: Request) -> Response:
    engine = service_of(request).ready_engine()
    return await _convert(request, DetokenizeBody, lambda body: {"prompt": _decode(body, engine)})


async def _convert(request: Request, model: type[Body], convert: Callable[[Body], dict[str, Any]]) -> Response:
    """Parse, convert and serialize in one job, so that a request waits for a thread only once."""
    service = service_of(request)
    raw = await read_json(request, service)

    def work() -> bytes:
        body = parse(raw, model, None)
        service.check_model(body.model)
        return dump_large(convert(body))

    lane: LaneName = "short" if len(raw) <= SHORT else "convert"
    job = service.text.run(lane, work, tenant=request.state.tenant, size=len(raw))
    content = await run_until_gone(request.receive, job, lambda: None)
    if content is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(content, media_type="application/json")


def _encode(body: TokenizeBody, codec: TextCodec) -> tuple[list[int], int]:
    """The ids, and how many characters the vocabulary cannot spell."""
    if body.messages is not None:
        prompt = chat_prompt(body.messages, codec, body.offered_tools, body.chat_template_kwargs)
        return prompt.ids, prompt.dropped
    text = body.prompt or ""
    ids = text_ids(text, codec, body.add_special_tokens)
    return ids, codec.dropped(text, ids)


def _decode(body: DetokenizeBody, engine: EngineInterface) -> str:
    check_ids(body.tokens, engine.info.vocab_size, "tokens")
    return engine.codec.decode(body.tokens, False)


def _model(service: Service) -> dict[str, Any]:
    info = service.ready_engine().info
    return {
        "id": info.name,
        "object": "model",
        "created": service.created,
        "owned_by": "racer-csd",
        "max_model_len": info.max_context,
        "racer": _speculation(info, service.settings),
    }


def _speculation(info: ModelInfo, settings: Settings) -> dict[str, Any]:
    """What requests may ask for in `speculative`, and the defaults."""
    drafters = ["racer", "draft_model", "hybrid", "none"] if info.draft else ["racer", "none"]
    csd = info.csd and info.tree_attention
    return {
        "drafters": drafters if info.tree_attention else ["none"],
        "drafter": info.drafter if info.tree_attention else "none",
        "verifiers": ["exact", "csd"] if csd else ["exact"],
        "verifier": info.verifier if csd else "exact",
        "max_nodes": info.max_nodes,
        "max_context": info.max_context,
        "draft": info.draft,
        "lambda": settings.csd_lambda if csd else None,
        "tau": settings.csd_tau if csd else None,
    }
