"""Send, stream, stop, fail, go on, reload."""

from __future__ import annotations

import functools

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from app.engine.request import GenerationRequest
from app.text.thoughts import KNOWN_TAGS, Thoughts
from tests.api.support import CHAT
from tests.synthetic import SyntheticCodec, SyntheticEngine
from tests.waiting import wait_until
from tests.web.conftest import Opener
from tests.web.playground import SOURCES, Playground

PROMPT = "What is a tree?"


def plain_answer(page: Playground, prompt: str, **fields: object) -> dict[str, object]:
    """The same question without streaming and without speculation."""
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 256, **fields}
    choice = httpx.post(page.url[:-1] + CHAT, json={**body, "speculative": {"drafter": "none"}}).json()["choices"][0]
    return dict(choice)


def grown(page: Playground, length: int) -> bool:
    return len(page.answers()[-1]) > length


def test_an_answer_streams_in_and_every_token_is_coloured_by_its_source(visit: Opener) -> None:
    engine = SyntheticEngine(manual=True)
    page = visit(engine)
    page.send(PROMPT)
    seen = ""
    for _ in range(4):
        engine.allow(3)
        wait_until(functools.partial(grown, page, len(seen)))
        assert page.answers()[-1].startswith(seen)
        seen = page.answers()[-1]
        assert page.busy
    engine.allow()
    wait_until(lambda: not page.busy)
    message = plain_answer(page, PROMPT)["message"]
    assert isinstance(message, dict)
    assert page.answers() == [message["content"]]
    assert {source for _, source in page.tokens()} == {"retrieval", "copy_logit", "target"}
    colours = page.js(
        """return Object.fromEntries([...document.querySelectorAll('.answer .token')].map(
            one => [one.dataset.source, getComputedStyle(one).backgroundColor + getComputedStyle(one).borderBottomStyle]))"""
    )
    assert len(set(colours.values())) == 3


def test_the_figures_and_the_legend_are_the_servers(page: Playground, engine: SyntheticEngine) -> None:
    page.ask(PROMPT)
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 256}
    shown = {source: page.text(f"[data-of={source}] .count").split(" ")[0] for source in SOURCES}
    counted = page.js("return JSON.parse(sessionStorage.getItem('racer-conversation'))")[0]["runs"][0]["figures"]
    assert {source: int(count or 0) for source, count in shown.items()} == counted["tokens_by_source"]
    assert page.figure("mat") == f"{counted['mean_acceptance_length']:.2f}"
    assert float(page.figure("rate")) > 0
    assert engine.requests[-1].speculation.trace
    usage = httpx.post(page.url[:-1] + CHAT, json=body).json()["usage"]
    assert sum(int(count or 0) for count in shown.values()) == usage["completion_tokens"]


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_keeps_what_came_and_frees_the_server(visit: Opener, how: str) -> None:
    engine = SyntheticEngine(manual=True)
    page = visit(engine)
    page.send(PROMPT)
    engine.allow(5)
    wait_until(lambda: engine.rounds == 5)
    wait_until(lambda: len(page.tokens()) > 3)
    if how == "button":
        page.one("#stop").click()
    else:
        page.write(Keys.ESCAPE)
    wait_until(lambda: engine.status().running == 0)
    wait_until(lambda: not page.busy)
    assert "stopped" in page.text(".meta")
    assert page.answers()[0]
    assert page.js("return document.activeElement.id") == "prompt"
    assert not page.errors()
    engine.allow()
    assert page.ask("And now?")


def test_the_model_is_told_the_conversation_until_it_is_cleared(page: Playground, engine: SyntheticEngine) -> None:
    first = page.ask(PROMPT)
    page.ask("And a forest?")
    told = engine.codec.decode(engine.requests[-1].prompt_ids)
    assert all(text in told for text in (PROMPT, first, "And a forest?"))
    page.one("#clear").click()
    assert not page.answers()
    assert page.one("#welcome").is_displayed()
    assert page.js("return document.activeElement.id") == "prompt"
    page.ask("Hello")
    assert PROMPT not in engine.codec.decode(engine.requests[-1].prompt_ids)


def test_the_server_may_keep_the_conversation_until_it_is_cleared(page: Playground, engine: SyntheticEngine) -> None:
    page.ask(PROMPT)
    page.driver.refresh()
    wait_until(lambda: page.text("#served") == "synthetic")
    page.ask("More")
    page.one("#clear").click()
    page.ask("Anew")
    first, second, third = (request.conversation for request in engine.requests)
    assert first == second is not None
    assert third not in (None, first)
    page.race()
    page.ask("Race")
    assert [request.conversation for request in engine.requests[3:]] == [None, None]  # neither starts ahead


def test_an_example_asks(page: Playground, engine: SyntheticEngine) -> None:
    page.all("#examples button")[1].click()
    wait_until(lambda: bool(page.answers()) and not page.busy)
    assert "class Stack" in engine.codec.decode(engine.requests[0].prompt_ids)


def test_what_people_and_models_write_is_text(page: Playground) -> None:
    prompt = "<img src=x onerror=alert(1)> <b>bold</b> &amp;"
    page.ask(prompt)
    assert page.text(".asked") == prompt
    assert not page.all(".asked *, .text img")


def test_a_refused_value_is_explained_with_its_field(page: Playground, engine: SyntheticEngine) -> None:
    page.set("max_tokens", "0")
    page.send(PROMPT)
    wait_until(lambda: bool(page.errors()))
    assert "max_tokens" in page.errors()[0]
    assert not page.busy
    page.set("max_tokens", "20")
    page.ask("Again")
    told = engine.codec.decode(engine.requests[-1].prompt_ids)
    assert "Again" in told
    assert PROMPT not in told  # the model never saw the question that was refused


def test_a_failure_in_the_stream_is_shown_beside_what_came(visit: Opener) -> None:
    page = visit(SyntheticEngine(fail_at_step=4))
    page.send(PROMPT)
    wait_until(lambda: bool(page.errors()))
    assert page.answers()[0]
    assert not page.busy


def test_a_full_server_says_when_to_come_again(visit: Opener) -> None:
    engine = SyntheticEngine(manual=True, max_running=1, max_queued=0)
    page = visit(engine)
    engine.submit(GenerationRequest((1,)), lambda event: None)
    page.send(PROMPT)
    wait_until(lambda: bool(page.errors()))
    assert "Try again in" in page.errors()[0]


def test_code_stands_in_a_fixed_width(page: Playground) -> None:
    pieces = ["Here:\n``", "`python\n", "x =", " 1\n", "```", "\nand ", "`y`"]
    script = """(() => {
        const run = {lane: "spec", state: "stop", trees: [], tokens: 0, thoughts: []};
        run.pieces = args[0].map((text) => [text, "target", false, 1]);
        const view = new m.TurnView({prompt: "", runs: [run]}, () => {});
        return [...view.element.querySelectorAll(".code")].map((one) => one.textContent);
    })()"""
    assert page.module("turn.js", script, pieces) == ["`python\n", "x =", " 1\n", "```"]


def test_a_server_that_is_gone_is_named(page: Playground, engine: SyntheticEngine) -> None:
    page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*chat/completions*"]})
    try:
        page.send(PROMPT)
        wait_until(lambda: page.errors() == ["The server cannot be reached."])
    finally:
        page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    assert page.ask("Again")


def test_a_key_is_asked_for_used_and_kept_in_the_tab_alone(visit: Opener, engine: SyntheticEngine) -> None:
    page = visit(engine, api_keys="sesame")
    page.driver.get(page.url)
    wait_until(lambda: page.text("#served") == "needs a key")
    page.send(PROMPT)
    wait_until(lambda: bool(page.errors()))
    assert "key" in page.errors()[0]
    page.one("#key").send_keys("sesame" + Keys.TAB)
    wait_until(lambda: page.text("#served") == "synthetic")
    assert page.ask("Hello")
    page.driver.refresh()
    wait_until(lambda: page.text("#served") == "synthetic")
    assert page.js("return JSON.stringify({...localStorage}) + document.cookie + location.href").find("sesame") < 0
    assert page.one("#key").get_attribute("type") == "password"


def test_a_reload_keeps_conversation_figures_tree_and_settings(page: Playground, engine: SyntheticEngine) -> None:
    page.set("temperature", "0.7")
    page.set("seed", "11")
    page.set("max_nodes", "9")
    page.ask(PROMPT)
    before = (page.answers(), page.tokens(), page.figure("mat"), page.text("#step-place"), page.text(".meta"))
    page.driver.refresh()
    wait_until(lambda: page.text("#served") == "synthetic")
    wait_until(lambda: page.text("#step-place") == before[3])
    assert (page.answers(), page.tokens(), page.figure("mat"), page.text("#step-place"), page.text(".meta")) == before
    page.ask("More")
    asked = engine.requests[-1]
    assert (asked.sampling.temperature, asked.sampling.seed, asked.speculation.max_nodes) == (0.7, 11, 9)
    assert PROMPT in engine.codec.decode(asked.prompt_ids)


def test_a_reload_in_the_middle_keeps_what_came(visit: Opener) -> None:
    engine = SyntheticEngine(manual=True)
    page = visit(engine)
    page.send(PROMPT)
    engine.allow(5)
    wait_until(lambda: engine.rounds == 5 and len(page.tokens()) > 3)
    text = page.answers()
    page.driver.refresh()
    wait_until(lambda: page.text("#served") == "synthetic")
    assert page.answers() == text
    assert "interrupted" in page.text(".meta")
    wait_until(lambda: engine.status().running == 0)


def test_the_page_waits_for_a_model_that_loads(page: Playground, engine: SyntheticEngine) -> None:
    engine.ready = False
    page.driver.refresh()
    wait_until(lambda: page.text("#served") == "model loading")
    engine.ready = True
    wait_until(lambda: page.text("#served") == "synthetic")


def test_thoughts_stand_apart_and_are_not_sent_back(visit: Opener) -> None:
    engine = SyntheticEngine(codec=SyntheticCodec(thoughts=Thoughts(KNOWN_TAGS[0])))
    engine.answer = "<think>\nhm, so\n</think>\n\nYes."
    page = visit(engine)
    page.ask(PROMPT)
    assert page.answers() == ["Yes."]
    assert page.text(".thought") == "hm, so"
    assert page.one(".thoughts").get_attribute("open") is None  # closed once the answer begins
    page.ask("And?")
    assert engine.codec.decode(engine.requests[-1].prompt_ids).count("hm, so") == 0
    assert "Yes." in engine.codec.decode(engine.requests[-1].prompt_ids)
    page.open()
    assert page.text(".thought") == "hm, so"
    engine.answer = "Yes."
    page.ask("So?")
    assert len([one for one in page.all(".thoughts") if one.is_displayed()]) == 2
