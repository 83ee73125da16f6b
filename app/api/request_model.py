"""The base of all request schemas, and the OpenAI fields that do nothing here.

One rule for every field: it is honoured, or harmless and ignored, or refused with 400. `null` always means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from app.api.validation import refused

MAX_FIELDS = 200  # of one object: each unknown one would become a finding of its own


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A field that is known but not supported: accepted at values that change nothing, refused at all others."""

    values: tuple[object, ...] = ()
    why: str = "is not supported by this server"

    def allows(self, value: object) -> bool:
        # True == 1 == 1.0 in Python, but not in JSON
        return any(type(value) is type(harmless) and value == harmless for harmless in self.values)

    def reason(self) -> str:
        shown = ", ".join(_json(value) for value in self.values if not isinstance(value, float))
        return f"{self.why}; leave it out" + (f" or send {shown}" if shown else "")


# Labels, hints and billing: they change no answer, so they are accepted with any value and ignored.
IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "reasoning_effort",
        "verbosity",
        "parallel_tool_calls",
    }
)
IGNORED_STREAM_OPTIONS = frozenset({"include_obfuscation"})

# How other servers spell tokens as text: only the value that this server always uses.
_SPELLING: Mapping[str, NoEffect] = {
    "include_stop_str_in_output": NoEffect((False,)),
    "skip_special_tokens": NoEffect((True,)),
    "spaces_between_special_tokens": NoEffect((True,)),
}
COMPLETION_NO_EFFECT: Mapping[str, NoEffect] = {
    **_SPELLING,
    "best_of": NoEffect((1,)),
    "suffix": NoEffect(("",)),
}
CHAT_NO_EFFECT: Mapping[str, NoEffect] = {
    **_SPELLING,
    "add_generation_prompt": NoEffect((True,)),
    "continue_final_message": NoEffect((False,)),
    "audio": NoEffect(),
    "function_call": NoEffect(("none", "auto")),
    "functions": NoEffect(([],)),
    "modalities": NoEffect((["text"],)),
    "web_search_options": NoEffect(),
}
# Notes on an earlier answer that clients send back inside messages, calls and text parts: not part of its text.
MESSAGE_IGNORED = frozenset(
    {
        "annotations",
        "cache_control",
        "parsed",
        "provider_specific_fields",
        "reasoning",
        "reasoning_details",
        "refusal",
        "thinking_blocks",
    }
)
CALL_IGNORED = frozenset({"cache_control", "extra_content", "index", "provider_specific_fields"})
FUNCTION_IGNORED = frozenset({"parsed_arguments", "provider_specific_fields"})
PART_IGNORED = frozenset({"annotations", "cache_control", "citations", "logprobs", "provider_specific_fields"})
MESSAGE_NO_EFFECT: Mapping[str, NoEffect] = {
    "audio": NoEffect(),
    "function_call": NoEffect(),
}


class RequestModel(BaseModel):
    """A JSON object that a client sends.

    ignored: fields accepted with any value. no_effect: fields accepted only where they change nothing.
    """

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    ignored: ClassVar[frozenset[str]] = frozenset()
    no_effect: ClassVar[Mapping[str, NoEffect]] = {}

    @model_validator(mode="before")
    @classmethod
    def _keep_supported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_FIELDS:
            raise refused(f"may hold at most {MAX_FIELDS} fields")
        return keep_supported(data, cls.ignored, cls.no_effect)


def keep_supported(data: Mapping[str, Any], ignored: frozenset[str], no_effect: Mapping[str, NoEffect]) -> dict[str, Any]:
    """The fields left for the schema, without null, ignored and harmless ones. Raises a validation error."""
    kept: dict[str, Any] = {}
    for name, value in data.items():
        if value is None or name in ignored:
            continue
        if (rule := no_effect.get(name)) is None:
            kept[name] = value
        elif not rule.allows(value):
            raise refused(rule.reason(), name)
    return kept


def _json(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value).replace("'", '"')
