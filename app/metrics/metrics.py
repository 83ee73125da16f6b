"""The metrics of one app. Every series exists from the start, at 0."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Concatenate, Literal, ParamSpec

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.engine.events import PHASES, SOURCE_NAMES, EndReason, SpeculationStats, StepRecord
from app.engine.interface import EngineStatus, ModelInfo
from app.metrics import labels
from app.metrics.collectors import LaneStatus, ProcessCollector, StatusCollector, TextCollector
from app.metrics.recent import RecentRatio

logger = logging.getLogger(__name__)

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
SPEEDUP_WINDOW = 60.0  # seconds of decoding

P = ParamSpec("P")


def never_raises(method: Callable[Concatenate[Metrics, P], None]) -> Callable[Concatenate[Metrics, P], None]:
    """A failing metric is logged once per method and disturbs neither a request nor the engine."""

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
    """The counts of one app in its own registry; an EngineObserver.

    Invariant: generation tokens = accepted tokens + verify steps + first tokens.
    """

    def __init__(self, routes: tuple[str, ...] = ()) -> None:
        """routes: the closed set of route labels; any other path counts as `other`."""
        self.registry = CollectorRegistry()
        self._failed: set[str] = set()
        self._routes = frozenset(routes)
        self._recent = RecentRatio(SPEEDUP_WINDOW)
        # creation times would double the page; prometheus_client only has a global switch
        prometheus_client.disable_created_metrics()
        self._declare_speculation()
        self._declare_correction()
        self._declare_speed()
        self._declare_requests(routes)
        self._tree_attention = self._gauge(
            "tree_attention", "1 when draft trees are verified in one pass, 0 with plain decoding or before loading"
        )
        build = labels.build()
        family = Gauge("racer_build_info", "Always 1; versions are labels", list(build), registry=self.registry)
        family.labels(**build).set(1)
        self.registry.register(ProcessCollector())

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"racer_{name}", text, registry=self.registry)

    def _counters(self, name: str, text: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        family = Counter(f"racer_{name}", text, [label], registry=self.registry)
        return {value: family.labels(value) for value in values}

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"racer_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"racer_{name}", text, buckets=buckets, registry=self.registry)

    def _declare_speculation(self) -> None:
        self._drafts = self._counter("spec_decode_num_drafts", "Verify steps with a draft, counted per session")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Draft tokens verified")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self._accepted_at = self._counters(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the accepted run, from 0",
            "position",
            labels.POSITIONS,
        )
        self._steps = self._counter("verify_steps", "Verify steps, counted per session")
        self._nodes = self._counter("nodes_verified", "Draft tree nodes verified, roots included")
        self._first_tokens = self._counter("first_tokens", "First tokens of generations, chosen by the prefill")
        self._by_source = self._counters("tokens", "Tokens generated, by source", "source", SOURCE_NAMES)
        self._accepted_length = self._histogram(
            "accepted_length", "Draft tokens accepted per verify step", labels.ACCEPTED_BUCKETS
        )
        self._request_mean = self._histogram(
            "request_mean_acceptance_length", "Tokens per verify step (MAT), mean of a request", labels.MEAN_BUCKETS
        )
        self._budgets = self._histogram(
            "nodes_per_step", "Nodes verified per session and step, root included: the node budget", labels.BUDGET_BUCKETS
        )
        self._budget = self._gauge("budget_nodes", "Nodes per session in the latest step, root included")

    def _declare_correction(self) -> None:
        self._rescues = self._counter("csd_rescues", "Draft tokens accepted in place of the target's choice")
        self._nominated = self._counter(
            "csd_nominated", "Draft tokens that the correction memory (OCM) nominated at a mismatch"
        )
        self._refused_by_gate = self._counter(
            "csd_refused_by_gate", "Nominated draft tokens that the gate on the target's logits refused"
        )

    def _declare_speed(self) -> None:
        self._phases = self._counters("phase_seconds", "Seconds of decoding by phase of the step", "phase", PHASES)
        self._decode_seconds = self._counter("decode_seconds", "Wall time of decoding steps in seconds, without prefill")
        self._plain_seconds = self._counter(
            "plain_equivalent_seconds", "Seconds that plain decoding would take for the same tokens, as calibrated"
        )
        self._speedup = self._gauge(
            "speedup_ratio",
            "Calibrated plain seconds over decode seconds, over about the last minute of decoding; 0 before any",
        )

    def _declare_requests(self, routes: tuple[str, ...]) -> None:
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens prefilled")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self._finished = self._counters(
            "request_success", "Generations that ended, by reason", "finished_reason", labels.FINISHED_REASONS
        )
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Seconds from the first byte of the request to the first token", labels.TTFT_BUCKETS
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds",
            "Seconds per token after the first: the time between two steps of a session, divided by the tokens of the step",
            labels.TOKEN_BUCKETS,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "Seconds from the first byte of the request to the last token", labels.E2E_BUCKETS
        )
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens per generation", labels.LENGTH_BUCKETS)
        self._answer_length = self._histogram(
            "request_generation_tokens", "Tokens generated per generation", labels.LENGTH_BUCKETS
        )
        self._refused = self._counter(
            "queue_refusals", "Requests answered 429: the queue was full, the key at its limit, or too much text waiting"
        )
        self._key_refused = self._counter("key_refusals", "Requests answered 429 because their API key was at its limit")
        self._unread = self._counters(
            "unread_replies",
            "Replies ended because the client did not read them: too many bytes waiting, or waiting for too long",
            "cause",
            labels.UNREAD_CAUSES,
        )
        self._text = TextCollector()
        self.registry.register(self._text)
        self._text_refused = self._counter("text_refusals", "Requests answered 429 because too much text was waiting")
        family = Counter("racer_http_requests", "HTTP replies", ["route", "status"], registry=self.registry)
        self._http = {
            (route, status): family.labels(route, status)
            for route in (*routes, labels.OTHER_ROUTE)
            for status in labels.STATUS_CLASSES
        }

    # -- set by the app --------------------------------------------------------------------------------------------------

    @never_raises
    def watch(self, status: Callable[[], EngineStatus | None]) -> None:
        """Read the engine's gauges from `status` at every scrape; None counts as all zeros."""
        self.registry.register(StatusCollector(status))

    @never_raises
    def watch_text(self, status: Callable[[], Mapping[str, LaneStatus]]) -> None:
        """The same for the lanes of text work."""
        self._text.status = status

    @never_raises
    def model_loaded(self, info: ModelInfo) -> None:
        self._tree_attention.set(1 if info.tree_attention else 0)

    @never_raises
    def http_reply(self, route: str, status: int) -> None:
        self._http[route if route in self._routes else labels.OTHER_ROUTE, f"{status // 100}xx"].inc()
        if status == 429:
            self._refused.inc()

    @never_raises
    def text_refused(self) -> None:
        self._text_refused.inc()

    @never_raises
    def key_refused(self) -> None:
        self._key_refused.inc()

    @never_raises
    def unread_reply(self, cause: Literal["bytes", "time"]) -> None:
        self._unread[cause].inc()

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
        numbers = (record.sessions, record.drafts, record.nodes, record.drafted, *record.accepted_lengths, *record.budgets)
        numbers += (record.rescues, record.nominated, record.refused_by_gate)
        seconds = (record.seconds, record.plain_seconds, *record.phase_seconds.values())
        if (
            min(*numbers, *record.emitted_by_source.values(), *seconds) < 0
        ):  # reject all of it: half a record would break the invariant
            raise ValueError("negative count in a step record")
        budget = record.nodes / record.sessions
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
                self._accepted_at[labels.POSITIONS[position]].inc()
            self._accepted_at[labels.POSITIONS[-1]].inc(max(0, length - 16))
        for counter, amount in (sources | phases).items():
            counter.inc(amount)
        for nodes in record.budgets:
            self._budgets.observe(nodes)
        self._budget.set(budget)
        self._decode_seconds.inc(record.seconds)
        self._plain_seconds.inc(record.plain_seconds)
        self._recent.add(record.plain_seconds, record.seconds)
        self._speedup.set(self._recent.value)

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
    def finished(self, reason: EndReason, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self._finished[reason].inc()
        self._e2e.observe(seconds)
        self._prompt_length.observe(prompt_tokens)
        self._answer_length.observe(completion_tokens)
