"""A headless Chromium, where Debian's packages chromium and chromium-driver are installed."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

LONG_S = 120
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *(
        "--disable-sync",
        "--disable-extensions",
        "--disable-default-apps",
        "--metrics-recording-only",
    ),
    "--window-size=1280,1000",
)


class Browser:
    """One tab, and what a test asks of it."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page; what is noted of the one before is forgotten."""
        self.logs()
        self.driver.get(url)

    def get(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def fill(self, selector: str, text: str) -> None:
        """Type into an emptied field."""
        field = self.get(selector)
        field.clear()
        field.send_keys(text)

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """All text below elements, as it is in the page."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        return "".join(self.run(script, selector))

    def until(self, found: Callable[[], object], what: str) -> None:
        """Wait for something; `what` says for what."""
        WebDriverWait(self.driver, LONG_S, 0.1).until(lambda _: found(), what)

    def logs(self) -> tuple[list[str], set[str]]:
        """What the console said since the last call, and the hosts that were asked."""
        console = [entry["message"] for entry in self._log("browser")]
        hosts = set()
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                hosts |= {url.netloc or url.scheme}
        return console, hosts

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.execute("getLog", {"type": kind})["value"]
        return found


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in `folder`; skips where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in (*_ARGUMENTS, f"--user-data-dir={folder}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = Chrome(options, ChromeService(driver))
    try:
        started.set_page_load_timeout(LONG_S)
        yield Browser(started)
    finally:
        started.quit()
