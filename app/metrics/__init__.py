"""Prometheus metrics: what the engine's observer hears, what the API counts, and what a scrape reads off engine and process."""

from app.metrics.labels import FINISHED_REASONS, POSITIONS, package_version
from app.metrics.metrics import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "FINISHED_REASONS", "POSITIONS", "Metrics", "package_version"]
