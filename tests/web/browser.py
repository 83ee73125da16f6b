"""A headless Chromium that can reach only this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",  # nothing to wait for; what moves is looked at where a test asks for it
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the network is cut off
)


def command(name: str) -> str:
    """Where a program is. Raises RuntimeError that says how to get it."""
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is not installed: run tests/system_packages.sh chromium chromium-driver")
    return path


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """profile: an empty directory of its own."""
    options = Options()
    options.binary_location = command("chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(command("chromedriver")))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def requested(driver: webdriver.Chrome) -> list[str]:
    """Addresses asked for since the last call, whatever came of them."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What the console holds since the last call: errors of scripts, breaches of the policy, failed requests."""
    return [str(entry["message"]) for entry in driver.get_log("browser")]
