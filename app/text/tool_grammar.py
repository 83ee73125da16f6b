"""Grammars of answers with tool calls, in the model's own call format and with the parameters of each tool."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.text.errors import GrammarError, GrammarTooExpensive
from app.text.grammar import CompiledGrammar
from app.text.grammar_compiler import GrammarCompiler
from app.text.thoughts import Thoughts, thought_rules
from app.text.tool_calls import CLOSE, OPEN, CallFormat

MAX_CALLS = 16  # in an answer that must call; stops a model that would call without end
_ANY_TEXT = r"/(.|\n)*/"
_NO_JSON = r"/\s*([^{\[\s](.|\n)*)?/"  # text that cannot begin a bare call


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: JSON schema of an object; None: it takes none."""

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False  # refuse a schema that cannot be enforced


class ToolSchemaError(GrammarError):
    """The parameters of a strict tool cannot be enforced, or those of any tool take too long to compile. tool: its name."""

    def __init__(self, message: str, tool: str) -> None:
        super().__init__(message)
        self.tool = tool


def call_grammar(
    compiler: GrammarCompiler,
    form: CallFormat,
    tools: Sequence[Tool],
    *,
    required: bool,
    most: int = MAX_CALLS,
    content: Mapping[str, Any] | None = None,
    thoughts: Thoughts | None = None,
) -> CompiledGrammar:
    """A grammar of answers with calls.

    required: one to `most` calls and nothing else. Otherwise the answer may also be content: JSON that matches the schema
    `content`, or without one any text, in which a call must match its schema once it has begun. thoughts: what may come first.
    Raises ToolSchemaError, and GrammarError for `content`.
    """
    calls = [f"call_{place}" for place in range(len(tools))]
    rules = [f"call: {' | '.join(calls)}"]
    rules += [f"{name}: {_object(compiler, form, tool)}" for name, tool in zip(calls, tools, strict=True)]
    rules += _several(form, most)
    plain = _NO_JSON if thoughts is None else f"{_NO_JSON} & NO_THOUGHTS"
    rules += [f"PLAIN: {plain}"]
    if required:
        rules.append("answer: calls")
    elif content is not None:
        rules += [f"content: {compiler.embedded(content)}", "answer: calls | content"]
    elif form.style == "tagged" and form.marks[0] is None:
        end = _text("\n" + CLOSE)
        more = "" if most == 1 else f'(again "\\n" call {end})*'
        rules += [f"begun[lazy]: PLAIN {_text(OPEN)}", f"again[lazy]: {_ANY_TEXT} {_text(OPEN)}"]
        rules += [f"TEXT: {_ANY_TEXT}", "rest: TEXT"]
        rules.append(f'answer: call | PLAIN | begun "\\n" call {end} {more} rest')
    else:
        rules.append("answer: calls | PLAIN")
    return _after(compiler, thoughts, rules)


def schema_grammar(compiler: GrammarCompiler, schema: Mapping[str, Any], thoughts: Thoughts | None = None) -> CompiledGrammar:
    """A grammar of answers that match a JSON schema, after any thoughts. Raises GrammarError."""
    if thoughts is None:
        return compiler.json_schema(schema)
    return _after(compiler, thoughts, [f"answer: {compiler.embedded(schema)}"])


def _after(compiler: GrammarCompiler, thoughts: Thoughts | None, rules: Sequence[str]) -> CompiledGrammar:
    """A grammar that starts with the rule `answer`, after any thoughts."""
    if thoughts is None:
        return compiler.lark("\n".join([*rules, "start: answer"]))
    return compiler.lark("\n".join([*rules, *thought_rules(thoughts), "start: begin answer"]))


def _several(form: CallFormat, most: int) -> list[str]:
    """The rule `calls`: one to `most` calls."""
    opening, closing = form.marks
    more = f"{{0,{most - 1}}}"
    if form.style == "tagged":
        begin = _text(OPEN) if opening is None else f"<[{opening}]>"
        end = _text(CLOSE) if closing is None else f"<[{closing}]>"
        one = f"one: {begin} {_text(chr(10))} call {_text(chr(10))} {end}"
        return [one, "calls: one" if most == 1 else f"calls: one ({_text(chr(10))} one){more}"]
    if form.style == "listed":
        begin = "" if opening is None else f"<[{opening}]>"
        inner = "call" if most == 1 else f'call (", " call){more}'
        return [f"calls: {begin} {_text(form.separator + '[')} {inner} {_text(']')}"]
    return ["calls: call"]


def _object(compiler: GrammarCompiler, form: CallFormat, tool: Tool) -> str:
    head = f'{{"name": {json.dumps(tool.name)}, "{form.arguments}": '
    try:
        arguments = compiler.embedded(_parameters(tool))
    except GrammarError as error:
        if tool.strict or isinstance(error, GrammarTooExpensive):
            raise ToolSchemaError(str(error), tool.name) from None
        arguments = compiler.embedded({"type": "object"})
    return f"{_text(head)} {arguments} {_text('}')}"


def _parameters(tool: Tool) -> Mapping[str, Any]:
    if tool.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **tool.parameters}


def _text(literal: str) -> str:
    return json.dumps(literal, ensure_ascii=False)
