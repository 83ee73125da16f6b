"""The playground as somebody in front of it sees and uses it."""

from __future__ import annotations

from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.waiting import wait_until

SOURCES = ("retrieval", "copy_logit", "draft_model", "grammar", "target")


class Playground:
    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, model: str = "synthetic") -> Playground:
        self.driver.get(self.url)
        wait_until(lambda: self.text("#served") == model)
        return self

    # -- seeing ----------------------------------------------------------------------------------------------------------

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        found = self.all(selector)
        assert len(found) == 1, (selector, len(found))
        return found[0]

    def text(self, selector: str) -> str:
        """textContent of the first match, white space and all; "" without a match."""
        return str(self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def answers(self) -> list[str]:
        """Text of every run, top to bottom."""
        found = self.js("return [...document.querySelectorAll('.answer .text')].map(one => one.textContent)")
        return [str(text) for text in found]

    def tokens(self, answer: int = 0) -> list[tuple[str, str]]:
        """(text, source) of every coloured piece of a run."""
        script = """return [...document.querySelectorAll('.answer .text')[arguments[0]].querySelectorAll('.token')]
            .map(one => [one.textContent, one.dataset.source])"""
        return [(text, source) for text, source in self.js(script, answer)]

    def figure(self, name: str) -> str:
        return self.text(f".figures [data-figure={name}]")

    def errors(self) -> list[str]:
        return [str(one.text) for one in self.all("[role=alert] .error")]

    @property
    def busy(self) -> bool:
        return bool(self.one("#stop").is_displayed())

    @property
    def heard(self) -> str:
        """What the live region was given."""
        return self.text("#announce")

    # -- doing -----------------------------------------------------------------------------------------------------------

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def module(self, name: str, expression: str, *arguments: Any) -> Any:
        """An expression over a module of the page, `m`, and the `args`."""
        script = f"""const args = [...arguments], done = args.pop();
            import(new URL('web/{name}', document.baseURI)).then(m => done({expression}), error => done(String(error)))"""
        return self.driver.execute_async_script(script, *arguments)

    def write(self, text: str) -> None:
        self.one("#prompt").send_keys(text)

    def send(self, text: str) -> None:
        self.write(text + Keys.ENTER)

    def ask(self, text: str) -> str:
        """Send and wait for the end; returns the last answer."""
        self.send(text)
        wait_until(lambda: not self.busy and not self.all(".running"))
        return self.answers()[-1]

    def set(self, name: str, value: str) -> None:
        """Give a control a value as a user's input does."""
        self.js(
            """const control = document.getElementById(arguments[0]);
            control.value = arguments[1];
            control.dispatchEvent(new Event("input", {bubbles: true}));
            control.dispatchEvent(new Event("change", {bubbles: true}));""",
            name,
            value,
        )

    def race(self) -> None:
        self.one("#race").find_element(By.XPATH, "..").click()

    def view(self, name: str) -> None:
        self.one(f".views [data-view={name}]").click()

    def size(self, width: int, height: int = 800) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def system(self, **features: str) -> None:
        """What the operating system asks for: prefers_color_scheme="dark", prefers_reduced_motion="reduce", ..."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})
