"""The draft tree of a step, as the engine verified it and as the page draws it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.correction import CsdConfig
from tests.engine.drafting import similar
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until
from tests.web.conftest import Opener
from tests.web.engines import chatting
from tests.web.playground import Playground


def drawn(page: Playground) -> dict[str, int]:
    return {
        "nodes": len(page.all("#tree g[data-source]")),
        "kept": len(page.all("#tree g.kept[data-source]")),
        "edges": len(page.all("#tree .edge")),
    }


def last_tree(page: Playground) -> dict[str, Any]:
    kept = page.js("return JSON.parse(sessionStorage.getItem('racer-conversation')).at(-1).runs[0].trees.at(-1)")
    return dict(kept)


def test_the_last_step_is_drawn_with_what_was_kept(page: Playground) -> None:
    page.ask("Draw")
    tree = last_tree(page)["tree"]
    found = drawn(page)
    assert found["edges"] == found["nodes"] - 1
    assert found["nodes"] - len(tree["tokens"]) in (0, 1)  # the target's own token, where no node carries it
    assert found["kept"] == len(tree["accepted"]) + 1
    caption = page.text("#tree-caption")
    assert len(tree["tokens"]) > 1
    assert f"{len(tree['tokens']) - 1} drafted, {len(tree['accepted']) - 1} kept" in caption
    assert page.one("#tree svg").get_attribute("aria-label") == caption
    boxes = page.js("return [...document.querySelectorAll('#tree rect')].map(r => [r.x.baseVal.value, r.y.baseVal.value])")
    assert len({tuple(box) for box in boxes}) == found["nodes"]  # no node hides another
    tops = page.js("return [...document.querySelectorAll('#tree .kept rect')].map(r => r.y.baseVal.value)")
    assert len(set(tops)) == 1  # the accepted path is a straight line


def test_a_marked_token_is_let_go_with_its_tree(page: Playground) -> None:
    page.ask("Draw")
    page.one("#step-back").click()
    wait_until(lambda: bool(page.all(".token.shown")))
    page.set("max_tokens", "0")
    page.ask("Fail")
    assert page.errors()
    assert page.text("#step-place") == "no step yet"
    assert not page.all(".token.shown")


def test_grammar_is_in_the_legend_where_an_answer_has_it(page: Playground) -> None:
    page.ask("Draw")
    entry = page.one("[data-of=grammar]")
    assert not entry.is_displayed()
    page.js(
        """const kept = JSON.parse(sessionStorage.getItem("racer-conversation")), run = kept[0].runs[0];
        run.pieces[1][1] = "grammar";
        run.bySource.grammar = 1;
        addEventListener("pagehide", () => sessionStorage.setItem("racer-conversation", JSON.stringify(kept)));"""
    )
    page.open()
    entry = page.one("[data-of=grammar]")
    assert entry.is_displayed()
    assert entry.text.split("\n")[-1].startswith("1 ·")
    assert "grammar" in {source for _, source in page.tokens()}
    colour = "return getComputedStyle(document.querySelector(`.shares [data-source=${arguments[0]}]`)).backgroundColor"
    assert page.js(colour, "grammar") != page.js(colour, "target")


def test_earlier_steps_can_be_looked_at(page: Playground) -> None:
    page.ask("Draw")
    last = page.text("#step-place")
    steps = int(last.split(" ")[-1])
    assert last == f"step {steps} of {steps}"
    page.one("#step-back").click()
    wait_until(lambda: page.text("#step-place") == f"step {steps - 1} of {steps}")
    marked = {one.get_attribute("data-step") for one in page.all(".token.shown")}
    assert marked <= {str(steps - 1)}
    page.one("#step-on").click()
    wait_until(lambda: page.text("#step-place") == last)
    assert not page.one("#step-on").is_enabled()
    page.js("document.querySelector('.token[data-step=\"2\"]').click()")
    wait_until(lambda: page.text("#step-place") == f"step 2 of {steps}")
    assert {one.get_attribute("data-step") for one in page.all(".token.shown")} == {"2"}


def test_rescued_tokens_are_marked_and_the_csd_controls_offered(visit: Opener, tmp_path: Path) -> None:
    rescue = CsdConfig(allowed=True, rule="scg", store=f"sqlite:{tmp_path / 'ocm.sqlite3'}")
    page = visit(chatting(draft=similar(), csd=rescue))
    assert not page.one("#lambda").is_displayed()
    page.set("drafter", "draft_model")
    page.set("verifier", "csd")
    assert page.one("#lambda").is_displayed()
    page.set("tau", "0.000000000001")
    page.set("max_tokens", "40")
    page.ask("hello world")
    assert not page.errors()
    counted = page.js("return JSON.parse(sessionStorage.getItem('racer-conversation'))[0].runs[0].figures")
    assert (counted["drafter"], counted["verifier"]) == ("draft_model", "csd")
    rescued = page.all(".answer .token.rescued")
    assert len(rescued) == counted["rescues"] > 0
    mark = page.js("return getComputedStyle(document.querySelector('.token.rescued'), '::after').content")
    assert mark == '"↺"'  # not by colour alone
    assert "draft_model" in {source for _, source in page.tokens()}
    assert page.text("[data-of=rescued] .count") == str(counted["rescues"])
    page.set("verifier", "exact")
    assert page.ask("hello world")
    assert not page.errors()


def test_what_a_server_does_not_have_is_not_offered(page: Playground) -> None:
    options = [one.get_attribute("value") for one in page.all("#drafter option")]
    assert options == ["racer", "none"]
    for hidden in ("#verifier", "#lambda", "#tau", "[data-of=draft_model]", "[data-of=rescued]"):
        assert not page.one(hidden).is_displayed()
    assert page.one("#max_nodes").get_attribute("max") == "24"


def test_a_server_that_cannot_speculate_offers_sampling_alone(visit: Opener) -> None:
    engine = SyntheticEngine()
    engine.info = replace(engine.info, tree_attention=False)
    page = visit(engine)
    assert not page.one("#speculation").is_displayed()
    assert not page.one("#race").is_enabled()
    assert page.ask("Hello")


# -- which part of a text a token stands for -------------------------------------------------------------------------------


def test_tokens_are_laid_over_the_text_without_changing_it(page: Playground) -> None:
    cases: list[tuple[str, list[str]]] = []

    @settings(max_examples=400, database=None)
    @given(
        st.lists(st.sampled_from(["a", " b", "東", "\ufffd", "", "<|end|>", "aa", " ", "\n", "👩‍👩", "e"]), max_size=8),
        st.text(alphabet="ab 東e\n👩", max_size=12),
        st.booleans(),
    )
    def collect(tokens: list[str], text: str, related: bool) -> None:
        cases.append(("".join(tokens) if related else text, tokens))

    collect()
    script = """args[0].map(([text, tokens]) =>
        m.alignTokens(text, tokens.map((text, place) => ({text, place}))).map(([text, token]) => [text, token.place ?? -1]))"""
    whole = 0
    for (text, tokens), pieces in zip(cases, page.module("align.js", script, cases), strict=True):
        assert "".join(piece for piece, _ in pieces) == text
        places = [place for _, place in pieces]
        assert places == sorted(places)
        if all(token and "\ufffd" not in token for token in tokens) and text == "".join(tokens):
            assert [piece for piece, _ in pieces] == tokens
            whole += 1
    assert whole > 20


@pytest.mark.parametrize(
    ("text", "tokens", "pieces"),
    [
        (" sea", ["sea"], [[" sea", 0]]),  # a tokenizer that drops the leading space of a token on its own
        ("東", ["\ufffd", "\ufffd"], [["東", 1]]),
        ("a東b", ["a", "\ufffd", "\ufffd", "b"], [["a", 0], ["東", 2], ["b", 3]]),
        ("the end", ["the", " end", "<|eos|>"], [["the", 0], [" end", 1]]),
        ("", ["<|eos|>"], []),
        ("held", [], [["held", -1]]),
    ],
)
def test_tokens_that_are_not_what_they_show(page: Playground, text: str, tokens: list[str], pieces: list[Any]) -> None:
    script = (
        "m.alignTokens(args[0], args[1].map((text, place) => ({text, place}))).map(([text, one]) => [text, one.place ?? -1])"
    )
    assert page.module("align.js", script, text, tokens) == pieces
