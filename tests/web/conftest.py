"""One browser for all tests; each test has its own server and page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from selenium import webdriver

from app.engine.interface import EngineInterface
from tests.api.support import served
from tests.synthetic import SyntheticEngine
from tests.web.browser import chromium, complaints, requested
from tests.web.playground import Playground

Opener = Callable[..., Playground]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def visit(driver: webdriver.Chrome) -> Iterator[Opener]:
    """visit(engine, **settings) serves the engine and opens the page. Afterwards: nothing was asked of anybody else."""
    with ExitStack() as stack:
        urls: list[str] = []

        def open_page(engine: EngineInterface, **settings: Any) -> Playground:
            stack.callback(engine.close)
            urls.append(stack.enter_context(served(engine, **settings)))
            page = Playground(driver, urls[-1] + "/")
            page.size(1280)
            page.system()
            requested(driver), complaints(driver)
            return page.open(engine.info.name) if "api_keys" not in settings else page

        yield open_page
        driver.get("about:blank")
        others = [url for url in requested(driver) if not url.startswith((*urls, "about:", "data:"))]
        assert not others
        assert not [text for text in complaints(driver) if "Content Security Policy" in text or "Uncaught" in text]


@pytest.fixture
def engine() -> SyntheticEngine:
    return SyntheticEngine()


@pytest.fixture
def page(visit: Opener, engine: SyntheticEngine) -> Playground:
    return visit(engine)
