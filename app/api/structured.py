"""Request fields for structured output and tools: response_format, tools, tool_choice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema, model_validator

from app.api.request_model import RequestModel
from app.api.validation import refused

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_name(value: str) -> str:
    if NAME.fullmatch(value) is None:
        raise refused("must be 1 to 64 letters, digits, underscores and dashes")
    return value


Name = Annotated[
    str,
    AfterValidator(check_name),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"}),
]


class JsonSchemaFormat(RequestModel):
    """A schema that the answer must match. It is enforced whether `strict` is set or not."""

    name: Name
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", description="A JSON schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """What an answer looks like: text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = Field(None, description="With the type json_schema only")

    @model_validator(mode="after")
    def _schema_with_its_type(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise refused("is required with the type json_schema", "json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise refused("goes with the type json_schema only", "json_schema")
        return self

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The schema an answer must match; None: it is free text."""
        if self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class FunctionDefinition(RequestModel):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object")
    strict: bool | None = None

    @model_validator(mode="after")
    def _object(self) -> FunctionDefinition:
        if (self.parameters or {}).get("type", "object") != "object":
            raise refused("must be a schema of the type object", "parameters")
        return self


class ToolDefinition(RequestModel):
    """A function that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The function that must be called."""

    name: str


def parse_choice(value: Any) -> str | NamedTool:
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    if value == "any" or (isinstance(value, dict) and value.get("type") == "any"):
        raise refused("takes 'required' for what other servers call 'any': at least one call")
    if not isinstance(value, dict):
        raise refused("must be 'none', 'auto', 'required' or an object that names a function")
    if value.get("type") != "function":
        raise refused("must be 'function'", "type")
    function = value.get("function")
    if not isinstance(function, dict):
        raise refused("must be an object", "function")
    if not isinstance(function.get("name"), str):
        raise refused("must be a string", "function.name")
    if value.keys() - {"type", "function"} or function.keys() - {"name"}:
        raise refused("has a field this server does not know")
    return NamedTool(function["name"])


_NAMED = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
ToolChoice = Annotated[
    str | NamedTool,
    PlainValidator(parse_choice),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, _NAMED]}),
]


class ToolsBody(RequestModel):
    """The fields of every body with tools."""

    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(
        [], description="Functions that the model may call"
    )
    tool_choice: ToolChoice = Field("auto", description="Whether the model may call, must call, or must call this one")

    @model_validator(mode="after")
    def _tools_exist(self) -> ToolsBody:
        names = [tool.function.name for tool in self.tools]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise refused("is the name of an earlier tool too", f"tools.{place}.function.name")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.name not in names:
            raise refused("must be the name of one of the tools", "tool_choice.function.name")
        if self.tool_choice == "required" and not names:
            raise refused("needs `tools`", "tool_choice")
        return self

    @property
    def offered_tools(self) -> list[ToolDefinition]:
        """The tools shown to the model."""
        return [] if self.tool_choice == "none" else self.tools
