"""The dashboard Speculation: what it gains, where the time goes, and when it fails."""

from __future__ import annotations

from panels import ONE_WANTED, SPEEDUP, Json, Panel, Query, Row, dashboard, increase, mean, quantile, rate, ratio, series, total

ACCEPTED = "spec_decode_num_accepted_tokens_total"
DRAFTED = "spec_decode_num_draft_tokens_total"
DRAFTS = "spec_decode_num_drafts_total"
STEPS = "verify_steps_total"
PLAIN_SECONDS, DECODE_SECONDS = "plain_equivalent_seconds_total", "decode_seconds_total"


def glance() -> Row:
    def stat(title: str, description: str, unit: str, expr: str, **more: object) -> Panel:
        return Panel(title, description, unit, (Query(expr, instant=True),), "stat", 4, 4, **more)  # type: ignore[arg-type]

    emitted = f"({increase(ACCEPTED)} + {increase(STEPS)})"
    return Row(
        "At a glance",
        (
            stat(
                "Speedup",
                "Seconds that plain decoding takes for the same tokens, by calibration, over the seconds taken; "
                "over the time shown. 0: nothing was decoded.",
                "suffix:x",
                ratio(increase(PLAIN_SECONDS), increase(DECODE_SECONDS)),
                thresholds=SPEEDUP,
                decimals=2,
            ),
            stat(
                "Mean accepted tokens",
                "MAT: emitted tokens per verify step over the time shown; plain decoding is 1. 0: no step ran.",
                "none",
                ratio(emitted, increase(STEPS)),
                decimals=2,
            ),
            stat(
                "Draft acceptance",
                "Share of the verified draft tokens that were kept. Low where trees are wide: judge by the speedup.",
                "percentunit",
                ratio(increase(ACCEPTED), increase(DRAFTED)),
                maximum=1,
                decimals=1,
            ),
            stat(
                "Budget",
                "Nodes verified per session and step, root included, mean over the time shown. 1 is plain decoding.",
                "none",
                ratio(increase("nodes_verified_total"), increase(STEPS)),
                decimals=1,
            ),
            stat(
                "Rescues per 100 tokens",
                "Tokens that CSD kept in place of the target's. They make answers differ from plain decoding.",
                "none",
                f"100 * {ratio(increase('csd_rescues_total'), increase('generation_tokens_total'))}",
                decimals=2,
            ),
            stat(
                "Tree attention",
                "Whether draft trees are verified in one pass. Plain: the model did not pass the self-check, or is loading.",
                "none",
                f"min({series('tree_attention')})",
                thresholds=ONE_WANTED,
                texts={"0": "plain", "1": "tree"},
            ),
        ),
    )


def speed() -> Row:
    return Row(
        "Speed",
        (
            Panel(
                "Speedup over plain decoding",
                "Calibrated plain time over decode time. `all` is of the interval, 0 while nothing runs; an "
                "instance's own line "
                "is its gauge of the last minute of decoding. Below 1, speculation costs more than it brings.",
                "suffix:x",
                (
                    Query(ratio(rate(PLAIN_SECONDS), rate(DECODE_SECONDS)), "all"),
                    Query(series("speedup_ratio"), "{{instance}}"),
                ),
                thresholds=SPEEDUP,
            ),
            Panel(
                "Tokens per second of decoding",
                "What a second of decoding emits, over all sessions of a step, and what plain decoding would.",
                "suffix: tokens/s",
                (
                    Query(ratio(f"({rate(ACCEPTED)} + {rate(STEPS)})", rate(DECODE_SECONDS)), "with speculation"),
                    Query(ratio(f"({rate(ACCEPTED)} + {rate(STEPS)})", rate(PLAIN_SECONDS)), "plain, by calibration"),
                ),
            ),
            Panel(
                "Where a step's time goes",
                "Seconds of each phase per second: draft, forward, walk, commit, learn. Their sum is the share of the time in "
                "which sessions decode. Forward should be nearly all of it.",
                "s",
                (Query(rate("phase_seconds_total", by="phase"), "{{phase}}"),),
                stacked=True,
            ),
            Panel(
                "T(n): what a step costs",
                "Seconds of a step that verifies n nodes, all sessions together, as measured at start and corrected "
                "since. Where "
                "it is flat, drafting is nearly free; where it rises in proportion, it hardly pays.",
                "s",
                (Query(f"sort(avg by (nodes) ({series('step_cost_seconds')}))", "{{nodes}}", instant=True),),
                "bargauge",
            ),
            Panel(
                "Plain step",
                "The base of the speedup: seconds of a plain step of one session, as calibrated and corrected since. A jump "
                "means that something else uses the machine, or that contexts got long.",
                "s",
                (Query(series("plain_step_seconds"), "{{instance}}"),),
            ),
            Panel(
                "Decoding",
                "Seconds of decode steps per second, by instance: 1 is a worker that is always busy. Prefill is not counted.",
                "s",
                (Query(rate(DECODE_SECONDS, by="instance"), "{{instance}}"),),
            ),
        ),
    )


def acceptance() -> Row:
    return Row(
        "Acceptance",
        (
            Panel(
                "MAT over time",
                "MAT: emitted tokens per verify step, over all steps and over those that had a draft. 0 while nothing runs.",
                "none",
                (
                    Query(ratio(f"({rate(ACCEPTED)} + {rate(STEPS)})", rate(STEPS)), "all steps"),
                    Query(ratio(f"({rate(ACCEPTED)} + {rate(DRAFTS)})", rate(DRAFTS)), "steps with a draft"),
                ),
                decimals=2,
            ),
            Panel(
                "Accepted length",
                "Draft tokens kept per verify step: how many steps kept how many. Most weight at 0 means that drafts fail.",
                "none",
                (Query(f"sum by (le) (increase({series('accepted_length_bucket')}[$__rate_interval]))", "{{le}}"),),
                "heatmap",
            ),
            Panel(
                "Acceptance per position",
                "Share of the verify steps that kept a draft token at this place of the run, over the time shown. "
                "It falls from "
                "place to place; a steep fall at 0 means that the first guess fails.",
                "percentunit",
                (
                    Query(
                        "sort_desc("
                        + ratio(increase(f"{ACCEPTED[:-6]}_per_pos_total", 'position!="16+"', "position"), increase(STEPS))
                        + ")",
                        "{{position}}",
                        instant=True,
                    ),
                ),
                "bargauge",
                maximum=1,
            ),
            Panel(
                "Tokens by source",
                "Where emitted tokens came from: n-grams of the session (retrieval), the target's remembered successors "
                "(copy_logit), the draft model, or the target itself, which ends every step.",
                "suffix: tokens/s",
                (Query(rate("tokens_total", by="source"), "{{source}}"),),
                stacked=True,
            ),
            Panel(
                "Mean accepted tokens of a request",
                "MAT of whole requests: half of them are below p50, one in twenty below p5. Requests differ more than steps.",
                "none",
                tuple(Query(quantile(q, "request_mean_acceptance_length"), f"p{round(100 * q)}") for q in (0.05, 0.5, 0.95)),
                decimals=2,
            ),
            Panel(
                "Steps with a draft",
                "Share of the verify steps that had anything to verify beside the root. Low: drafting does not pay here, or "
                "requests switch it off.",
                "percentunit",
                (Query(ratio(rate(DRAFTS), rate(STEPS)), "drafted"),),
                maximum=1,
            ),
        ),
    )


def budget() -> Row:
    return Row(
        "Budget",
        (
            Panel(
                "Budget over time",
                "Nodes verified per session and step, root included: mean of the interval, and of each instance's latest step.",
                "none",
                (Query(mean("nodes_per_step"), "mean"), Query(series("budget_nodes"), "{{instance}}, latest")),
                width=12,
            ),
            Panel(
                "Budget chosen",
                "How many steps verified how many nodes per session. It moves with what a node costs and how "
                "likely it is kept.",
                "none",
                (Query(f"sum by (le) (increase({series('nodes_per_step_bucket')}[$__rate_interval]))", "{{le}}"),),
                "heatmap",
                width=12,
            ),
        ),
    )


def correction() -> Row:
    return Row(
        "CSD and its memory",
        (
            Panel(
                "Rescues",
                "At a mismatch the correction memory nominates a draft token; the gate refuses it, or it is rescued. All 0 "
                "unless requests ask for the verifier csd.",
                "suffix: tokens/s",
                (
                    Query(rate("csd_nominated_total"), "nominated"),
                    Query(rate("csd_refused_by_gate_total"), "refused by the gate"),
                    Query(rate("csd_rescues_total"), "rescued"),
                ),
            ),
            Panel(
                "Correction memory",
                "Pairs of draft and target token that diverged, in each instance's memory. It grows while serving, up "
                "to its bound.",
                "short",
                (Query(series("ocm_entries"), "{{instance}}"),),
            ),
            Panel(
                "Store",
                "Increments that the store confirmed per second, and whether it is degraded (1): then nothing is "
                "shared or kept.",
                "short",
                (
                    Query(rate("store_acknowledged_increments_total"), "confirmed per second"),
                    Query(f"max({series('store_degraded')})", "degraded"),
                ),
            ),
        ),
    )


def state() -> Row:
    return Row(
        "Drafting state",
        (
            Panel(
                "Sessions and conversations",
                "Sessions that hold drafting state (an automaton and copy-logit rows), running or kept between turns; and the "
                "conversations kept.",
                "short",
                (Query(total("sessions"), "sessions"), Query(total("conversations"), "conversations")),
                width=6,
            ),
            Panel(
                "Automaton nodes",
                "Nodes of all sessions' n-gram automata. A session has at most ten for each token of the context.",
                "short",
                (Query(series("automaton_nodes"), "{{instance}}"),),
                width=6,
            ),
            Panel(
                "Automaton evictions",
                "Nodes per second that made room for newer n-grams: normal for sessions of more than a thousand tokens.",
                "suffix: nodes/s",
                (Query(rate("automaton_evictions_total", by="instance"), "{{instance}}"),),
                width=6,
            ),
            Panel(
                "Copy-logit rows",
                "Remembered successors: of running sessions, of the warm layers of all keys, and the prior ones "
                "made while idle.",
                "short",
                (Query(total("copy_logit_rows", by="layer"), "{{layer}}"),),
                width=6,
            ),
        ),
    )


def speculation() -> Json:
    text = "What speculation gains and when it fails; docs/operating.md says what to do."
    rows = (glance(), speed(), acceptance(), budget(), correction(), state())
    return dashboard("racer-speculation", "racer-csd: Speculation", text, rows)
