"""Gauges of the work on texts: what is parsed, tokenised and written, and what waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics.labels import TEXT_LANES

FAMILIES = {
    "running": ("text_jobs_running", "Texts on a thread, by lane"),
    "waiting": ("text_jobs_waiting", "Texts that wait for a thread, by lane"),
    "bytes": ("text_bytes_waiting", "Bytes of the bodies of those that wait, by lane"),
}


class LaneStatus(NamedTuple):
    """One lane: jobs on its threads, jobs that wait, and the bytes of the bodies that they are for."""

    running: int = 0
    waiting: int = 0
    bytes: int = 0


class TextCollector(Collector):
    """What the lanes say when somebody scrapes; zeros before there are any."""

    def __init__(self) -> None:
        self.status: Callable[[], Mapping[str, LaneStatus]] = dict

    def collect(self) -> Iterator[Metric]:
        lanes = self.status()
        for attribute, (name, text) in FAMILIES.items():
            family = GaugeMetricFamily(f"racer_{name}", text, labels=["lane"])
            for lane in TEXT_LANES:
                family.add_metric([lane], getattr(lanes.get(lane, LaneStatus()), attribute))
            yield family
