"""The API reference at /docs: Swagger UI, from this server alone."""

from __future__ import annotations

from tests.waiting import wait_until
from tests.web.playground import Playground


def test_it_shows_every_route_and_asks_nobody_else(page: Playground) -> None:
    """The page's fixture looks at what was asked of whom, and at complaints of the security policy."""
    page.driver.get(page.url + "docs")
    wait_until(lambda: bool(page.all(".opblock")))
    shown = {one.get_attribute("data-path") for one in page.all(".opblock-summary-path")}
    assert {"/v1/chat/completions", "/v1/models", "/health"} <= shown
    page.one("[data-path='/health']").click()
    wait_until(lambda: bool(page.all(".opblock.is-open")))
    icon = page.js("return document.querySelector('link[rel=icon]').href")
    assert icon == page.url + "docs/icon.svg"
