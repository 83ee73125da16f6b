"""From a validated body to what the engine runs. Tokenises, so it belongs on a thread."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.errors import bad_value
from app.api.messages import Message
from app.api.prompts import Prompt
from app.api.schemas import DEFAULT_COMPLETION_TOKENS, ChatBody, CompletionBody, GenerationBody
from app.engine.interface import EngineInterface
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.text.codec import TextCodec
from app.text.errors import ChatTemplateError

GREEDY_BELOW = 1e-5  # temperatures under it differ from greedy only by overflow


def completion_requests(body: CompletionBody, engine: EngineInterface, tenant: str) -> list[GenerationRequest]:
    """One request per prompt. Raises ApiError 400."""
    prompts = [_prompt_ids(prompt, engine) for prompt in body.prompt]
    return [_request(body, ids, _completion_budget(body, ids, engine), engine, tenant, continue_text=True) for ids in prompts]


def chat_requests(body: ChatBody, engine: EngineInterface, tenant: str) -> list[GenerationRequest]:
    """The one request of a chat. Raises ApiError 400, ChatTemplateError."""
    ids = message_ids(body.messages, engine.codec)
    return [_request(body, ids, body.budget, engine, tenant, continue_text=False)]


def message_ids(messages: Sequence[Message], codec: TextCodec) -> list[int]:
    """Raises ApiError 400, ChatTemplateError."""
    try:
        return codec.encode_chat([message.for_template() for message in messages])
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
    *,
    continue_text: bool,
) -> GenerationRequest:
    check_ids(body.stop_token_ids, engine.info.vocab_size, "stop_token_ids")
    speculative = body.speculative
    return GenerationRequest(
        prompt_ids=tuple(ids),
        sampling=SamplingParams(
            temperature=0.0 if body.temperature < GREEDY_BELOW else body.temperature,
            top_p=body.top_p,
            top_k=max(0, body.top_k),
            min_p=body.min_p,
            seed=body.seed,
        ),
        stopping=StopParams(
            max_tokens=budget,
            stop=body.stop,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
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
        continue_text=continue_text,
    )
