"""The settings of the service: each is an environment variable RACER_<NAME> and a flag of `racer-csd serve`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, FilePath, FiniteFloat, SecretStr, ValidationError, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.engine.models.dtypes import DTYPE_HELP, full_name
from app.engine.request import NEED_DRAFT, DrafterName, VerifierName
from racer.drafter import Policy

ENV_PREFIX = "RACER_"
MAX_KEY_FILE = 1 << 20  # bytes
OpenRoute = Literal["health", "ready", "metrics", "docs", "page"]
OTHER_VARIABLES = frozenset({"RACER_API_KEY", "RACER_BENCH_KEY"})  # of commands, not settings
OPEN_ROUTES: tuple[OpenRoute, ...] = get_args(OpenRoute)


class SettingsError(ValueError):
    """A setting has a wrong value; the message is one line, names the setting, and never shows its value."""


class Settings(BaseSettings):
    """One model for the environment and the command line; flags win over variables, empty variables count as unset."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, protected_namespaces=()
    )

    target: str = Field("smollm2", min_length=1, description="Model to serve: a built-in name, hub id, directory or .gguf file")
    draft: str | None = Field(None, min_length=1, description="Draft model: a small one with the target's vocabulary")
    served_model_name: str | None = Field(
        None, min_length=1, description="Model id that clients use; default: the target, of a path its last part"
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    dtype: str = Field("auto", description=DTYPE_HELP)
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:N or mps")
    threads: int | None = Field(None, ge=1, description="CPU threads of the model; default: what the container may use")
    drafter: DrafterName = Field(
        "racer", description="Default drafter; draft_model and hybrid need a draft, none decodes plainly"
    )
    gamma: int = Field(6, ge=1, le=64, description="Tokens the draft model writes ahead where a request fixes its budget")
    verifier: VerifierName = Field("exact", description="Default verifier of requests; csd is lossy and needs allow_csd")
    allow_csd: bool = Field(False, description="Let requests ask for the verifier csd, and keep a correction memory")
    csd_lambda: float = Field(6.0, ge=0.0, description="csd: times a pair must have diverged before it is rescued, exclusive")
    csd_tau: float = Field(0.01, gt=0.0, le=1.0, description="csd: least probability of a rescued token over the likeliest's")
    csd_rule: Literal["both", "ocm", "scg"] = Field("both", description="csd: memory and gate, or only one of them")
    store: SecretStr | None = Field(
        None, min_length=1, description="Where the memory is kept: sqlite:PATH, redis://..., none; default: a file in the cache"
    )
    store_ttl: int = Field(30 * 86_400, ge=60, description="Seconds until Redis forgets a table that nobody writes to")
    ocm_entries: int = Field(200_000, ge=1, description="Most pairs in the correction memory; the least frequent are dropped")
    ocm_half_life: FiniteFloat | None = Field(None, ge=1.0, description="Divergences after which counts halve; default: never")
    admin_key: SecretStr | None = Field(None, description="Bearer key of the /admin routes; none: they are off")
    max_nodes: int = Field(64, ge=1, le=256, description="Largest draft tree, root included; requests may ask for less")
    policy: Policy = Field(
        "auto", description="How draft trees are filled; auto learns the order and verifies as many nodes as pay"
    )
    prior_rows: int = Field(32_768, ge=0, description="Tokens whose successors are computed in idle time; 0: none")
    max_context: int | None = Field(None, ge=1, description="Tokens of prompt and answer together; default: the model's limit")
    max_running: int = Field(8, ge=1, description="Generations that run at the same time")
    max_queued: int = Field(64, ge=0, description="Generations that may wait; beyond, requests get 429")
    max_body_bytes: int = Field(2 * 1024 * 1024, ge=1024, description="Largest request body in bytes; beyond, 413")
    text_queue_bytes: int = Field(
        16 * 1024 * 1024, ge=0, description="Bytes of bodies that may wait to be parsed or tokenized; beyond, 429"
    )
    max_prompt_tokens: int | None = Field(None, ge=1, description="Most tokens of a prompt; default: what the context holds")
    max_prompt_chars: int | None = Field(
        None, ge=1, description="Most characters of a prompt, checked before it is tokenized; default: 32 per token it may have"
    )
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens of an answer, and the default for requests without max_tokens; requests for more get 400",
    )
    max_per_key: int | None = Field(
        None, ge=1, description="Generations of one API key at a time, waiting ones included; beyond, 429; default: no limit"
    )
    prefill_chunk: int = Field(256, ge=1, description="Prompt tokens read between two steps of running answers")
    warm_start: bool = Field(True, description="Share the copy-logit table between requests of one API key")
    kv_memory_fraction: float = Field(0.3, gt=0.0, lt=1.0, description="Share of the free memory that the KV cache may take")
    chat_template: FilePath | None = Field(None, description="File with a chat template that replaces the model's own")
    parse_special_tokens: bool = Field(
        False, description="Read names of control tokens in chat text as those tokens; a user's text can then end its turn"
    )
    split_reasoning: bool = Field(
        True, description="Give a reasoning model's thoughts as reasoning_content; without, they stay in the content"
    )
    cache_dir: str | None = Field(None, min_length=1, description="Directory for fetched and converted models")
    max_conversations: int = Field(64, ge=0, description="Conversations (session_id) kept between turns; 0: none")
    conversation_memory: int = Field(
        1 << 30, ge=0, description="Most bytes of all kept conversations together, KV and drafting state"
    )
    conversation_idle: FiniteFloat = Field(1800.0, gt=0.0, description="Seconds until an idle conversation is dropped")
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field((), description="Comma-separated bearer keys; none: open")
    api_keys_file: FilePath | None = Field(
        None, description="File with more bearer keys, one per line, # starts a comment line; read again when it changes"
    )
    open_routes: Annotated[tuple[OpenRoute, ...], NoDecode] = Field(
        OPEN_ROUTES, description="Routes that need no key, comma-separated: health, ready, metrics, docs, page; or none"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Origins whose pages may use the API, comma-separated, or *; default: none"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Names beside localhost that a server without keys answers to, comma-separated, such as a proxy's, or *; "
        "default: any, or where it listens on loopback none",
    )
    header_timeout: FiniteFloat = Field(10.0, gt=0.0, description="Seconds in which a request's head must arrive")
    body_timeout: FiniteFloat = Field(60.0, gt=0.0, description="Seconds in which a request's body must arrive; beyond, 408")
    request_timeout: FiniteFloat | None = Field(None, gt=0.0, description="Seconds a request may take; default: no limit")
    unread_bytes: int = Field(
        8 * 1024 * 1024,
        ge=1,
        description="Memory in bytes for events of one stream that wait for its client; beyond, it is ended",
    )
    unread_timeout: FiniteFloat = Field(
        60.0, gt=0.0, description="Seconds without a byte read after which a client with a waiting reply is disconnected"
    )
    shutdown_grace: FiniteFloat = Field(8.0, ge=0.0, description="Seconds that running requests get to end after SIGTERM")
    stuck_after: FiniteFloat = Field(60.0, gt=0.0, description="Seconds one forward pass may take before /health turns red")
    max_failures: int = Field(5, ge=1, description="Failures of the model in a row after which the process ends with code 1")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level that is logged")
    self_check: bool = Field(True, description="Compare a small tree with plain forward passes at start")
    workers: int = Field(1, ge=1, le=1, description="Always 1: one process holds the model and serves all sessions")

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: object) -> object:
        if isinstance(value, str):
            keys = tuple(map(SecretStr, _parts(value)))
            if value and not keys:  # separators alone: the user meant to require a key
                raise PydanticCustomError("no_key", "holds no key; leave it empty to serve without keys")
            return keys
        return value

    @field_validator("api_keys_file")
    @classmethod
    def _holds_keys(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                read_key_file(path)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise PydanticCustomError("key_file", "{reason}", {"reason": reason or "cannot be read"}) from None
        return path

    @field_validator("open_routes", mode="before")
    @classmethod
    def _split_routes(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = _parts(value.lower())
        if names != ("none",) and not set(names) <= set(OPEN_ROUTES):
            raise PydanticCustomError("route", "takes names of {names}, or none alone", {"names": ", ".join(OPEN_ROUTES)})
        return () if names == ("none",) else names

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        origins = _parts(value)
        for origin in origins:
            parts = urlsplit(origin)
            if origin != "*" and (parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}"):
                raise PydanticCustomError("origin", "must hold origins such as https://chat.example.com, without a path, or *")
        return origins

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        hosts = _parts(value.lower())
        if any(host != "*" and re.fullmatch(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?", host) is None for host in hosts):
            raise PydanticCustomError("host", "must hold names such as chat.example.com or *.example.com, without a port, or *")
        return hosts

    @field_validator("dtype")
    @classmethod
    def _full_dtype(cls, value: str) -> str:
        try:
            return full_name(value)
        except ValueError as error:
            raise PydanticCustomError("dtype", "{reason}", {"reason": str(error)}) from error

    @field_validator("device", "log_level", "drafter", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @property
    def served_name(self) -> str:
        """The model id that requests must name: as set, or the target; of a local path its last part, without .gguf."""
        if self.served_model_name:
            return self.served_model_name
        path = os.path.abspath(os.path.expanduser(self.target))
        if not os.path.exists(path):
            return self.target
        return os.path.basename(path.removesuffix(".gguf")) or self.target

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key.get_secret_value() for key in self.api_keys)


def _parts(value: str) -> tuple[str, ...]:
    """The parts of a comma-separated list that are not empty."""
    return tuple(part for part in map(str.strip, value.split(",")) if part)


def read_key_file(path: Path) -> tuple[str, ...]:
    """The keys in a file: one a line, blank lines and those that start with # left out. Raises OSError, ValueError."""
    with path.open("rb") as file:
        raw = file.read(MAX_KEY_FILE + 1)
    if len(raw) > MAX_KEY_FILE:
        raise ValueError(f"is larger than {MAX_KEY_FILE} bytes")
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    keys = tuple(key for key in map(str.strip, lines) if key and not key.startswith("#"))
    if not keys:  # an empty file must not open the server to all
        raise ValueError("holds no key")
    return keys


def read_settings(flags: Mapping[str, object] | None = None) -> Settings:
    """Settings from flags (those not None), then the environment, then defaults. Raises SettingsError."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(name, message) for name, message in _first_errors(error))) from None


def check_together(settings: Settings) -> None:
    """Raises SettingsError for values that are valid alone but not together."""
    if settings.verifier == "csd" and not settings.allow_csd:
        raise SettingsError(_explain("verifier", "csd is lossy and has to be allowed: add --allow-csd"))
    if settings.drafter in NEED_DRAFT and settings.draft is None:
        raise SettingsError(_explain("drafter", f"{settings.drafter} needs a draft model: add --draft MODEL"))


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """One line for each variable that looks like a setting but is not one, with the closest setting."""
    settings = [ENV_PREFIX + name.upper() for name in Settings.model_fields]
    known = {*settings, *OTHER_VARIABLES}
    unknown = sorted(name for name in environment if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
    return [f"{name} is no setting and changes nothing{_meant(name, settings)}" for name in unknown]


def _meant(name: str, settings: list[str]) -> str:
    closest = difflib.get_close_matches(name.upper(), settings, n=1, cutoff=0.75)
    return f"; did you mean {closest[0]}?" if closest else ""


def flag(name: str) -> str:
    """`max_nodes` -> `--max-nodes`."""
    return "--" + name.replace("_", "-")


def _first_errors(error: ValidationError) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        found.setdefault(str(detail["loc"][0]) if detail["loc"] else "", detail["msg"])
    return list(found.items())


def _explain(name: str, message: str) -> str:
    if name == "workers":
        message = "more than one worker would load the model more than once and split its state; run one process per model"
    if message == "Path does not point to a file":
        message = "there is no file at this path"
    message = message[:1].lower() + message[1:]
    return f"setting {name} ({ENV_PREFIX}{name.upper()}, {flag(name)}): {message}"
