"""The base of all request schemas: strict types, null means absent, nothing unknown passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from app.api.fields import NoEffect, keep_supported
from app.api.validation import refused

MAX_FIELDS = 200  # of one object: each unknown one would become a finding of its own


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
