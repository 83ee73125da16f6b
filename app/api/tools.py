"""What holds an answer to a shape, and what reads calls out of it: from a validated body, for the engine and the reply."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.api.errors import bad_value
from app.api.schemas import ChatBody, GenerationBody
from app.text.codec import TextCodec
from app.text.errors import GrammarError
from app.text.grammar import CompiledGrammar
from app.text.relaxed import relaxed
from app.text.thoughts import Thoughts
from app.text.tool_calls import CallFormat, CallParser, ParsedCall
from app.text.tool_grammar import MAX_CALLS, Tool, ToolSchemaError, call_grammar, schema_grammar

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallReader:
    """How to read the calls of one request's answers."""

    form: CallFormat
    names: frozenset[str]
    limit: int | None

    def parser(self) -> CallParser:
        return CallParser(self.form, self.names, self.limit)

    def shown(self, calls: Sequence[ParsedCall]) -> list[dict[str, Any]]:
        """Calls as a reply's `tool_calls`, each with an id of its own."""
        return [
            {"id": self._new_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]

    def _new_id(self) -> str:
        if self.form.short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the answers of one request look like. grammar: what they are held to. calls: how to read calls out of them.

    dropped: (path of a schema, keywords in it that are not kept to).
    """

    grammar: CompiledGrammar | None = None
    calls: CallReader | None = None
    dropped: tuple[tuple[str, frozenset[str]], ...] = ()


def answer_shape(body: GenerationBody, codec: TextCodec, thoughts: Thoughts | None = None) -> Shape:
    """The shape of answers without calls. thoughts: what may come before them. Raises ApiError 400."""
    if body.answer_schema is None:
        return Shape()
    path = body.answer_schema_path
    try:
        found = relaxed(body.answer_schema)
        grammar = schema_grammar(codec.grammars, found.schema, thoughts).asked_by(path)
    except GrammarError as error:
        raise bad_value(str(error), path, "invalid_schema") from None
    return Shape(grammar, None, ((path, found.dropped),))


def chat_shape(body: ChatBody, codec: TextCodec, thoughts: Thoughts | None) -> Shape:
    """The shape of a chat's answers. Raises ApiError 400, ChatTemplateError."""
    offered = body.offered_tools
    if not offered:
        return answer_shape(body, codec, thoughts)
    form = codec.call_format()
    named = None if isinstance(body.tool_choice, str) else body.tool_choice.name
    required = named is not None or body.tool_choice == "required"
    chosen = [(place, tool.function) for place, tool in enumerate(body.tools) if named in (None, tool.function.name)]
    single = named is not None or not body.parallel_tool_calls
    reader = CallReader(form, frozenset(tool.name for _, tool in chosen), 1 if single else None)
    content: Mapping[str, Any] | None = None if required else body.answer_schema
    asked_by = "tools" if content is None else body.answer_schema_path
    if not required and content is None and not any(tool.strict for _, tool in chosen):
        return Shape(calls=reader)
    dropped: list[tuple[str, frozenset[str]]] = []

    def kept(schema: Mapping[str, Any], path: str, strict: bool = True) -> Mapping[str, Any]:
        try:
            found = relaxed(schema)
        except GrammarError as error:
            if strict:
                raise bad_value(str(error), path, "invalid_schema") from None
            return {}  # any JSON object will do
        dropped.append((path, found.dropped))
        return found.schema

    tools = [
        Tool(
            tool.name,
            None if tool.parameters is None else kept(tool.parameters, _parameters_path(place), bool(tool.strict)),
            bool(tool.strict),
        )
        for place, tool in chosen
    ]
    content = None if content is None else kept(content, asked_by)
    try:
        most = 1 if single else MAX_CALLS
        grammar = call_grammar(codec.grammars, form, tools, required=required, most=most, content=content, thoughts=thoughts)
    except ToolSchemaError as error:
        place = next(place for place, tool in chosen if tool.name == error.tool)
        raise bad_value(str(error), _parameters_path(place), "invalid_schema") from None
    except GrammarError as error:
        raise bad_value(str(error), asked_by, "invalid_schema") from None
    return Shape(grammar.asked_by(asked_by), reader, tuple(dropped))


def _parameters_path(place: int) -> str:
    return f"tools.{place}.function.parameters"
