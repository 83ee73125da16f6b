"""Renders chat messages with a model's chat template."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from app.text.control import ControlNames, Shield
from app.text.errors import ChatTemplateError
from app.text.thoughts import Tags, tags_of

NO_TEMPLATE = "This model has no chat template; use /v1/completions or start with a template file."
_LONGEST_MESSAGE = 300  # characters of a template's own words in an error

# What a template may raise: its own refusal, or any Python error inside it. Templates come with models, so none of these is a
# fault of the service.
_RENDER_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ChatTemplate:
    """Renders messages with the template of a Hugging Face tokenizer, or with `override` instead."""

    def __init__(self, tokenizer: Any, override: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._override = override
        own: Any = override if override is not None else getattr(tokenizer, "chat_template", None)
        named: dict[str, str] = own if isinstance(own, dict) else {"default": own or ""}
        self._source = "\n".join(named.values())
        # of several templates the tokenizer uses tool_use with tools, and default without
        self._default = named.get("default", "")
        self._tool_use = named.get("tool_use", self._default)

    @property
    def present(self) -> bool:
        return bool(self._source)

    @property
    def with_tools(self) -> str:
        """The source of the template that renders tools."""
        return self._tool_use

    @property
    def tags(self) -> Tags | None:
        """The tags that the model writes around its thoughts, according to the template."""
        return tags_of(self._source)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        names: ControlNames | None = None,
    ) -> tuple[str, Shield]:
        """The prompt text, up to where the assistant's answer begins. options: more template variables.

        names: control tokens whose names are plain text where the user wrote them; the shield says how the prompt text spells
        them. Raises ChatTemplateError, which never quotes the user, and ValueError.
        """
        if not self.present:
            raise ChatTemplateError(NO_TEMPLATE)
        self._refuse_unrendered(messages, tools)
        plain = [_plain(message, index) for index, message in enumerate(messages)]
        shield = Shield((plain, tools, options))
        if names is not None:
            try:
                shield = names.shield(plain, tools, options, source=self._source)
            except RecursionError:
                raise ChatTemplateError("The messages or tools nest too deeply.") from None
        return self._render_any(*shield.values), shield

    def _render_any(
        self, plain: list[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, options: Mapping[str, Any] | None
    ) -> str:
        """Render, with the role `developer` as `system` where the template does not support it."""
        as_system = [{**message, "role": "system"} if message.get("role") == "developer" else message for message in plain]
        if as_system != plain:
            if "developer" not in self._source:
                return self._render(as_system, tools, options)
            try:
                return self._render(plain, tools, options)
            except ChatTemplateError:
                return self._render(as_system, tools, options)
        return self._render(plain, tools, options)

    def _refuse_unrendered(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None) -> None:
        """Raises ChatTemplateError for tools and calls that the template would silently leave out."""
        source = self._tool_use if tools else self._default
        if tools and "tools" not in source:
            raise ChatTemplateError("This model's chat template does not render tools.", "tools")
        for index, message in enumerate(messages):
            if message.get("tool_calls") and "tool_calls" not in source:
                path = f"messages.{index}.tool_calls"
                raise ChatTemplateError("This model's chat template does not render tool calls.", path)

    def _render(
        self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, options: Mapping[str, Any] | None
    ) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages,
                tools=list(tools) if tools else None,
                chat_template=self._override,
                add_generation_prompt=True,
                tokenize=False,
                **(options or {}),
            )
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"The chat template is broken: line {error.lineno}: {error.message}") from None
        except _RENDER_ERRORS as error:
            words = self._own_words(str(error)) or type(error).__name__
            raise ChatTemplateError(f"The chat template refuses these messages: {words}") from None
        return str(rendered)

    def _own_words(self, message: str) -> str:
        """The beginning of an error message, as far as the template contains it: the rest may quote the user."""
        source = self._source.replace("\\'", "'").replace('\\"', '"').replace("\\n", "\n")
        message = message[:_LONGEST_MESSAGE]
        # If a prefix is contained, so is every shorter one: the longest can be bisected.
        lengths = range(1, len(message) + 1)
        own = bisect_right(lengths, False, key=lambda length: message[:length] not in source)
        return message[:own].strip() if own >= min(8, len(message)) else ""


def _plain(message: dict[str, Any], index: int) -> dict[str, Any]:
    """The message as templates expect it: content as a string, arguments of tool calls as an object, not JSON text."""
    plain = {**message, "content": message.get("content") or ""}
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = [_plain_call(call, f"messages.{index}.tool_calls.{place}") for place, call in enumerate(calls)]
    return plain


def _plain_call(call: Any, path: str) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    except RecursionError:
        raise ChatTemplateError("The arguments of a tool call nest too deeply.", f"{path}.function.arguments") from None
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
