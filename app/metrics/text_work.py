"""Gauges of the work on texts: what is parsed, tokenised and written, and what waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class LaneStatus(NamedTuple):
    """One lane: jobs on its threads, jobs that wait, and the bytes of the bodies that they are for."""

    running: int
    waiting: int
    bytes: int


FAMILIES = {
    "running": ("text_jobs_running", "Texts on a thread, by lane"),
    "waiting": ("text_jobs_waiting", "Texts that wait for a thread, by lane"),
    "bytes": ("text_bytes_waiting", "Bytes of the bodies of those that wait, by lane"),
}


@dataclass(frozen=True)
class TextCollector(Collector):
    """What the lanes say when somebody scrapes."""

    status: Callable[[], Mapping[str, LaneStatus]]

    def collect(self) -> Iterator[Metric]:
        lanes = self.status()
        for attribute, (name, text) in FAMILIES.items():
            family = GaugeMetricFamily(f"racer_{name}", text, labels=["lane"])
            for lane, status in lanes.items():
                family.add_metric([lane], getattr(status, attribute))
            yield family
