"""From a validated body to generation requests for the engine. It tokenises, so call it off the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.api.answer_format import answer_format, chat_format
from app.api.errors import bad_value
from app.api.field_types import Prompt
from app.api.limits import check_echo
from app.api.messages import Message
from app.api.output_parser import ParserOptions
from app.api.schemas import DEFAULT_COMPLETION_TOKENS, ChatBody, CompletionBody, GenerationBody, Speculative
from app.api.structured import ToolDefinition
from app.api.token_details import Echo
from app.engine.interface import EngineInterface
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.text.codec import ChatPrompt, TextCodec
from app.text.errors import ChatTemplateError

SEED_STEP = 0x9E3779B97F4A7C15  # the golden ratio in 64 bits: spreads the seeds of choices
INT63 = (1 << 63) - 1
# JSON schema keywords that are not enforced -> what the reply says about them
_DROPPED_KEYWORDS = {
    "format": "The schema names a `format` of strings that this server does not know; it was not enforced. Use `pattern`.",
    "uniqueItems": "The schema asks for `uniqueItems`; it was not enforced.",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """One generation per choice, the choices of a prompt next to each other, and the prompt that each echoes.

    parsing: how to split the answers into thoughts, content and tool calls. warnings: for the reply. scores:
    log-probabilities of echoed tokens.
    """

    requests: list[GenerationRequest]
    echoes: list[Echo | None]
    parsing: ParserOptions = field(default_factory=ParserOptions)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    dropped: int = 0  # characters of the prompts that the vocabulary cannot spell
    scores: int = 0


def completion_requests(body: CompletionBody, engine: EngineInterface, tenant: str, conversation: str | None) -> Prepared:
    """`n` choices of each prompt. Raises ApiError 400."""
    with engine.codec.grammars.one_request():
        form = answer_format(body, engine.codec)
    prepared, lost = Prepared([], [], warnings=_schema_warnings(form.dropped)), 0
    scores = characters = 0
    for prompt in body.prompt:
        ids = _prompt_ids(prompt, engine)
        request = _request(body, ids, _completion_budget(body, ids, engine), engine, tenant, conversation)
        request = replace(request, continue_text=True, prompt_logprobs=body.echo and body.wants_logprobs, grammar=form.grammar)
        dropped = engine.codec.dropped(prompt, ids) if isinstance(prompt, str) else 0
        lost += dropped
        echo = None
        if body.echo:
            text = prompt if isinstance(prompt, str) else engine.codec.decode(ids, skip_special_tokens=False)
            echo = Echo(text, request.prompt_ids, dropped)
            scores += 0 if body.logprobs is None else len(ids) * body.n * (1 + body.logprobs)
            characters += len(text) * body.n
            check_echo(scores, characters)
        prepared.requests.extend(_choices(request, body.n))
        prepared.echoes.extend([echo] * body.n)
    warnings = [*prepared.warnings, *_dropped_warning(lost, "prompt")]
    return replace(prepared, warnings=warnings, dropped=lost, scores=scores)


def chat_requests(body: ChatBody, engine: EngineInterface, tenant: str, conversation: str | None) -> Prepared:
    """The choices of a chat. Raises ApiError 400, ChatTemplateError."""
    prompt = chat_prompt(body.messages, engine.codec, body.offered_tools, body.chat_template_kwargs)
    with engine.codec.grammars.one_request():
        form = chat_format(body, engine.codec, prompt.thoughts)
    request = replace(_request(body, prompt.ids, body.budget, engine, tenant, conversation), grammar=form.grammar)
    parsing = ParserOptions(form.calls, prompt.thoughts, body.include_reasoning)
    warnings = _schema_warnings(form.dropped) + _dropped_warning(prompt.dropped, "messages")
    return Prepared(_choices(request, body.n), [None] * body.n, parsing, warnings, prompt.dropped)


def _choices(request: GenerationRequest, n: int) -> list[GenerationRequest]:
    """The request n times with different seeds; the first keeps the given one."""
    if n == 1:
        return [request]
    group, seed = object(), request.sampling.seed
    seeds = [None if seed is None else seed ^ (index * SEED_STEP & INT63) for index in range(n)]
    return [replace(request, group=group, sampling=replace(request.sampling, seed=own)) for own in seeds]


def chat_prompt(
    messages: Sequence[Message], codec: TextCodec, tools: Sequence[ToolDefinition], options: Mapping[str, Any]
) -> ChatPrompt:
    """Raises ApiError 400, ChatTemplateError."""
    try:
        return codec.read_chat(
            [message.for_template() for message in messages], [tool.for_template() for tool in tools], options
        )
    except ChatTemplateError:
        raise
    except ValueError:  # such as a lone surrogate, escaped in the JSON text of a tool call's arguments
        raise bad_value("`messages` cannot be tokenised.", "messages") from None


def text_ids(text: str, codec: TextCodec, add_special_tokens: bool = True) -> list[int]:
    """Raises ApiError 400."""
    try:
        return codec.encode(text, add_special_tokens)
    except ValueError:
        raise bad_value("`prompt` cannot be tokenised.", "prompt") from None


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises ApiError 400 for ids outside the vocabulary."""
    if any(not 0 <= token < vocab_size for token in ids):
        raise bad_value(f"`{param}` must hold token ids from 0 to {vocab_size - 1}.", param)


def _prompt_ids(prompt: Prompt, engine: EngineInterface) -> Sequence[int]:
    if not isinstance(prompt, str):
        check_ids(prompt, engine.info.vocab_size, "prompt")
        return prompt
    ids = text_ids(prompt, engine.codec)
    if not ids:
        raise bad_value("`prompt` is empty: a prompt needs at least one token.", "prompt")
    return ids


def _completion_budget(body: CompletionBody, ids: Sequence[int], engine: EngineInterface) -> int:
    if body.budget is not None:
        return body.budget
    return max(1, min(DEFAULT_COMPLETION_TOKENS, engine.info.max_context - len(ids)))


def _request(
    body: GenerationBody,
    ids: Sequence[int],
    budget: int | None,
    engine: EngineInterface,
    tenant: str,
    conversation: str | None,
) -> GenerationRequest:
    check_ids(body.stop_token_ids, engine.info.vocab_size, "stop_token_ids")
    check_ids([token for token, _ in body.logit_bias], engine.info.vocab_size, "logit_bias")
    return GenerationRequest(
        prompt_ids=tuple(ids),
        sampling=_sampling(body),
        stopping=StopParams(
            max_tokens=budget,
            stop=body.stop,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            min_tokens=body.min_tokens,
        ),
        speculation=_speculation(body.speculative),
        tenant=tenant,
        logprobs=body.top_count,
        conversation=conversation,
    )


def _sampling(body: GenerationBody) -> SamplingParams:
    return SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(0, body.top_k),
        min_p=body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
    )


def _speculation(body: Speculative) -> SpeculationParams:
    return SpeculationParams(
        drafter=body.drafter,
        verifier=body.verifier,
        max_nodes=body.max_nodes,
        lambda_=body.lambda_,
        tau=body.tau,
        rule=body.rule,
        trace=body.trace,
    )


def _warning(message: str, param: str, code: str) -> dict[str, Any]:
    """An entry of `warnings`. message must not quote the user; param is a dotted path into the request."""
    return {"message": message, "param": param, "code": code}


def _schema_warnings(dropped: Iterable[tuple[str, frozenset[str]]]) -> list[dict[str, Any]]:
    """One warning for each keyword that is not enforced. dropped: (path of a schema, keywords)."""
    return [
        _warning(_DROPPED_KEYWORDS[name], path, "schema_keyword_ignored") for path, names in dropped for name in sorted(names)
    ]


def _dropped_warning(count: int, param: str) -> list[dict[str, Any]]:
    """The warning for characters of the prompt that the model's vocabulary cannot spell, if any."""
    if not count:
        return []
    what = "1 character" if count == 1 else f"{count} characters"
    message = f"The model's vocabulary cannot spell {what} of the prompt; the model read the rest."
    return [_warning(message, param, "dropped_characters")]
