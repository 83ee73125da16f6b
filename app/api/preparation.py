"""From a validated body to what the engine runs. Tokenises, so it belongs on a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.api.details import Echo
from app.api.errors import bad_value
from app.api.limits import check_echo
from app.api.messages import Message
from app.api.prompts import Prompt
from app.api.reading import AnswerFormat
from app.api.schemas import DEFAULT_COMPLETION_TOKENS, ChatBody, CompletionBody, GenerationBody
from app.api.structured import ToolDefinition
from app.api.tools import answer_shape, chat_shape
from app.api.warnings import dropped_warning, schema_warnings
from app.engine.interface import EngineInterface
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.text.codec import ChatPrompt, TextCodec
from app.text.errors import ChatTemplateError

SEED_STEP = 0x9E3779B97F4A7C15  # spreads the seeds of choices over all 64-bit numbers
INT63 = (1 << 63) - 1
GREEDY_BELOW = 1e-5  # temperatures under it differ from greedy only by overflow


@dataclass(frozen=True, slots=True)
class Prepared:
    """One generation for each choice, the choices of a prompt side by side, and the prompt that each gives back.

    reading: how thoughts and tool calls are told from the text of the answers. warnings: for the reply. scores:
    log-probabilities of echoed tokens.
    """

    requests: list[GenerationRequest]
    echoes: list[Echo | None]
    reading: AnswerFormat = field(default_factory=AnswerFormat)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    dropped: int = 0  # characters of the prompts that the vocabulary cannot spell
    scores: int = 0


def completion_requests(body: CompletionBody, engine: EngineInterface, tenant: str, conversation: str | None) -> Prepared:
    """`n` choices of each prompt. Raises ApiError 400."""
    with engine.codec.grammars.one_request():
        shape = answer_shape(body, engine.codec)
    prepared, lost = Prepared([], [], warnings=schema_warnings(shape.dropped)), 0
    scores = characters = 0
    for prompt in body.prompt:
        ids = _prompt_ids(prompt, engine)
        request = _request(body, ids, _completion_budget(body, ids, engine), engine, tenant, conversation)
        request = replace(request, continue_text=True, prompt_logprobs=body.echo and body.wants_logprobs, grammar=shape.grammar)
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
    warnings = [*prepared.warnings, *dropped_warning(lost, "prompt")]
    return replace(prepared, warnings=warnings, dropped=lost, scores=scores)


def chat_requests(body: ChatBody, engine: EngineInterface, tenant: str, conversation: str | None) -> Prepared:
    """The choices of a chat. Raises ApiError 400, ChatTemplateError."""
    prompt = chat_prompt(body.messages, engine.codec, body.offered_tools, body.chat_template_kwargs)
    with engine.codec.grammars.one_request():
        shape = chat_shape(body, engine.codec, prompt.thoughts)
    request = replace(_request(body, prompt.ids, body.budget, engine, tenant, conversation), grammar=shape.grammar)
    reading = AnswerFormat(shape.calls, prompt.thoughts, body.include_reasoning)
    warnings = schema_warnings(shape.dropped) + dropped_warning(prompt.dropped, "messages")
    return Prepared(_choices(request, body.n), [None] * body.n, reading, warnings, prompt.dropped)


def _choices(request: GenerationRequest, n: int) -> list[GenerationRequest]:
    """The request n times, each with a seed of its own; the first keeps the seed that was given."""
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
    except ValueError:  # for one, the JSON text in a tool call's arguments may escape half of a surrogate pair
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
    speculative = body.speculative
    return GenerationRequest(
        prompt_ids=tuple(ids),
        sampling=SamplingParams(
            temperature=0.0 if body.temperature < GREEDY_BELOW else body.temperature,
            top_p=body.top_p,
            top_k=max(0, body.top_k),
            min_p=body.min_p,
            seed=body.seed,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias=body.logit_bias,
        ),
        stopping=StopParams(
            max_tokens=budget,
            stop=body.stop,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            min_tokens=body.min_tokens,
        ),
        speculation=SpeculationParams(
            drafter=speculative.drafter,
            verifier=speculative.verifier,
            max_nodes=speculative.max_nodes,
            lambda_=speculative.lambda_,
            tau=speculative.tau,
            rule=speculative.rule,
            trace=speculative.trace,
        ),
        tenant=tenant,
        logprobs=body.top_count,
        conversation=conversation,
    )
