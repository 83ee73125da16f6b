"""Structured output and tools, as clients ask for them: response_format, tools, tool_choice."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from app.api.request_model import RequestModel
from app.api.validation import refused

MAX_TOOLS = 128
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class JsonSchemaFormat(RequestModel):
    """A schema that the answer must match. It is kept to whether `strict` is set or not."""

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
    def schema_dict(self) -> dict[str, Any] | None:
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


class FunctionName(RequestModel):
    name: str


class NamedTool(RequestModel):
    type: Literal["function"]
    function: FunctionName


def parse_choice(value: Any) -> Any:
    if isinstance(value, dict) or value in ("none", "auto", "required"):
        return value
    raise refused("must be 'none', 'auto', 'required' or an object that names a function")


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool,
    BeforeValidator(parse_choice),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, {"$ref": "#/components/schemas/NamedTool"}]}
    ),
]
