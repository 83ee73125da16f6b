"""The same prompt with speculation and plainly, one beside the other."""

from __future__ import annotations

import pytest

from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until
from tests.web.conftest import Opener
from tests.web.engines import chatting
from tests.web.playground import Playground

PROMPT = "Count the trees."


def test_a_race_shows_both_runs_their_lines_and_a_verdict(page: Playground, engine: SyntheticEngine) -> None:
    page.race()
    page.ask(PROMPT)
    spec, plain = page.answers()
    assert spec == plain
    assert [one.text for one in page.all(".lane")] == ["Speculative", "Plain"]
    assert "Same text" in page.text(".verdict")
    assert "×" in page.text(".verdict strong")
    assert page.text(".verdict strong") == page.figure("speedup")
    assert page.text("#speedup-note") == "in the race"
    assert len(page.all(".chart polyline")) == 2
    assert "speculative" in str(page.one(".chart").get_attribute("aria-label"))
    first, second = engine.requests
    assert (first.speculation.drafter, second.speculation.drafter) == ("racer", "none")
    assert first.prompt_ids == second.prompt_ids
    assert {source for _, source in page.tokens(1)} == {"target"}


def test_the_runs_follow_each_other(visit: Opener) -> None:
    """Side by side in one batch each would pay for the other, and plain most of all."""
    engine = SyntheticEngine(manual=True)
    page = visit(engine)
    page.race()
    page.send(PROMPT)
    engine.allow(4)
    wait_until(lambda: engine.rounds == 4)
    assert len(engine.requests) == 1
    engine.allow()
    wait_until(lambda: bool(page.answers()) and not page.busy)
    assert len(engine.requests) == 2


def test_runs_of_a_race_share_a_seed(page: Playground, engine: SyntheticEngine) -> None:
    page.set("temperature", "0.8")
    page.race()
    page.ask(PROMPT)
    seeds = {request.sampling.seed for request in engine.requests}
    assert len(seeds) == 1
    assert None not in seeds
    page.race()
    page.ask(PROMPT)
    assert engine.requests[-1].sampling.seed is None  # nothing to share: the server draws one


def test_a_stop_ends_the_whole_race(visit: Opener) -> None:
    engine = SyntheticEngine(manual=True)
    page = visit(engine)
    page.race()
    page.send(PROMPT)
    engine.allow(4)
    wait_until(lambda: len(page.tokens()) > 2)
    page.one("#stop").click()
    wait_until(lambda: not page.busy and engine.status().running == 0)
    assert len(engine.requests) == 1
    engine.allow()
    page.race()
    page.ask("Again")


def test_later_answers_are_compared_with_the_last_plain_run(page: Playground) -> None:
    page.ask(PROMPT)
    assert (page.figure("speedup"), page.text("#speedup-note")) == ("–", "race to measure")
    page.race()
    page.ask(PROMPT)
    page.race()
    page.ask(PROMPT)
    assert page.figure("speedup").startswith("≈")
    assert page.text("#speedup-note") == "last plain run"


def test_plain_has_nobody_to_race_against(page: Playground, engine: SyntheticEngine) -> None:
    page.set("drafter", "none")
    assert not page.one("#race").is_enabled()
    page.ask(PROMPT)
    assert engine.requests[-1].speculation.drafter == "none"
    assert (page.figure("mat"), page.figure("speedup")) == ("1.00", "–")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("racer_plain_step_seconds 0.04\n", 25),
        ("a 1\nracer_plain_step_seconds 4e-02\nb 2\n", 25),
        ("racer_plain_step_seconds 0.0\n", 0),
        ("# HELP racer_plain_step_seconds 3\n", 0),
        ("", 0),
    ],
)
def test_the_servers_calibration_is_the_base_where_nothing_was_raced(page: Playground, text: str, rate: float) -> None:
    assert page.module("api.js", "m.plainRateIn(args[0])", text) == pytest.approx(rate)


def test_a_real_engine_races_itself_to_the_same_text(visit: Opener) -> None:
    page = visit(chatting())
    page.set("max_tokens", "60")
    page.race()
    page.ask("abc abc abc abc")
    assert not page.errors()
    spec, plain = page.answers()
    assert spec == plain != ""
    assert "Same text" in page.text(".verdict")
