"""What holds an answer to a shape, and what reads calls out of it: from a validated body, for the engine and the reply."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.api.errors import bad_value
from app.api.schemas import ChatBody, GenerationBody
from app.text.codec import TextCodec
from app.text.errors import GrammarError
from app.text.grammar import Grammar
from app.text.tool_calls import CallFormat, CallParser, ToolCall
from app.text.tool_grammar import MAX_CALLS, Tool, ToolSchemaError, call_grammar

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallReader:
    """How to read the calls of one request's answers."""

    form: CallFormat
    names: frozenset[str]
    limit: int | None

    def parser(self) -> CallParser:
        return CallParser(self.form, self.names, self.limit)

    def shown(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """Calls as a reply's `tool_calls`, each with an id of its own."""
        return [
            {"id": self._new_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]

    def _new_id(self) -> str:
        if self.form.short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def answer_grammar(body: GenerationBody, codec: TextCodec) -> Grammar | None:
    """The grammar of an answer without calls. Raises ApiError 400."""
    schema = body.answer_schema
    if schema is None:
        return None
    try:
        return codec.grammars.json_schema(schema).asked_by(body.answer_schema_path)
    except GrammarError as error:
        raise bad_value(str(error), body.answer_schema_path, "invalid_schema") from None


def chat_grammar(body: ChatBody, codec: TextCodec) -> tuple[Grammar | None, CallReader | None]:
    """The grammar of a chat's answer, and what reads the calls in it. Raises ApiError 400, ChatTemplateError."""
    offered = body.offered_tools
    if not offered:
        return answer_grammar(body, codec), None
    form = codec.call_format()
    named = None if isinstance(body.tool_choice, str) else body.tool_choice.name
    required = named is not None or body.tool_choice == "required"
    tools = [
        Tool(tool.function.name, tool.function.parameters, bool(tool.function.strict))
        for tool in offered
        if named in (None, tool.function.name)
    ]
    single = named is not None or not body.parallel_tool_calls
    reader = CallReader(form, frozenset(tool.name for tool in tools), 1 if single else None)
    content = None if required else body.answer_schema
    asked_by = "tools" if content is None else body.answer_schema_path
    if not required and content is None and not any(tool.strict for tool in tools):
        return None, reader
    try:
        most = 1 if single else MAX_CALLS
        grammar = call_grammar(codec.grammars, form, tools, required=required, most=most, content=content)
    except ToolSchemaError as error:
        place = next(place for place, tool in enumerate(body.tools) if tool.function.name == error.tool)
        raise bad_value(str(error), f"tools.{place}.function.parameters", "invalid_schema") from None
    except GrammarError as error:
        raise bad_value(str(error), asked_by, "invalid_schema") from None
    return grammar.asked_by(asked_by), reader
