"""Widths, themes, motion, contrast, keyboard and names: whether everybody can use it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until
from tests.web.conftest import Opener
from tests.web.playground import Playground

LONG = "averyverylongwordthatneverends" * 20 + "\n\n    indented " + "x" * 200
WIDTHS = pytest.mark.parametrize("width", [360, 768, 1280])
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
NARROW = 1024  # below, chat and side take turns

# Elements that stand out to the right of the window, but for those inside a box of their own that scrolls or cuts.
STANDING_OUT = """
    const cut = (one) => {
        for (let up = one.parentElement; up && up !== document.body; up = up.parentElement) {
            if (getComputedStyle(up).overflowX !== "visible") return true;
        }
        return false;
    };
    return [...document.body.querySelectorAll("*")].filter((one) => one.checkVisibility() && !cut(one)
        && (one.getBoundingClientRect().right > innerWidth + 0.5 || one.getBoundingClientRect().left < -0.5)
        && !one.closest(".skip")).map((one) => one.outerHTML.slice(0, 120))"""

# Every text that is seen, with its colour and all grounds below it, nearest first.
TEXTS = """
    const grounds = (one) => {
        const found = [];
        for (let up = one; up; up = up.parentElement) found.push(getComputedStyle(up).backgroundColor);
        return found;
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const one = walker.currentNode.parentElement, style = getComputedStyle(one);
        if (!walker.currentNode.data.trim() || !one.checkVisibility()) continue;
        if (one.closest("svg, .unseen, .skip, noscript, option, :disabled")) continue;
        found.push([walker.currentNode.data.trim().slice(0, 30), style.color, grounds(one), parseFloat(style.fontSize),
            Number(style.fontWeight)]);
    }
    for (const one of document.querySelectorAll("#tree text")) {
        const pill = getComputedStyle(one.parentElement.querySelector("rect"));
        found.push([one.textContent, getComputedStyle(one).fill, [pill.fill === "none" ? "rgba(0, 0, 0, 0)" : pill.fill,
            ...grounds(document.getElementById("tree"))], 12, 400]);
    }
    return found"""


def rgba(text: str) -> tuple[float, ...]:
    """A computed colour: rgb(), rgba() or color(srgb ...)."""
    scale = 1.0 if text.startswith("color(") else 255.0
    numbers = [
        float(part) for part in text.split("(")[1].rstrip(")").replace("srgb", "").replace(",", " ").replace("/", " ").split()
    ]
    return (*(value / scale for value in numbers[:3]), numbers[3] if len(numbers) > 3 else 1.0)


def over(top: tuple[float, ...], below: tuple[float, ...]) -> tuple[float, ...]:
    alpha = top[3]
    return (*(alpha * a + (1 - alpha) * b for a, b in zip(top[:3], below[:3], strict=True)), 1.0)


def luminance(colour: tuple[float, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, grounds: list[str]) -> float:
    """WCAG 2.2: ratio of a text's colour to the grounds below it, nearest first."""
    ground: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    for layer in reversed(grounds):
        ground = over(rgba(layer), ground)
    light, dark = sorted((luminance(over(rgba(colour), ground)), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_contrast_of_known_colours() -> None:
    assert contrast("rgb(0, 0, 0)", ["rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"]) == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", ["rgb(255, 255, 255)"]) == pytest.approx(4.48, abs=0.01)


def fill(page: Playground) -> None:
    """A conversation with all there is to see: an answer, a race, an error."""
    page.set("max_tokens", "60")
    page.ask(LONG)
    page.race()
    page.ask("Race")
    page.set("max_tokens", "0")
    page.ask("Fail")
    assert page.errors()


def views(page: Playground, width: int) -> list[str]:
    return ["chat", "inspect"] if width < NARROW else ["both"]


@WIDTHS
def test_nothing_stands_out_at(page: Playground, width: int) -> None:
    page.size(width)
    for full in (False, True):
        if full:
            fill(page)
        for view in views(page, width):
            if view != "both":
                page.view(view)
            assert page.js("return document.documentElement.scrollWidth") <= width
            assert page.js(STANDING_OUT) == []
            for scrolling in ("#log", ".inspect"):
                assert (
                    page.js("const e = document.querySelector(arguments[0]); return e.scrollWidth - e.clientWidth", scrolling)
                    <= 0
                )
            assert page.one(".chat").is_displayed() == (view != "inspect")
            assert page.one(".inspect").is_displayed() == (view != "chat")
        if width < NARROW:
            page.view("chat")
        assert page.one("#prompt").is_displayed() and page.one("#send").is_displayed()


@pytest.mark.parametrize(("width", "height"), [(1280, 950), (360, 640)])
def test_only_the_chat_scrolls_when_it_is_longer_than_the_window(page: Playground, width: int, height: int) -> None:
    page.size(width, height)
    page.set("max_tokens", "200")
    for _ in range(10):
        page.ask("Line\u2028" * 20)
    page.js("document.getElementById('log').scrollTop = 0")
    log = page.js("const log = document.getElementById('log'); return log.scrollHeight - log.clientHeight")
    assert log > 200
    assert page.js("return document.documentElement.scrollHeight") <= height
    page.js("scrollTo(0, 10000)")
    assert page.js("return scrollY") == 0


@THEMES
@WIDTHS
def test_every_text_can_be_read(page: Playground, width: int, theme: str) -> None:
    """4.5 to 1, and 3 to 1 for large text (WCAG AA)."""
    page.system(prefers_color_scheme=theme)
    page.size(width)
    fill(page)
    for view in views(page, width):
        if view != "both":
            page.view(view)
        found = page.js(TEXTS)
        assert len(found) > 20
        for text, colour, grounds, size, weight in found:
            large = size >= 24 or (size >= 18.66 and weight >= 700)
            assert contrast(colour, grounds) >= (3.0 if large else 4.5), (text, colour, grounds)


def test_dark_and_light_by_the_system_and_by_the_switch(page: Playground) -> None:
    def ground() -> float:
        return luminance(rgba(page.js("return getComputedStyle(document.body).backgroundColor")))

    page.system(prefers_color_scheme="light")
    assert ground() > 0.8
    page.system(prefers_color_scheme="dark")
    assert ground() < 0.05
    page.one("input[value=light]").click()
    assert ground() > 0.8
    page.driver.refresh()
    wait_until(lambda: page.text("#served") == "synthetic")
    assert ground() > 0.8
    assert page.one("input[value=light]").is_selected()
    page.one("input[value=dark]").click()
    page.system(prefers_color_scheme="light")
    assert ground() < 0.05
    page.one("input[value=system]").click()
    assert ground() > 0.8


def test_what_moves_stops_on_request(visit: Opener) -> None:
    engine = SyntheticEngine(manual=True)
    page = visit(engine)
    page.send("Move")
    engine.allow(3)
    wait_until(lambda: bool(page.tokens()))
    animation = "return getComputedStyle(document.querySelector('.running .text'), '::after').animationName"
    page.system(prefers_reduced_motion="no-preference")
    assert page.js(animation) == "blink"
    page.system(prefers_reduced_motion="reduce")
    assert page.js(animation) == "none"
    page.one("#stop").click()


def focused(page: Playground) -> str:
    return str(
        page.js("const one = document.activeElement; return one.id || one.value || one.dataset.view || one.textContent.trim()")
    )


def press(page: Playground, *keys: str) -> None:
    ActionChains(page.driver).send_keys(*keys).perform()


def test_everything_works_by_keyboard(page: Playground, engine: SyntheticEngine) -> None:
    press(page, Keys.TAB)
    assert page.js("return document.activeElement.className") == "skip"
    press(page, Keys.ENTER)
    press(page, "First line")
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    press(page, "second", Keys.ENTER)
    wait_until(lambda: bool(page.answers()) and not page.busy)
    assert page.text(".asked") == "First line\nsecond"
    assert focused(page) == "prompt"
    press(page, Keys.TAB)
    assert focused(page) == "race"
    press(page, " ")
    assert page.one("#race").is_selected()
    order = []
    for _ in range(30):
        press(page, Keys.TAB)
        order.append(focused(page))
        if order[-1] == "key":
            break
    wanted = ["send", "step-back", "tree", "temperature", "top_p", "max_tokens", "seed", "drafter", "max_nodes", "key"]
    assert [name for name in order if name in wanted] == wanted
    outline = page.js("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_the_order_of_focus_is_the_order_of_sight(page: Playground) -> None:
    order = []
    for _ in range(12):
        press(page, Keys.TAB)
        order.append(focused(page))
    assert order[1:3] == ["clear", "system"]
    assert order[3] == "log"
    assert order.index("prompt") < order.index("race") < order.index("send")


@WIDTHS
def test_every_control_has_a_name_and_every_region_too(page: Playground, width: int) -> None:
    page.size(width)
    fill(page)
    for view in views(page, width):
        if view != "both":
            page.view(view)
        nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        named = {"button", "textbox", "slider", "spinbutton", "combobox", "switch", "radio", "link", "image", "region", "log"}
        seen = []
        for node in nodes:
            role = node.get("role", {}).get("value")
            if not node.get("ignored") and role in named:
                seen.append(role)
                assert node.get("name", {}).get("value"), (role, _attributes(page, node))
        assert "button" in seen
        assert ("log" in seen) == (view != "inspect")
    assert (
        page.js("const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.length - new Set(ids).size") == 0
    )
    levels = page.js("return [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert page.js("return document.documentElement.lang") == "en"


def _attributes(page: Playground, node: dict[str, Any]) -> Any:
    return page.driver.execute_cdp_cmd("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})["node"]["attributes"]


def test_a_screen_reader_hears_the_answer_once_and_in_order(page: Playground) -> None:
    answer = page.ask("Speak")
    heard = page.heard
    assert "".join(answer.split()) in "".join(heard.split())
    assert "Answer complete" in heard
    assert page.one("#announce").get_attribute("aria-live") == "polite"
    assert page.one("#log").get_attribute("aria-live") == "off"  # it grows token by token
