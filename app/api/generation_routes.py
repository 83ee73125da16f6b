"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.admission import Lease
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
INLINE_TOKENS = 512  # answers of so many are written faster than a thread is woken
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
    limits = service.limits(engine)
    body = await read_body(request, model, service)
    service.check_model(body.model)
    limits.check_budget(body.budget, "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens")
    places = _places(body, service.settings)
    reply = Reply(kind, name_request(request, kind.prefix), engine.info.name, service.fingerprint)
    generations = Generations(service.metrics, service.settings.request_timeout)
    lease: Lease = request.state.lease  # given back by the gate, whatever becomes of this request
    lease.reserve(places, engine.status())

    def submit() -> int:
        try:
            param = "messages" if isinstance(body, ChatBody) else "prompt"
            requests = [limits.fit(made, param) for made in prepare(body, engine, request.state.tenant)]
            lease.queued()
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
    finally:
        lease.queued()
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


def _places(body: GenerationBody, settings: Settings) -> int:
    """How many generations it makes. Raises ApiError 400 for more than even an idle server takes: waiting would not help."""
    wanted = len(body.prompt) if isinstance(body, CompletionBody) else 1
    most = settings.max_running + settings.max_queued
    if wanted > most:
        raise bad_value(f"`prompt` may hold at most {most} prompts: this server has no more places.", "prompt")
    if settings.max_per_key is not None and wanted > settings.max_per_key:
        raise bad_value(f"`prompt` may hold at most {settings.max_per_key} prompts: one API key has no more places.", "prompt")
    return wanted


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
    trace = tracer is not None
    if sum(answer.finished.completion_tokens for answer in answers if answer.finished) <= INLINE_TOKENS:
        return dump(reply.whole(answers, trace=trace))
    return await to_thread.run_sync(lambda: dump(reply.whole(answers, trace=trace)))
