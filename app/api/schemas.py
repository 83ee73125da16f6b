"""Request bodies of all routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from app.api.field_types import LogitBias, Prompts, SessionId, Stops, TemplateOptions, TokenIds
from app.api.limits import MAX_MESSAGES
from app.api.messages import Messages
from app.api.request_model import CHAT_NO_EFFECT, COMPLETION_NO_EFFECT, IGNORED, IGNORED_STREAM_OPTIONS, RequestModel
from app.api.structured import ResponseFormat, ToolsBody
from app.api.validation import refused
from app.engine.request import DrafterName

MAX_CHOICES = 16  # per prompt
MAX_LOGPROBS = 20  # most likely tokens reported at each position
INT64 = 1 << 63
UsageChunks = Literal["none", "last", "each"]
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; chat runs to the end of the context


class StreamOptions(RequestModel):
    ignored = IGNORED_STREAM_OPTIONS

    include_usage: bool = Field(False, description="Send one more chunk with the usage before the end")
    continuous_usage_stats: bool = Field(False, description="With include_usage: the usage so far in every chunk")


class Speculative(RequestModel):
    """How this request drafts and what it accepts; all members are optional."""

    drafter: DrafterName | None = Field(
        default=None, description="none is plain decoding; draft_model and hybrid need a server with a draft model"
    )
    verifier: Literal["exact", "csd"] | None = Field(
        default=None, description="exact: the same answer as plain decoding; csd: also accept draft tokens that mean the same"
    )
    lambda_: float | None = Field(
        default=None, alias="lambda", ge=0.0, description="csd: times a pair must have diverged before it is rescued, exclusive"
    )
    tau: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="csd: minimum probability of a rescued token, as a share of the most likely token's",
    )
    rule: Literal["both", "ocm", "scg"] | None = Field(
        default=None, description="csd: memory and gate, only the memory, or only the gate"
    )
    max_nodes: int | None = Field(
        default=None, ge=1, description="Nodes of a draft tree, root included; the server sets the maximum"
    )
    trace: bool = Field(
        default=False, description="Report the source of every token and, streamed, the draft tree of every step"
    )

    @model_validator(mode="after")
    def _exact_rescues_nothing(self) -> Speculative:
        for name in ("lambda", "tau", "rule") if self.verifier == "exact" else ():
            if getattr(self, "lambda_" if name == "lambda" else name) is not None:
                raise refused("needs the verifier csd", name)
        return self


class GenerationBody(RequestModel):
    """The fields that completions and chat share."""

    ignored = IGNORED

    model: str | None = Field(None, description="The served model; may be left out")
    max_tokens: int | None = Field(None, ge=1, description="Most tokens to generate")
    max_completion_tokens: int | None = Field(None, ge=1, description="Newer name of max_tokens; takes precedence")
    temperature: float = Field(1.0, ge=0.0, le=2.0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=-1, description="0 or -1: off")
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(
        0.0, ge=-2.0, le=2.0, description="Subtracted from the logits of tokens in the answer so far"
    )
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0, description="The same, once per occurrence")
    repetition_penalty: float = Field(
        1.0, gt=0.0, le=10.0, description="Divides positive and multiplies negative logits of tokens in prompt and answer"
    )
    logit_bias: LogitBias = Field((), description="Token id -> number added to its logit; -100 bans it")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Choices for each prompt; the prompt is prefilled once")
    seed: int | None = Field(None, ge=-INT64, lt=INT64, description="Equal seeds give equal answers")
    stop: Stops = Field((), description="Up to 16 strings that end the answer; they are not part of it")
    stop_token_ids: TokenIds = Field([], description="Token ids that end the answer")
    ignore_eos: bool = Field(False, description="Continue after the end-of-sequence token")
    min_tokens: int = Field(0, ge=0, description="Minimum number of tokens before the answer may end by itself or at a stop")
    session_id: SessionId | None = Field(
        None,
        description="Name of a conversation: its next turn prefills only what is new. Also as header X-Session-Id",
    )
    response_format: ResponseFormat | None = Field(None, description="What the answer must look like")
    stream: bool = False
    stream_options: StreamOptions | None = Field(None, description="Only with stream: true")
    speculative: Speculative = Field(default_factory=Speculative)

    @model_validator(mode="after")
    def _options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise refused("needs `stream: true`", "stream_options")
        return self

    @model_validator(mode="after")
    def _at_least_at_most(self) -> GenerationBody:
        if self.budget is not None and self.min_tokens > self.budget:
            raise refused("must not be greater than the maximum number of tokens", "min_tokens")
        return self

    @model_validator(mode="after")
    def _formats_end(self) -> GenerationBody:
        if self.ignore_eos and self.answer_schema is not None:
            raise refused("cannot go with a `response_format` of JSON, which has an end", "ignore_eos")
        return self

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The schema an answer must match; None: it is free text."""
        return None if self.response_format is None else self.response_format.answer_schema

    @property
    def needs_grammar(self) -> bool:
        """Whether the answer must follow a grammar, which takes time to compile."""
        return self.answer_schema is not None

    @property
    def answer_schema_path(self) -> str:
        """The path of the schema in the request."""
        given = self.response_format is not None and self.response_format.json_schema is not None
        return "response_format.json_schema.schema" if given else "response_format"

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities are reported."""
        return self.top_count is not None

    @property
    def top_count(self) -> int | None:
        """Most likely tokens to report at each position; None: no log-probabilities at all."""
        return None

    @property
    def budget(self) -> int | None:
        """Most tokens to generate, as the client said."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def usage_chunks(self) -> UsageChunks:
        """Which chunks of a stream carry the usage."""
        options = self.stream_options
        if options is None or not options.include_usage:
            return "none"
        return "each" if options.continuous_usage_stats else "last"


class CompletionBody(GenerationBody):
    """POST /v1/completions. Without a budget it generates 16 tokens."""

    no_effect = COMPLETION_NO_EFFECT

    prompt: Prompts = Field(description="Text or token ids; several prompts give several choices")
    echo: bool = Field(False, description="Return the prompt before the answer")
    logprobs: Annotated[int | None, BeforeValidator(lambda value: None if value is False else value)] = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Report log-probabilities of each token and of this many most likely ones"
    )

    @property
    def top_count(self) -> int | None:
        return self.logprobs


class ChatBody(ToolsBody, GenerationBody):
    """POST /v1/chat/completions. Without a budget it generates up to the end of the context."""

    ignored = IGNORED - {"parallel_tool_calls"}
    no_effect = CHAT_NO_EFFECT

    messages: Messages = Field(min_length=1, description=f"At most {MAX_MESSAGES}")
    logprobs: bool = Field(False, description="Report the log-probability of each token")
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS, description="Most likely tokens to report at each position")
    parallel_tool_calls: bool = Field(True, description="Whether one answer may make several calls")
    chat_template_kwargs: TemplateOptions = Field({}, description="Variables for the chat template, such as enable_thinking")
    include_reasoning: bool = Field(True, description="Return the thoughts of a reasoning model as reasoning_content")

    @model_validator(mode="after")
    def _calls_end(self) -> ChatBody:
        if self.ignore_eos and self.tools and self.tool_choice not in ("none", "auto"):
            raise refused("cannot go with calls that must be made, which have an end", "ignore_eos")
        return self

    @model_validator(mode="after")
    def _top_of_something(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise refused("needs `logprobs: true`", "top_logprobs")
        return self

    @property
    def needs_grammar(self) -> bool:
        held = self.tool_choice != "auto" or any(tool.function.strict for tool in self.tools)
        return super().needs_grammar or (bool(self.offered_tools) and held)

    @property
    def top_count(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class TokenizeBody(ToolsBody):
    """POST /tokenize: either a prompt, or messages and tools as a chat takes them."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = Field(
        True, description="Add the tokens that the tokenizer puts around a text, such as BOS; prompt only"
    )
    messages: Messages | None = Field(None, min_length=1)
    chat_template_kwargs: TemplateOptions = Field({}, description="Variables for the chat template; with messages only")

    @model_validator(mode="after")
    def _either(self) -> TokenizeBody:
        if self.prompt is None and self.messages is None:
            raise refused("is required, or `messages`", "prompt")
        if self.prompt is not None and self.messages is not None:
            raise refused("and `messages` exclude each other", "prompt")
        if self.prompt is not None and self.tools:
            raise refused("goes with `messages` only", "tools")
        if self.prompt is not None and self.chat_template_kwargs:
            raise refused("goes with `messages` only", "chat_template_kwargs")
        return self


class DetokenizeBody(RequestModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds
