"""Prometheus metrics: what the engine's observer hears and what the API counts. Every series exists at 0 from the start."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Concatenate, Literal, ParamSpec

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.engine.events import PHASES, SOURCE_NAMES, FinishReason, SpeculationStats, StepRecord
from app.engine.interface import EngineStatus, ModelInfo, StoreStatus

logger = logging.getLogger(__name__)

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
POSITIONS = (*(str(position) for position in range(16)), "16+")
FINISHED_REASONS = ("stop", "length", "cancelled", "error")
STATUS_CLASSES = ("2xx", "3xx", "4xx", "5xx")
OTHER_ROUTE = "other"

TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
E2E_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
ACCEPTED_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24)
MEAN_BUCKETS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0)

P = ParamSpec("P")


def never_raises(method: Callable[Concatenate[Metrics, P], None]) -> Callable[Concatenate[Metrics, P], None]:
    """A metric that fails is logged once per method and reaches neither a request nor the engine."""

    @functools.wraps(method)
    def guarded(self: Metrics, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if method.__name__ not in self._failed:
                self._failed.add(method.__name__)
                logger.error("metric update %s failed (%r); later failures of it are not logged", method.__name__, error)

    return guarded


class Metrics:
    """Counts of one app, in a registry of its own; an EngineObserver.

    Invariant: generation tokens = accepted tokens + verify steps + first tokens.
    """

    def __init__(self, routes: tuple[str, ...] = ()) -> None:
        """routes: the closed set of route labels; any other path counts as `other`."""
        self.registry = CollectorRegistry()
        self._failed: set[str] = set()
        self._routes = frozenset(routes)
        # the creation time of each series is noise that doubles the page; the switch is global in prometheus_client
        prometheus_client.disable_created_metrics()
        self._declare_speculation()
        self._declare_requests(routes)
        self._declare_model()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"racer_{name}", text, registry=self.registry)

    def _counters(self, name: str, text: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        family = Counter(f"racer_{name}", text, [label], registry=self.registry)
        return {value: family.labels(value) for value in values}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"racer_{name}", text, buckets=buckets, registry=self.registry)

    def _declare_speculation(self) -> None:
        self._drafts = self._counter("spec_decode_num_drafts", "Verify steps, one per session, that had a draft")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Draft tokens verified")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens kept")
        self._accepted_at = self._counters(
            "spec_decode_num_accepted_tokens_per_pos", "Draft tokens kept, by depth below the root", "position", POSITIONS
        )
        self._steps = self._counter("verify_steps", "Verify steps, one per session that took part")
        self._nodes = self._counter("nodes_verified", "Tree nodes verified, roots included")
        self._first_tokens = self._counter("first_tokens", "Tokens chosen by a prefill, before any verify step")
        self._by_source = self._counters("tokens", "Emitted tokens by source", "source", SOURCE_NAMES)
        self._rescues = self._counter("csd_rescues", "Draft tokens kept in place of the target's")
        self._nominated = self._counter("csd_nominated", "Draft tokens that the correction memory nominated at a mismatch")
        self._refused_by_gate = self._counter("csd_refused_by_gate", "Nominated draft tokens that the target's logits refused")
        self._phases = self._counters("phase_seconds", "Seconds of engine steps by phase", "phase", PHASES)
        self._accepted_length = self._histogram("accepted_length", "Draft tokens kept per verify step", ACCEPTED_BUCKETS)
        self._request_mean = self._histogram(
            "request_mean_acceptance_length", "Tokens per verify step, mean of a request", MEAN_BUCKETS
        )

    def _declare_requests(self, routes: tuple[str, ...]) -> None:
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens read")
        self._generation_tokens = self._counter("generation_tokens", "Tokens emitted")
        self._finished = self._counters(
            "request_success", "Generations that ended, by reason", "finished_reason", FINISHED_REASONS
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "Seconds from arrival to the first token", TTFT_BUCKETS)
        self._inter_token = self._histogram("inter_token_latency_seconds", "Seconds per token after the first", TOKEN_BUCKETS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Seconds from arrival to the last token", E2E_BUCKETS)
        self._refused = self._counter("queue_refusals", "Requests answered 429, because the queue was full or the key busy")
        self._key_refused = self._counter("key_refusals", "Requests answered 429 because their API key had its share at work")
        family = Counter("racer_http_requests", "HTTP replies", ["route", "status"], registry=self.registry)
        self._http = {
            (route, status): family.labels(route, status) for route in (*routes, OTHER_ROUTE) for status in STATUS_CLASSES
        }

    def _declare_model(self) -> None:
        self._tree_attention = Gauge(
            "racer_tree_attention", "1 when draft trees are verified in one pass, 0 in plain decoding", registry=self.registry
        )
        build = Gauge("racer_build_info", "Always 1; the version is a label", ["version"], registry=self.registry)
        build.labels(package_version()).set(1)

    # -- set by the app --------------------------------------------------------------------------------------------------

    @never_raises
    def watch(self, status: Callable[[], EngineStatus | None]) -> None:
        """Read the gauges of running, waiting and KV from `status` at every scrape; None reads as 0."""
        self.registry.register(_StatusCollector(status))

    @never_raises
    def model_loaded(self, info: ModelInfo) -> None:
        self._tree_attention.set(1 if info.tree_attention else 0)

    @never_raises
    def http_reply(self, route: str, status: int) -> None:
        self._http[route if route in self._routes else OTHER_ROUTE, f"{status // 100}xx"].inc()
        if status == 429:
            self._refused.inc()

    @never_raises
    def key_refused(self) -> None:
        self._key_refused.inc()

    @never_raises
    def request_stats(self, stats: SpeculationStats) -> None:
        """Counts of one generation that ran to its end."""
        if stats.num_steps:
            self._request_mean.observe(stats.mean_acceptance_length)

    def render(self) -> bytes:
        """The page of GET /metrics."""
        return prometheus_client.generate_latest(self.registry)

    # -- EngineObserver --------------------------------------------------------------------------------------------------

    @never_raises
    def step(self, record: StepRecord) -> None:
        numbers = (record.sessions, record.drafts, record.nodes, record.drafted, *record.accepted_lengths)
        numbers += (record.rescues, record.nominated, record.refused_by_gate)
        counted = (*numbers, *record.emitted_by_source.values(), *record.phase_seconds.values())
        if min(counted) < 0:  # checked as a whole: half a record would break the invariant
            raise ValueError("negative count in a step record")
        sources = {self._by_source[source]: tokens for source, tokens in record.emitted_by_source.items()}
        phases = {self._phases[phase]: seconds for phase, seconds in record.phase_seconds.items()}
        self._steps.inc(record.sessions)
        self._nodes.inc(record.nodes)
        self._drafts.inc(record.drafts)
        self._draft_tokens.inc(record.drafted)
        self._accepted.inc(sum(record.accepted_lengths))
        self._rescues.inc(record.rescues)
        self._nominated.inc(record.nominated)
        self._refused_by_gate.inc(record.refused_by_gate)
        self._generation_tokens.inc(sum(record.emitted_by_source.values()))
        for length in record.accepted_lengths:
            self._accepted_length.observe(length)
            for position in range(min(length, 16)):
                self._accepted_at[POSITIONS[position]].inc()
            self._accepted_at[POSITIONS[-1]].inc(max(0, length - 16))
        for counter, amount in (sources | phases).items():
            counter.inc(amount)

    @never_raises
    def prefilled(self, tokens: int) -> None:
        self._prompt_tokens.inc(tokens)

    @never_raises
    def first_token(self, seconds: float) -> None:
        self._first_tokens.inc()
        self._generation_tokens.inc()
        self._by_source["target"].inc()
        self._ttft.observe(seconds)

    @never_raises
    def inter_token(self, seconds: float, tokens: int) -> None:
        for _ in range(tokens):
            self._inter_token.observe(seconds / tokens)

    @never_raises
    def finished(
        self, reason: FinishReason | Literal["error"], seconds: float, prompt_tokens: int, completion_tokens: int
    ) -> None:
        self._finished[reason].inc()
        self._e2e.observe(seconds)


class _StatusCollector(Collector):
    """Gauges that are read off the engine when somebody scrapes."""

    def __init__(self, status: Callable[[], EngineStatus | None]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        try:
            status = self._status()
        except Exception:
            logger.exception("the engine's status could not be read")
            status = None
        running, waiting, kv = (status.running, status.waiting, status.kv_usage_ratio) if status else (0, 0, 0.0)
        yield GaugeMetricFamily("racer_num_requests_running", "Generations in the running batch", value=running)
        yield GaugeMetricFamily("racer_num_requests_waiting", "Generations in the queue", value=waiting)
        yield GaugeMetricFamily("racer_kv_cache_usage_ratio", "Share of the KV budget that is reserved", value=kv)
        yield from self._store((status and status.store) or StoreStatus())

    @staticmethod
    def _store(store: StoreStatus) -> Iterator[Metric]:
        yield GaugeMetricFamily("racer_ocm_entries", "Pairs in the correction memory", value=store.entries)
        yield CounterMetricFamily("racer_ocm_recorded", "Divergences counted while serving", value=store.recorded)
        degraded = 1 if store.state == "degraded" else 0
        yield GaugeMetricFamily("racer_store_degraded", "1 while the correction memory's store cannot be used", value=degraded)
        yield CounterMetricFamily(
            "racer_store_acknowledged_increments", "Increments that the store confirmed", value=store.acknowledged
        )
        errors = sum(store.errors.values())
        yield CounterMetricFamily("racer_store_errors", "Failed exchanges with the store", value=errors)


def package_version() -> str:
    try:
        return version("racer-csd")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"
