"""A chat template given as a file, and whether the template in use works."""

from __future__ import annotations

import logging
from pathlib import Path

from app.engine.errors import ModelLoadError
from app.engine.models.checkpoint import unreadable
from app.text.codec import TextCodec
from app.text.errors import ChatTemplateError

logger = logging.getLogger(__name__)


def read_template(path: Path) -> str:
    try:
        template = path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"chat_template: {path} is not UTF-8 text.") from error
    if not template.strip():
        raise ModelLoadError(f"chat_template: {path} is empty.")
    return template


def check_template(codec: TextCodec, name: str, file: Path | None) -> None:
    """A configured template that fails stops the start; with the model's own one the other routes still work."""
    if not codec.has_chat_template:
        logger.warning("%s has no chat template: chat requests will be refused until a template file is given", name)
        return
    try:
        codec.render_chat([{"role": "user", "content": "Hello"}])
    except ChatTemplateError as error:
        if file is not None:
            raise ModelLoadError(f"chat_template: {file} cannot be used. {error}") from error
        logger.warning("The chat template of %s fails on a plain message, chat requests may be refused: %s", name, error)
