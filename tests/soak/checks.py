"""What must hold of the metrics page at rest, and of the page beside what the clients saw."""

from __future__ import annotations

from app.engine.events import SOURCE_NAMES
from app.metrics import FINISHED_REASONS, POSITIONS
from tests.soak.ledger import Ledger

Page = dict[str, float]
GAUGES = ("racer_num_requests_running", "racer_num_requests_waiting", "racer_kv_cache_usage_ratio")
GENERATED, PROMPTS = "racer_generation_tokens_total", "racer_prompt_tokens_total"


def at_rest(page: Page) -> bool:
    """Nothing runs, waits or holds memory."""
    return all(page[name] == 0 for name in GAUGES)


def ended(page: Page, *reasons: str) -> float:
    return sum(page[f'racer_request_success_total{{finished_reason="{reason}"}}'] for reason in reasons)


def check_page(page: Page, ledger: Ledger) -> None:
    """The counters agree with each other."""
    accepted, steps = page["racer_spec_decode_num_accepted_tokens_total"], page["racer_verify_steps_total"]
    first, generated = page["racer_first_tokens_total"], page[GENERATED]
    drafted = page["racer_spec_decode_num_draft_tokens_total"]
    by_source = sum(page[f'racer_tokens_total{{source="{source}"}}'] for source in SOURCE_NAMES)
    by_place = sum(page[f'racer_spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'] for place in POSITIONS)
    everyone = ended(page, *FINISHED_REASONS)
    same = {
        "emitted = accepted + steps + first": (generated, accepted + steps + first),
        "emitted = by source": (generated, by_source),
        "accepted = by position": (accepted, by_place),
        "accepted = histogram": (accepted, page["racer_accepted_length_sum"]),
        "steps = histogram": (steps, page["racer_accepted_length_count"]),
        "nodes = drafted + roots": (page["racer_nodes_verified_total"], drafted + steps),
        "first tokens = histogram": (first, page["racer_time_to_first_token_seconds_count"]),
        "ended = histogram": (everyone, page["racer_e2e_request_latency_seconds_count"]),
        "failed": (ended(page, "error"), 0),
        "server errors": (sum(value for name, value in page.items() if 'status="5xx"' in name), 0),
    }
    for what, (left, right) in same.items():
        ledger.check(left == right, f"{what}: {left:g} is not {right:g}")
    ledger.check(accepted <= drafted, f"{accepted:g} accepted of {drafted:g} drafted")
    ledger.check(first <= everyone, f"{first:g} first tokens of {everyone:g} generations")


def check_clients(page: Page, ledger: Ledger) -> None:
    """The counters agree with the clients, as far as clients that left can know."""
    between = {
        "tokens": (ledger.completion_tokens, page[GENERATED], ledger.dropped_tokens),
        "prompt tokens": (ledger.prompt_tokens, page[PROMPTS], float("inf")),
        "answers": (ledger.answers, ended(page, "stop", "length"), ledger.dropped),
        "generations": (ledger.answers, ended(page, *FINISHED_REASONS), ledger.dropped),
        "refusals": (ledger.refused, page["racer_queue_refusals_total"], ledger.dropped),
    }
    for what, (seen, counted, room) in between.items():
        ledger.check(seen <= counted <= seen + room, f"{what}: clients saw {seen:g} (and {room:g} may be), counted {counted:g}")


def check_quiet(before: Page, after: Page, ledger: Ledger) -> None:
    """Of a stretch in which no client left: every number is known. ledger: of that stretch."""
    exact = {
        "tokens": (ledger.completion_tokens, after[GENERATED] - before[GENERATED]),
        "prompt tokens": (ledger.prompt_tokens, after[PROMPTS] - before[PROMPTS]),
        "answers": (ledger.answers, ended(after, "stop", "length") - ended(before, "stop", "length")),
        "generations": (ledger.answers, ended(after, *FINISHED_REASONS) - ended(before, *FINISHED_REASONS)),
    }
    for what, (seen, counted) in exact.items():
        ledger.check(seen == counted, f"{what} of a quiet stretch: clients saw {seen:g}, counted {counted:g}")
