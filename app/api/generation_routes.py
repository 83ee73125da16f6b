"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.admission import Lease
from app.api.body import read_body
from app.api.details import Asked
from app.api.disconnect import run_until_gone
from app.api.errors import bad_value
from app.api.gate import CLIENT_LEFT, name_request
from app.api.generations import Generations
from app.api.json_text import dump, dump_large
from app.api.preparation import Prepared, chat_requests, completion_requests
from app.api.replies import CHAT, COMPLETION, LARGE, Reply, ReplyKind, size_of
from app.api.schemas import ChatBody, CompletionBody, GenerationBody
from app.api.service import service_of
from app.api.sessions import SESSION_HEADER, conversation_name
from app.api.streaming import EventStream, OnThread, frames
from app.api.text_work import SHORT, LaneName
from app.engine.errors import InvalidRequest
from app.engine.events import Delta, Finished
from app.engine.interface import EngineInterface
from app.settings import Settings

router = APIRouter()
BYTES_PER_ENTRY = 32
Body = TypeVar("Body", bound=GenerationBody)
Result = TypeVar("Result")


@router.post("/v1/completions", summary="Continue a text")
async def completions(request: Request) -> Response:
    return await _generate(request, CompletionBody, completion_requests, COMPLETION)


@router.post("/v1/chat/completions", summary="Answer a chat")
async def chat_completions(request: Request) -> Response:
    return await _generate(request, ChatBody, chat_requests, CHAT)


async def _generate(
    request: Request,
    model: type[Body],
    prepare: Callable[[Body, EngineInterface, str, str | None], Prepared],
    kind: ReplyKind,
) -> Response:
    """Everything that can be refused is refused here, before the first byte, streamed or not."""
    service = service_of(request)
    engine = service.ready_engine()
    limits = service.limits(engine)
    body = await read_body(request, model, service)
    service.check_model(body.model)
    limits.check_budget(body.budget, "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens")
    choices = _places(body, service.settings)
    name = name_request(request, kind.prefix)
    tenant = request.state.tenant
    conversation = _conversation(body, request, choices)
    most_bytes = service.settings.unread_bytes if body.stream else None  # what is not streamed is always taken at once
    generations = Generations(service.metrics, service.settings.request_timeout, most_bytes)
    service.opened(generations)
    lease: Lease = request.state.lease  # given back by the gate, whatever becomes of this request
    lease.reserve(choices, engine.status())

    def submit() -> Prepared:
        try:
            prepared = prepare(body, engine, tenant, conversation)
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

    size = request.state.body_bytes
    lane: LaneName = "generate" if size > SHORT or body.needs_grammar else "short"
    job = service.text.run(lane, submit, tenant=tenant, size=size, admitted=True)  # it has its places in the queue
    try:
        prepared = await run_until_gone(request.receive, job, lambda: None)
    except BaseException:
        generations.cancel()
        raise
    finally:
        lease.queued()
    if prepared is None:
        generations.cancel()
        return Response(status_code=CLIENT_LEFT)
    asked = Asked(engine.codec, body.speculative.trace, kind.logprobs if body.wants_logprobs else None)
    reply = Reply(
        kind,
        name,
        engine.info.name,
        service.fingerprint,
        asked,
        prepared.echoes,
        prompt_tokens=sum(len(request.prompt_ids) for request in prepared.requests) // body.n,
        reading=prepared.reading if service.settings.split_reasoning else prepared.reading.without_thoughts(),
        warnings=prepared.warnings,
        dropped=prepared.dropped,
    )

    async def on_thread(write: Callable[[], Result], entries: int) -> Result:
        return await service.text.run("reply", write, tenant=tenant, size=entries * BYTES_PER_ENTRY, admitted=True)

    if body.stream:
        stream = frames(reply, generations, on_thread, keep_alive_after=service.keep_alive_after, usage=body.usage_chunks)
        return EventStream(stream, generations.cancel)
    work = _collect(reply, generations, on_thread)
    content = await run_until_gone(request.receive, work, generations.cancel)
    if content is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(content, media_type="application/json")


def _conversation(body: GenerationBody, request: Request, choices: int) -> str | None:
    """The name of the conversation that it goes on with. Raises ApiError 400."""
    name = conversation_name(body.session_id, request.headers.get(SESSION_HEADER))
    if name is not None and choices > 1:
        raise bad_value("`session_id` needs one prompt and one choice: a conversation goes on with one answer.", "session_id")
    return name


def _places(body: GenerationBody, settings: Settings) -> int:
    """How many generations it makes. Raises ApiError 400 for more than even an idle server takes: waiting would not help."""
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


async def _collect(reply: Reply, generations: Generations, on_thread: OnThread[bytes]) -> bytes:
    """The whole answer. Raises what a generation raises."""
    events: list[tuple[int, Delta | Finished]] = []
    entries = 0
    while generations.open:
        item = await generations.next()
        if item is not None:
            events.append(item)
            entries += size_of(item[1])

    def write(dump: Callable[[dict[str, Any]], bytes]) -> bytes:
        answers = reply.answers()
        for index, event in events:
            answers[index].add(event)
        return dump(reply.whole(answers))

    if entries <= LARGE:
        return write(dump)
    return await on_thread(lambda: write(dump_large), entries)
