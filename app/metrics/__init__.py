"""Prometheus metrics: counted by the engine's observer and the API, or read from engine and process at each scrape."""

from app.metrics.labels import FINISHED_REASONS, POSITIONS, package_version
from app.metrics.metrics import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "FINISHED_REASONS", "POSITIONS", "Metrics", "package_version"]
