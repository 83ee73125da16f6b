"""Builds the engine from the settings, for every command that runs a model."""

# ruff: noqa: PLC0415 - the model libraries take seconds to import: only commands that need them pay

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.interruption import report_interruption
from app.settings import ENV_PREFIX, Settings, SettingsError

if TYPE_CHECKING:
    from app.engine.correction import CsdConfig
    from app.engine.engine import Engine


def load_engine(settings: Settings) -> Engine:
    """The engine of these settings. Raises ModelLoadError."""
    with report_interruption(settings.target):  # includes the imports, which take seconds
        return _load(settings)


def _load(settings: Settings) -> Engine:
    from app.engine.engine import Engine, EngineConfig
    from racer.drafter import RacerConfig

    return Engine.from_pretrained(
        settings.target,
        EngineConfig(
            max_context=settings.max_context,
            max_running=settings.max_running,
            max_queued=settings.max_queued,
            drafter=settings.drafter,
            max_nodes=settings.max_nodes,
            gamma=settings.gamma,
            prefill_chunk=settings.prefill_chunk,
            warm_start=settings.warm_start,
            kv_memory_fraction=settings.kv_memory_fraction,
            self_check=settings.self_check,
            max_failures=settings.max_failures,
            prior_rows=settings.prior_rows,
            max_conversations=settings.max_conversations,
            conversation_memory=settings.conversation_memory,
            conversation_idle=settings.conversation_idle,
            racer=RacerConfig(policy=settings.policy),
            verifier=settings.verifier,
            csd=csd_config(settings),
        ),
        draft=settings.draft,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        chat_template=settings.chat_template,
        parse_special_tokens=settings.parse_special_tokens,
        cache_dir=None if settings.cache_dir is None else Path(settings.cache_dir),
        served_name=settings.served_name,
    )


def csd_config(settings: Settings) -> CsdConfig:
    """The correction memory of these settings. Raises SettingsError for an invalid store."""
    from app.engine.correction import CsdConfig
    from app.engine.models.cache import cache_directory
    from csd.stores.url import open_store

    given = None if settings.store is None else settings.store.get_secret_value()
    try:
        open_store(given or "none", "any")
    except ValueError as error:
        raise SettingsError(f"setting store ({ENV_PREFIX}STORE, --store): {error}") from error
    cache = cache_directory(None if settings.cache_dir is None else Path(settings.cache_dir))
    return CsdConfig(
        allowed=settings.allow_csd,
        lambda_=settings.csd_lambda,
        tau=settings.csd_tau,
        rule=settings.csd_rule,
        store=given or f"sqlite:{cache / 'ocm.sqlite3'}",
        ttl=settings.store_ttl,
        max_entries=settings.ocm_entries,
        half_life=settings.ocm_half_life,
    )
