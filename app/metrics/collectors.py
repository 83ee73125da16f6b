"""Metrics that are read at each scrape: from the status of the engine, the text lanes, and the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.engine.correction import StoreStatus
from app.engine.interface import STEP_ROWS, DraftingStatus, EngineStatus
from app.metrics.labels import ROW_LAYERS, TEXT_LANES
from csd.stores.base import ERROR_KINDS

logger = logging.getLogger(__name__)

TEXT_FAMILIES = {
    "running": ("text_jobs_running", "Texts being parsed, tokenised or written, by lane"),
    "waiting": ("text_jobs_waiting", "Texts waiting for a thread, by lane"),
    "bytes": ("text_bytes_waiting", "Bytes of the request bodies of waiting texts, by lane"),
}

NOT_LOADED = EngineStatus(
    running=0, waiting=0, kv_usage_ratio=0.0, heartbeat_age=0.0, alive=False, ready=False, free_places=0, retry_after=1
)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"racer_{name}", text, value=value)


@dataclass(frozen=True)
class StatusCollector(Collector):
    """The engine's status; zeros while there is no engine or its status cannot be read."""

    status: Callable[[], EngineStatus | None]

    def collect(self) -> Iterator[Metric]:
        try:
            status = self.status() or NOT_LOADED
        except Exception:
            logger.exception("the engine's status could not be read")
            status = NOT_LOADED
        yield from _service(status)
        yield from _drafting(status.drafting)
        yield from _store(status.store or StoreStatus())


def _service(status: EngineStatus) -> Iterator[Metric]:
    yield _gauge("num_requests_running", "Generations in the running batch", status.running)
    yield _gauge("num_requests_waiting", "Generations in the queue", status.waiting)
    yield _gauge("kv_cache_usage_ratio", "Share of the KV cache that running generations use, 0 to 1", status.kv_usage_ratio)
    yield CounterMetricFamily(
        "racer_num_preemptions",
        "Times a generation gave up its KV cache for older ones and had its text prefilled again",
        value=status.preemptions,
    )
    yield _gauge("conversations", "Conversations kept between turns", status.conversations)
    yield _gauge("conversation_kv_rows", "KV cache rows (tokens) of kept conversations", status.conversation_rows)
    yield _gauge("conversation_bytes", "Bytes of kept conversations: KV cache and drafting state", status.conversation_bytes)
    yield _gauge("ready", "1 while the model is loaded and new requests are accepted", int(status.ready))
    yield _gauge("worker_alive", "1 while the worker thread runs", int(status.alive))
    yield _gauge(
        "worker_heartbeat_age_seconds",
        "Seconds since the worker thread last began or ended a forward pass or a loop",
        status.heartbeat_age,
    )
    yield _gauge("device_memory_bytes", "Bytes of accelerator memory that this process uses", status.device_bytes)


def _drafting(drafting: DraftingStatus) -> Iterator[Metric]:
    yield _gauge("sessions", "Sessions with drafting state, running or kept between turns", drafting.sessions)
    yield _gauge("automaton_nodes", "Nodes of all sessions' n-gram automata", drafting.automaton_nodes)
    yield CounterMetricFamily("racer_automaton_evictions", "Automaton nodes evicted", value=drafting.automaton_evictions)
    rows = GaugeMetricFamily("racer_copy_logit_rows", "Rows of remembered successors, by layer", labels=["layer"])
    counts = (drafting.session_rows, drafting.warm_rows, drafting.prior_rows)
    for layer, count in zip(ROW_LAYERS, counts, strict=True):
        rows.add_metric([layer], count)
    yield rows
    costs = drafting.step_seconds or (0.0,) * len(STEP_ROWS)
    yield _gauge(
        "plain_step_seconds",
        "Seconds of a plain decoding step of one session, the baseline of the speedup",
        drafting.plain_seconds,
    )
    curve = GaugeMetricFamily(
        "racer_step_cost_seconds", "Seconds of a step that verifies n nodes, T(n), as calibrated", labels=["nodes"]
    )
    for nodes, seconds in zip(STEP_ROWS, costs, strict=True):
        curve.add_metric([str(nodes)], seconds)
    yield curve


def _store(store: StoreStatus) -> Iterator[Metric]:
    yield _gauge("ocm_entries", "Pairs in the correction memory", store.entries)
    yield CounterMetricFamily("racer_ocm_recorded", "Divergences counted while serving", value=store.recorded)
    degraded = int(store.state == "degraded")
    yield _gauge("store_degraded", "1 while the store of the correction memory cannot be used", degraded)
    yield CounterMetricFamily(
        "racer_store_acknowledged_increments", "Increments confirmed by the store", value=store.acknowledged
    )
    errors = CounterMetricFamily("racer_store_errors", "Failed operations of the store, by kind", labels=["kind"])
    for kind in ERROR_KINDS:
        errors.add_metric([kind], store.errors.get(kind, 0))
    yield errors


class LaneStatus(NamedTuple):
    """One lane: jobs that run, jobs that wait, and the bytes of the request bodies of those that wait."""

    running: int = 0
    waiting: int = 0
    bytes: int = 0


class TextCollector(Collector):
    """The status of the text lanes; zeros before there are any."""

    def __init__(self) -> None:
        self.status: Callable[[], Mapping[str, LaneStatus]] = dict

    def collect(self) -> Iterator[Metric]:
        lanes = self.status()
        for attribute, (name, text) in TEXT_FAMILIES.items():
            family = GaugeMetricFamily(f"racer_{name}", text, labels=["lane"])
            for lane in TEXT_LANES:
                family.add_metric([lane], getattr(lanes.get(lane, LaneStatus()), attribute))
            yield family


class ProcessCollector(Collector):
    """Memory and time of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def collect(self) -> Iterator[Metric]:
        with self._process.oneshot():
            memory, times = self._process.memory_info(), self._process.cpu_times()
            started = self._process.create_time()
        yield _gauge("process_resident_memory_bytes", "Resident memory of the process in bytes", memory.rss)
        yield _gauge("process_start_time_seconds", "Unix time at which the process started", started)
        yield CounterMetricFamily(
            "racer_process_cpu_seconds", "User and system CPU time of the process in seconds", value=times.user + times.system
        )
