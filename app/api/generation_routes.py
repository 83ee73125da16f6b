"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.admission import Lease
from app.api.body import read_body
from app.api.disconnect import CLIENT_LEFT, run_until_gone
from app.api.errors import bad_value
from app.api.field_types import SESSION_HEADER, conversation_name
from app.api.generations import Generations
from app.api.json_text import dump, dump_large
from app.api.preparation import Prepared, chat_requests, completion_requests
from app.api.replies import CHAT, COMPLETION, LARGE, Reply, ReplyKind, size_of
from app.api.schemas import ChatBody, CompletionBody, GenerationBody
from app.api.service import Service, service_of
from app.api.streaming import EventStream, OnThread, frames
from app.api.text_work import SHORT, LaneName
from app.api.token_details import DetailOptions
from app.engine.errors import InvalidRequest
from app.engine.events import Delta, Finished
from app.engine.interface import EngineInterface
from app.settings import Settings

router = APIRouter()
BYTES_PER_ENTRY = 32  # approximate size in a reply
Body = TypeVar("Body", bound=GenerationBody)
Result = TypeVar("Result")
Prepare = Callable[[Body, EngineInterface, str, str | None], Prepared]


@router.post("/v1/completions", summary="Continue a text")
async def completions(request: Request) -> Response:
    return await _generate(request, CompletionBody, completion_requests, COMPLETION)


@router.post("/v1/chat/completions", summary="Answer a chat")
async def chat_completions(request: Request) -> Response:
    return await _generate(request, ChatBody, chat_requests, CHAT)


async def _generate(request: Request, model: type[Body], prepare: Prepare[Body], kind: ReplyKind) -> Response:
    """Answer a request. Refusals happen here, before the first byte of the reply, streamed or not."""
    service = service_of(request)
    engine = service.ready_engine()
    limits = service.limits(engine)
    body = await read_body(request, model, service)
    service.check_model(body.model)
    limits.check_budget(body.budget, "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens")
    places = _places(body, service.settings)
    name = _name_request(request, kind.prefix)
    conversation = _conversation(body, request, places)
    most_bytes = service.settings.unread_bytes if body.stream else None  # events of a reply in one piece are read at once
    generations = Generations(service.metrics, service.settings.request_timeout, most_bytes)
    service.opened(generations)
    lease: Lease = request.state.lease  # released by the gate
    lease.reserve(places, engine.status())

    def submit() -> Prepared:
        try:
            prepared = prepare(body, engine, request.state.tenant, conversation)
            requests = [limits.fit(one, "messages" if kind is CHAT else "prompt") for one in prepared.requests]
            requests = [replace(one, arrived_at=request.state.arrived_at) for one in requests]
            lease.score(prepared.scores, engine.status())
            lease.queued()
            generations.submit(engine, requests)
        except InvalidRequest as error:
            if error.param == "prompt" and isinstance(body, ChatBody):  # the engine knows ids, not where they come from
                error.param = "messages"
            raise
        return prepared

    prepared = await _submitted(request, body, submit, lease, generations)
    if prepared is None:
        return Response(status_code=CLIENT_LEFT)
    reply = _reply(service, engine, body, prepared, kind, name)
    return await _answer(request, body, reply, generations)


def _reply(
    service: Service, engine: EngineInterface, body: GenerationBody, prepared: Prepared, kind: ReplyKind, name: str
) -> Reply:
    return Reply(
        kind,
        name,
        engine.info.name,
        service.fingerprint,
        DetailOptions(engine.codec, body.speculative.trace, kind.logprobs if body.wants_logprobs else None),
        prepared.echoes,
        prompt_tokens=sum(len(one.prompt_ids) for one in prepared.requests) // body.n,
        parsing=prepared.parsing if service.settings.split_reasoning else prepared.parsing.without_thoughts(),
        warnings=prepared.warnings,
        dropped=prepared.dropped,
    )


async def _submitted(
    request: Request, body: GenerationBody, submit: Callable[[], Prepared], lease: Lease, generations: Generations
) -> Prepared | None:
    """What `submit` returns, from a thread; None when the client left meanwhile."""
    size = request.state.body_bytes
    lane: LaneName = "generate" if size > SHORT or body.needs_grammar else "short"
    # admitted: it has its places in the queue
    job = service_of(request).text.run(lane, submit, tenant=request.state.tenant, size=size, admitted=True)
    try:
        prepared = await run_until_gone(request.receive, job, lambda: None)
    except BaseException:
        generations.cancel()
        raise
    finally:
        lease.queued()
    if prepared is None:
        generations.cancel()
    return prepared


async def _answer(request: Request, body: GenerationBody, reply: Reply, generations: Generations) -> Response:
    """The answer as a stream, or in one piece once it is complete."""
    service = service_of(request)

    async def on_thread(write: Callable[[], Result], entries: int) -> Result:
        size = entries * BYTES_PER_ENTRY
        return await service.text.run("reply", write, tenant=request.state.tenant, size=size, admitted=True)

    if body.stream:
        stream = frames(reply, generations, on_thread, keep_alive_after=service.keep_alive_after, usage=body.usage_chunks)
        return EventStream(stream, generations.cancel)
    work = _whole_answer(reply, generations, on_thread)
    content = await run_until_gone(request.receive, work, generations.cancel)
    if content is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(content, media_type="application/json")


def _name_request(request: Request, prefix: str) -> str:
    """The id of the reply, which X-Request-Id repeats."""
    request.state.request_id = prefix + request.state.request_id
    return str(request.state.request_id)


def _conversation(body: GenerationBody, request: Request, places: int) -> str | None:
    """The conversation that the request continues. Raises ApiError 400."""
    name = conversation_name(body.session_id, request.headers.get(SESSION_HEADER))
    if name is not None and places > 1:
        raise bad_value("`session_id` needs one prompt and one choice: a conversation continues with one answer.", "session_id")
    return name


def _places(body: GenerationBody, settings: Settings) -> int:
    """The generations that the request makes. Raises ApiError 400 for more than even an idle server takes."""
    prompts = len(body.prompt) if isinstance(body, CompletionBody) else 1
    most, whose = settings.max_running + settings.max_queued, "this server"
    if settings.max_per_key is not None and settings.max_per_key < most:
        most, whose = settings.max_per_key, "one API key"
    if prompts > most:
        prompts_at_most = "1 prompt" if most == 1 else f"{most} prompts"
        raise bad_value(f"`prompt` may hold at most {prompts_at_most}: {whose} has no more places.", "prompt")
    if prompts * body.n > most:
        raise bad_value(f"`n` may be at most {most // prompts} here: {whose} has no more places.", "n")
    return prompts * body.n


async def _whole_answer(reply: Reply, generations: Generations, on_thread: OnThread[bytes]) -> bytes:
    """The whole answer. Raises what a generation raises."""
    events: list[tuple[int, Delta | Finished]] = []
    entries = 0
    while generations.open:
        item = await generations.next()
        if item is not None:
            events.append(item)
            entries += size_of(item[1])

    def write(dump: Callable[[dict[str, Any]], bytes]) -> bytes:
        choices = reply.choices()
        for index, event in events:
            choices[index].add(event)
        return dump(reply.whole(choices))

    if entries <= LARGE:
        return write(dump)
    return await on_thread(lambda: write(dump_large), entries)
