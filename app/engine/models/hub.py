"""Downloads a model from the hub into the hub client's own cache."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from app.engine.errors import ModelLoadError

logger = logging.getLogger(__name__)

# Configuration, tokenizer and safetensors in the repository's root. No pickles, no code, no second copies of the weights.
_WANTED = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken"]
_UNWANTED = ["*/*", "consolidated*", "*.fp16.safetensors", "*.non_ema.safetensors"]


def fetch_from_hub(repository: str, revision: str | None = None) -> Path:
    """The local directory of a hub model; downloads what is not cached. Raises ModelLoadError.

    HF_HUB_OFFLINE, HF_HOME and HF_TOKEN are honoured.
    """
    logger.info("Looking up %s on the model hub", repository)
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except HFValidationError as error:
        raise ModelLoadError(f"There is no file or directory {repository!r}, and it cannot be a hub id either.") from error
    except GatedRepoError as error:
        raise ModelLoadError(f"{repository} is gated: accept its terms on the hub and set HF_TOKEN.") from error
    except RevisionNotFoundError as error:
        raise ModelLoadError(f"{repository} has no revision {revision!r}.") from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"There is no file or directory {repository!r}, and no such model on the hub (or it is private: set HF_TOKEN)."
        ) from error
    except LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            reason = "the hub is switched off (HF_HUB_OFFLINE) and the model is not in its cache"
        else:
            reason = "the model hub cannot be reached and the model is not in its cache"
        raise ModelLoadError(
            f"There is no file or directory {repository!r}, and as a hub id it cannot be fetched: {reason}. "
            "Give the path of a model directory or .gguf file."
        ) from error
    except (HfHubHTTPError, httpx.HTTPError) as error:
        raise ModelLoadError(f"{repository} could not be fetched from the hub ({type(error).__name__}). Try again.") from error
    except OSError as error:
        raise ModelLoadError(
            f"{repository} could not be stored in the hub cache {constants.HF_HUB_CACHE}: "
            f"{error.strerror or type(error).__name__}. Set HF_HOME to a directory that can be written."
        ) from error
