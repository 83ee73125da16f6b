"""The dashboard Service: traffic, latency, queue, memory and errors."""

from __future__ import annotations

from panels import (
    ERRORS,
    NONE_WANTED,
    ONE_WANTED,
    SHARE_USED,
    Json,
    Panel,
    Query,
    Row,
    dashboard,
    quantile,
    rate,
    ratio,
    series,
    total,
)

API = 'route=~"/v1/.+"'
HTTP, ENDED = "http_requests_total", "request_success_total"
FAILED = 'finished_reason="error"'


def latencies(title: str, description: str, name: str) -> Panel:
    quantiles = tuple(Query(quantile(q, name), f"p{round(100 * q)}") for q in (0.5, 0.95, 0.99))
    return Panel(title, description + " 0 while there is no traffic.", "s", quantiles)


def glance() -> Row:
    def stat(title: str, description: str, unit: str, expr: str, legend: str = "", **more: object) -> Panel:
        return Panel(title, description, unit, (Query(expr, legend, instant=True),), "stat", 4, 4, **more)  # type: ignore[arg-type]

    return Row(
        "At a glance",
        (
            stat(
                "Ready",
                "Whether every instance takes requests. Loading, stopping or failed: see /ready and the log.",
                "none",
                f"min({series('ready')})",
                thresholds=ONE_WANTED,
                texts={"0": "not ready", "1": "ready"},
            ),
            stat("Requests running", "Generations in the running batches.", "short", total("num_requests_running")),
            stat("Requests waiting", "Generations in the queues.", "short", total("num_requests_waiting")),
            stat("Tokens per second", "Tokens emitted.", "suffix: tokens/s", rate("generation_tokens_total"), decimals=1),
            stat(
                "Requests that fail",
                "Share of the generations that ended with an error of the server, of the last interval.",
                "percentunit",
                ratio(rate(ENDED, FAILED), rate(ENDED)),
                thresholds=ERRORS,
                decimals=1,
            ),
            stat(
                "Version",
                "The version of racer-csd that runs; several during a roll-out.",
                "string",
                f"count by (version) ({series('build_info')})",
                "{{version}}",
            ),
        ),
    )


def traffic() -> Row:
    return Row(
        "Traffic",
        (
            Panel(
                "Generations",
                "Generations that ended, by reason: stop, length, cancelled (the client left, or the server stopped), "
                "error (of the server), invalid (a schema that the answer could not follow).",
                "reqps",
                (Query(rate(ENDED, by="finished_reason"), "{{finished_reason}}"),),
                stacked=True,
            ),
            Panel(
                "Tokens",
                "Prompt tokens read and tokens emitted per second.",
                "suffix: tokens/s",
                (Query(rate("prompt_tokens_total"), "prompt"), Query(rate("generation_tokens_total"), "emitted")),
            ),
            Panel(
                "HTTP replies",
                "Replies per second by status class, all routes.",
                "reqps",
                (Query(rate(HTTP, by="status"), "{{status}}"),),
                stacked=True,
            ),
            Panel(
                "HTTP replies by route",
                "Replies per second by route; unknown paths count as other.",
                "reqps",
                (Query(rate(HTTP, by="route"), "{{route}}"),),
            ),
            Panel(
                "Prompt length",
                "Tokens of the prompts of generations that ended.",
                "suffix: tokens",
                tuple(Query(quantile(q, "request_prompt_tokens"), f"p{round(100 * q)}") for q in (0.5, 0.95)),
            ),
            Panel(
                "Answer length",
                "Tokens emitted by generations that ended.",
                "suffix: tokens",
                tuple(Query(quantile(q, "request_generation_tokens"), f"p{round(100 * q)}") for q in (0.5, 0.95)),
            ),
        ),
    )


def latency() -> Row:
    return Row(
        "Latency",
        (
            latencies(
                "Time to first token",
                "From the first byte of the request to the first token: its body, tokenizing, waiting in the queue, "
                "reading the prompt.",
                "time_to_first_token_seconds",
            ),
            latencies(
                "Time per token",
                "From one emission of a generation to the next, shared by the tokens that came together; the time in which "
                "other prompts were read is part of it.",
                "inter_token_latency_seconds",
            ),
            latencies("Whole answer", "From the first byte of the request to the last token.", "e2e_request_latency_seconds"),
        ),
    )


def queue() -> Row:
    return Row(
        "Queue and KV",
        (
            Panel(
                "Running and waiting",
                "Generations in the batch and in the queue. Waiting for long: add instances, or raise max_running "
                "if KV allows.",
                "short",
                (Query(total("num_requests_running"), "running"), Query(total("num_requests_waiting"), "waiting")),
            ),
            Panel(
                "Turned away",
                "Requests per second that got 429 because the queue was full.",
                "reqps",
                (Query(rate("queue_refusals_total", by="instance"), "{{instance}}"),),
                thresholds=NONE_WANTED,
            ),
            Panel(
                "Not read",
                "Replies per second cut off because their client did not read them: too many bytes waited, or for too long a "
                "time.",
                "reqps",
                (Query(rate("unread_replies_total", by="cause"), "{{cause}}"),),
                thresholds=NONE_WANTED,
            ),
            Panel(
                "KV cache",
                "Share of the KV budget that running sessions have reserved. Near 1, requests wait for memory, not for "
                "max_running.",
                "percentunit",
                (Query(series("kv_cache_usage_ratio"), "{{instance}}"),),
                thresholds=SHARE_USED,
                maximum=1,
            ),
        ),
    )


def trouble() -> Row:
    return Row(
        "Errors and store",
        (
            Panel(
                "Errors",
                "Share of replies under /v1 with a 5xx status, and of generations that ended with an error, after the "
                "first byte too.",
                "percentunit",
                (
                    Query(ratio(rate(HTTP, f'{API},status="5xx"'), rate(HTTP, API)), "replies"),
                    Query(ratio(rate(ENDED, FAILED), rate(ENDED)), "generations"),
                ),
                thresholds=ERRORS,
            ),
            Panel(
                "Store errors",
                "Failed exchanges with the correction memory's store per second, by kind. Serving goes on without it.",
                "ops",
                (Query(rate("store_errors_total", by="kind"), "{{kind}}"),),
                thresholds=NONE_WANTED,
            ),
            Panel(
                "Worker and store",
                "Seconds since the worker last began a round of its loop: under 1 when idle, a step or a prefill otherwise. "
                "And whether "
                "the store is degraded (1).",
                "s",
                (
                    Query(series("worker_heartbeat_age_seconds"), "{{instance}}, heartbeat"),
                    Query(f"max({series('store_degraded')})", "store degraded"),
                ),
                thresholds=((None, "green"), (30, "red")),
            ),
        ),
    )


def process() -> Row:
    return Row(
        "Process",
        (
            Panel(
                "Memory",
                "Resident memory of the process, and what it holds of an accelerator's memory (0 without one).",
                "bytes",
                (
                    Query(series("process_resident_memory_bytes"), "{{instance}}, resident"),
                    Query(series("device_memory_bytes"), "{{instance}}, device"),
                ),
            ),
            Panel(
                "CPU",
                "CPU seconds per second: cores in use.",
                "suffix: cores",
                (Query(rate("process_cpu_seconds_total", by="instance"), "{{instance}}"),),
            ),
            Panel(
                "Age of the process",
                "Seconds since the process started; a fall is a restart.",
                "s",
                (Query(f"time() - {series('process_start_time_seconds')}", "{{instance}}"),),
            ),
        ),
    )


def service() -> Json:
    text = "Traffic, latency, queue, memory and errors; docs/operating.md says what to do."
    rows = (glance(), traffic(), latency(), queue(), trouble(), process())
    return dashboard("racer-service", "racer-csd: Service", text, rows)
