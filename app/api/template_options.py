"""What a request tells the chat template besides messages and tools: chat_template_kwargs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from app.api.validation import refused

MAX_OPTIONS = 32
# Set by the server or by the template's environment: a request would break the prompt, or read it in another way.
RESERVED = frozenset(
    {
        "add_generation_prompt",
        "additional_special_tokens",
        "bos_token",
        "chat_template",
        "cls_token",
        "continue_final_message",
        "conversation",
        "eos_token",
        "mask_token",
        "max_length",
        "messages",
        "pad_token",
        "padding",
        "raise_exception",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sep_token",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
        "unk_token",
    }
)


def parse_options(value: Any) -> dict[str, Any]:
    """Names of variables -> any JSON."""
    if not isinstance(value, dict):
        raise refused("must be an object of template variables")
    if len(value) > MAX_OPTIONS:
        raise refused(f"may hold at most {MAX_OPTIONS} variables")
    for name in value:
        if name in RESERVED:
            raise refused("may not be set: the server does", name)
        if not name.isidentifier() or len(name) > 64:
            raise refused("must have names of template variables as keys")
    return value


TemplateOptions = Annotated[dict[str, Any], PlainValidator(parse_options), WithJsonSchema({"type": "object"})]
