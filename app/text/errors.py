"""Errors of the text room."""

from __future__ import annotations


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refuses the messages. The message can be shown to a user."""
