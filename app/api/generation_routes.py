"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.body import read_body
from app.api.disconnect import run_until_gone
from app.api.errors import bad_value
from app.api.gate import CLIENT_LEFT, name_request
from app.api.generations import Generations
from app.api.preparation import chat_requests, completion_requests
from app.api.replies import CHAT, COMPLETION, Answer, Reply, ReplyKind, dump
from app.api.schemas import ChatBody, CompletionBody, GenerationBody
from app.api.service import service_of
from app.api.streaming import EventStream, frames
from app.engine.errors import InvalidRequest
from app.engine.events import Finished
from app.engine.interface import EngineInterface
from app.engine.request import GenerationRequest
from app.settings import Settings
from app.text.codec import TextCodec

router = APIRouter()
Body = TypeVar("Body", bound=GenerationBody)


@router.post("/v1/completions", summary="Continue a text")
async def completions(request: Request) -> Response:
    return await _generate(request, CompletionBody, completion_requests, COMPLETION)


@router.post("/v1/chat/completions", summary="Answer a chat")
async def chat_completions(request: Request) -> Response:
    return await _generate(request, ChatBody, chat_requests, CHAT)


async def _generate(
    request: Request,
    model: type[Body],
    prepare: Callable[[Body, EngineInterface, str], list[GenerationRequest]],
    kind: ReplyKind,
) -> Response:
    """Everything that can be refused is refused here, before the first byte, streamed or not."""
    service = service_of(request)
    engine = service.ready_engine()
    body = await read_body(request, model, service)
    service.check_model(body.model)
    _check_places(body, service.settings)
    reply = Reply(kind, name_request(request, kind.prefix), engine.info.name, service.fingerprint)
    generations = Generations(service.metrics, service.settings.request_timeout)

    def submit() -> int:
        try:
            requests = prepare(body, engine, request.state.tenant)
            generations.submit(engine, requests)
        except InvalidRequest as error:
            if error.param == "prompt" and isinstance(body, ChatBody):  # the engine knows ids, not where they come from
                error.param = "messages"
            raise
        return len(requests)

    try:
        count = await to_thread.run_sync(submit, limiter=service.text_work)
    except BaseException:
        generations.cancel()
        raise
    tracer = engine.codec if body.speculative.trace else None
    if body.stream:
        silence = service.keep_alive_after
        stream = frames(reply, generations, keep_alive_after=silence, include_usage=body.include_usage, tracer=tracer)
        return EventStream(stream, generations.cancel)
    work = _collect(reply, generations, count, tracer)
    content = await run_until_gone(request.receive, work, generations.cancel)
    if content is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(content, media_type="application/json")


def _check_places(body: GenerationBody, settings: Settings) -> None:
    """Raises ApiError 400 for more prompts than even an idle server takes: trying again would not help."""
    places = settings.max_running + settings.max_queued
    if isinstance(body, CompletionBody) and len(body.prompt) > places:
        raise bad_value(f"`prompt` may hold at most {places} prompts: this server has no more places.", "prompt")


async def _collect(reply: Reply, generations: Generations, count: int, tracer: TextCodec | None) -> bytes:
    """The whole answer. Raises what a generation raises."""
    answers = [Answer(index) for index in range(count)]
    left = count
    while left:
        item = await generations.next()
        if item is None:
            continue
        index, event = item
        answers[index].add(event, tracer)
        left -= isinstance(event, Finished)
    return dump(reply.whole(answers, trace=tracer is not None))
