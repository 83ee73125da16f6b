"""What the answers to a request must look like: the grammar they are held to, and how to find tool calls in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.api.errors import ApiError, bad_value
from app.api.output_parser import ToolCallOptions
from app.api.schemas import ChatBody, GenerationBody
from app.api.structured import ToolDefinition
from app.text.codec import TextCodec
from app.text.errors import GrammarError
from app.text.grammar import CompiledGrammar
from app.text.relaxed import relaxed
from app.text.thoughts import Thoughts
from app.text.tool_grammar import MAX_CALLS, Tool, ToolSchemaError, call_grammar, schema_grammar


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """grammar: what every answer must follow. calls: how to find tool calls in it.

    dropped: (path of a schema, keywords in it that are not enforced).
    """

    grammar: CompiledGrammar | None = None
    calls: ToolCallOptions | None = None
    dropped: tuple[tuple[str, frozenset[str]], ...] = ()


def answer_format(body: GenerationBody, codec: TextCodec, thoughts: Thoughts | None = None) -> AnswerFormat:
    """The format of answers without calls. thoughts: what may come before the answer. Raises ApiError 400."""
    if body.answer_schema is None:
        return AnswerFormat()
    path = body.answer_schema_path
    try:
        found = relaxed(body.answer_schema)
        grammar = schema_grammar(codec.grammars, found.schema, thoughts).asked_by(path)
    except GrammarError as error:
        raise _bad_schema(error, path) from None
    return AnswerFormat(grammar, None, ((path, found.dropped),))


def chat_format(body: ChatBody, codec: TextCodec, thoughts: Thoughts | None) -> AnswerFormat:
    """The format of a chat's answers. Raises ApiError 400, ChatTemplateError."""
    if not body.offered_tools:
        return answer_format(body, codec, thoughts)
    named = None if isinstance(body.tool_choice, str) else body.tool_choice.name
    required = named is not None or body.tool_choice == "required"
    single = named is not None or not body.parallel_tool_calls
    chosen = [(place, tool) for place, tool in enumerate(body.tools) if named in (None, tool.function.name)]
    names = frozenset(tool.function.name for _, tool in chosen)
    calls = ToolCallOptions(codec.call_format(), names, 1 if single else None)
    content: Mapping[str, Any] | None = None if required else body.answer_schema
    if not required and content is None and not any(tool.function.strict for _, tool in chosen):
        return AnswerFormat(calls=calls)
    asked_by = "tools" if content is None else body.answer_schema_path
    dropped: list[tuple[str, frozenset[str]]] = []
    tools = [_tool(tool, place, dropped) for place, tool in chosen]
    if content is not None:
        content = _relaxed(content, asked_by, dropped)
    try:
        grammar = call_grammar(
            codec.grammars,
            calls.format,
            tools,
            required=required,
            most=1 if single else MAX_CALLS,
            content=content,
            thoughts=thoughts,
        )
    except ToolSchemaError as error:
        place = next(place for place, tool in chosen if tool.function.name == error.tool)
        raise _bad_schema(error, _parameters_path(place)) from None
    except GrammarError as error:
        raise _bad_schema(error, asked_by) from None
    return AnswerFormat(grammar.asked_by(asked_by), calls, tuple(dropped))


def _tool(tool: ToolDefinition, place: int, dropped: list[tuple[str, frozenset[str]]]) -> Tool:
    """A tool for the grammar. place: its index in the request. dropped: gets the keywords that are not enforced."""
    function, strict = tool.function, bool(tool.function.strict)
    parameters: Mapping[str, Any] | None = function.parameters
    if parameters is not None:
        try:
            parameters = _relaxed(parameters, _parameters_path(place), dropped)
        except ApiError:
            if strict:
                raise
            parameters = {}  # any JSON object will do
    return Tool(function.name, parameters, strict)


def _relaxed(schema: Mapping[str, Any], path: str, dropped: list[tuple[str, frozenset[str]]]) -> Mapping[str, Any]:
    try:
        found = relaxed(schema)
    except GrammarError as error:
        raise _bad_schema(error, path) from None
    dropped.append((path, found.dropped))
    return found.schema


def _bad_schema(error: GrammarError, path: str) -> ApiError:
    return bad_value(str(error), path, "invalid_schema")


def _parameters_path(place: int) -> str:
    return f"tools.{place}.function.parameters"
