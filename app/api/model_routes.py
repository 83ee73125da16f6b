"""GET /v1/models, POST /tokenize, POST /detokenize."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request

from app.api.body import read_body
from app.api.preparation import chat_prompt, check_ids, text_ids
from app.api.schemas import DetokenizeBody, TokenizeBody
from app.api.service import Service, service_of
from app.engine.interface import EngineInterface, ModelInfo
from app.settings import Settings
from app.text.codec import TextCodec

router = APIRouter()


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
async def tokenize(request: Request) -> dict[str, Any]:
    service = service_of(request)
    engine = service.ready_engine()
    body = await read_body(request, TokenizeBody, service)
    service.check_model(body.model)
    tokens, dropped = await to_thread.run_sync(_encode, body, engine.codec, limiter=service.text_work)
    reply = {"tokens": tokens, "count": len(tokens), "max_model_len": engine.info.max_context}
    return reply | ({"dropped_characters": dropped} if dropped else {})


@router.post("/detokenize", summary="Text of token ids")
async def detokenize(request: Request) -> dict[str, Any]:
    service = service_of(request)
    engine = service.ready_engine()
    body = await read_body(request, DetokenizeBody, service)
    service.check_model(body.model)
    return {"prompt": await to_thread.run_sync(_decode, body, engine, limiter=service.text_work)}


def _encode(body: TokenizeBody, codec: TextCodec) -> tuple[list[int], int]:
    """The ids, and the characters that the vocabulary cannot spell."""
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
        "racer": _offer(info, service.settings),
    }


def _offer(info: ModelInfo, settings: Settings) -> dict[str, Any]:
    """What requests may ask of speculation here, and what they get when they do not ask."""
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
