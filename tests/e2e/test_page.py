"""The built-in page as a browser shows it: a real server, the bundled pair, headless Chromium."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gguf import GGUFReader

pytest.importorskip("selenium")

from selenium.webdriver.common.keys import Keys

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from tests.browser import LONG_S, Browser, browsing
from tests.e2e.test_crowd import written
from tests.e2e.test_serve import ENDLESS, events, settles
from tests.rewrite import rewrite
from tests.served import Server, serving

pytestmark = pytest.mark.native

QUESTION = PROMPTS[2][1]
# as a token of a vocabulary can be: without a space
MARKUP = "<img/src=x/onerror=window.broken=1>"
FIELDS = "input, textarea, button, [role=tab], [role=log], .text"
CONTRAST = """
const of = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((part) => {
  const value = part / 255;
  return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
}).reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
const [ground, text] = [...arguments].map((name) => {
  const [place, what] = name.split(" ");
  return of(getComputedStyle(document.querySelector(place))[what]);
});
return (Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # by measured costs drafting need not pay on a machine that has much else to do
    curve = written(tmp_path_factory.mktemp("curve"), "flat")
    with serving("--cost-curve", curve) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG_S) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, server: Server) -> Browser:
    """The page, opened anew, with its model named."""
    browser.open(server.url)
    browser.until(lambda: "context 4096" in browser.text("#served"), "the model's name")
    return browser


def say(page: Browser, text: str) -> None:
    """Send a message by the keyboard alone."""
    page.fill("#message", text + Keys.ENTER)


def answered(page: Browser, count: int = 1) -> None:
    page.until(
        lambda: (
            len(page.all(".assistant .said:not([aria-busy])")) == count
            and not page.get("#stop").is_enabled()
        ),
        "an answer",
    )


def is_quiet(page: Browser, server: Server) -> None:
    """Nothing went wrong in the page, and nobody else was asked for anything."""
    console, hosts = page.logs()
    assert console == []
    assert hosts <= {server.url.removeprefix("http://"), "data"}


def test_an_answer_comes_live_and_what_was_proposed_is_tinted(
    page: Browser, server: Server, client: httpx.Client
) -> None:
    page.run(
        "window.lengths = new Set(); new MutationObserver(() => window.lengths.add("
        "document.querySelector('#log').textContent.length)).observe("
        "document.querySelector('#log'), {childList: true, characterData: true, subtree: true})"
    )
    say(page, QUESTION)
    answered(page)
    assert page.run("return window.lengths.size") > 3
    asked = [{"role": "user", "content": QUESTION}]
    chunks = events(client, messages=asked, temperature=0, max_tokens=256)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert page.text(".assistant .said") == text
    spans = page.all(".assistant .accepted")
    assert spans
    assert 0 < len(page.text(".assistant .accepted")) < len(text)
    tinted = spans[0].value_of_css_property("background-color")
    page.get("#tint").send_keys(Keys.SPACE)
    assert spans[0].value_of_css_property("background-color") != tinted
    figures = page.get("#chat-figures").text
    assert "tau" in figures
    assert "accept rate" in figures
    assert 1 <= len(page.all("#chat-figures .bars li")) <= 7
    # the next turn goes on from there
    say(page, "And now for 3.")
    answered(page, 2)
    assert " cached" in page.get("#chat-figures").text
    is_quiet(page, server)


def test_spans_are_the_text_and_what_was_accepted(client: httpx.Client) -> None:
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": QUESTION}],
        "draft_max": 7,
        "return_tokens": True,
    }
    for stop in ([], ["result *="]):
        *pieces, closing = events(client, **asked, max_tokens=90, stop=stop)
        for piece in pieces:
            spans = piece["llamaspec"]["spans"]
            said = piece["choices"][0]["delta"].get("content", "")
            assert "".join(span["text"] for span in spans) == said
            accepted = piece["llamaspec"]["accepted"]
            assert accepted > 0 or stop or not any(span["accepted"] for span in spans)
        counts = [piece["llamaspec"]["accepted"] for piece in pieces]
        # an end of the text that was proposed is none of its tokens here
        assert sum(counts) in (closing["timings"]["draft_n_accepted"] - n for n in (0, 1))
    plain = events(client, **{**asked, "draft_max": 0}, max_tokens=20)
    for piece in plain[:-1]:
        assert not any(span["accepted"] for span in piece["llamaspec"]["spans"])


@pytest.mark.parametrize(("temperature", "at_once"), [("0", True), ("0.8", False)])
def test_a_race_ends_with_a_verdict(
    page: Browser, server: Server, temperature: str, at_once: bool
) -> None:
    page.get("#tab-chat").send_keys(Keys.ARROW_RIGHT)
    page.fill("#temperature", temperature)
    page.fill("#max-tokens", "60")
    if at_once:
        page.get("#at-once").send_keys(Keys.SPACE)
    page.fill("#prompt", QUESTION)
    page.get("#start").send_keys(Keys.ENTER)
    page.until(lambda: page.text("#verdict"), "a verdict")
    assert page.text("#verdict").startswith("identical: all "), page.text("#verdict")
    texts = [page.text(f"#lane-{name} .text") for name in ("plain", "drafted")]
    assert texts[0] == texts[1] != ""
    assert page.all("#lane-drafted .accepted")
    assert not page.all("#lane-plain .accepted")
    assert page.all("#lane-drafted .bars li")
    paces = [page.text(f"#lane-{name} .pace") for name in ("plain", "drafted")]
    assert all("tokens/s" in pace for pace in paces)
    page.get("#replay").send_keys(Keys.ENTER)
    page.until(lambda: page.get("#replay").is_enabled(), "the end of the replay")
    assert [page.text(f"#lane-{name} .text") for name in ("plain", "drafted")] == texts
    assert [page.text(f"#lane-{name} .pace") for name in ("plain", "drafted")] == paces
    is_quiet(page, server)


def test_a_difference_is_said_with_its_place(page: Browser) -> None:
    judged = """
    const chunk = (reason) => ({choices: [{finish_reason: reason}], timings: {}});
    [lanes.plain, lanes.drafted].forEach((lane, i) =>
      Object.assign(lane, {ids: arguments[i], last: chunk(arguments[2 + i])}));
    judge(true);
    return document.querySelector("#verdict").textContent;
    """
    assert page.run(judged, [1, 2, 3], [1, 5, 3], "stop", "stop") == "different at token 2 of 3"
    assert page.run(judged, [1, 2], [1, 2, 3], "stop", "length") == "different at token 3 of 3"
    assert page.run(judged, [1, 2], [1, 2], "stop", "length").startswith("different at the end")
    assert page.run(judged, [1, 2], [1, 2], "stop", "stop").startswith("identical")


def test_an_answer_is_stopped(page: Browser, server: Server, client: httpx.Client) -> None:
    page.fill("#max-tokens", "")
    say(page, ENDLESS[0]["content"])
    page.until(lambda: page.text(".assistant .said"), "the beginning of an answer")
    page.get("#message").send_keys(Keys.ESCAPE)
    answered(page)
    assert page.text(".assistant small") == "Stopped."
    settles(client, "sequences_active", 0)
    page.fill("#max-tokens", "5")
    say(page, QUESTION)
    answered(page, 2)
    assert page.text(".assistant small").startswith("Stopped.Cut")
    page.get("#clear").click()
    assert page.text("#log") == ""
    is_quiet(page, server)


def test_what_is_refused_is_said_in_words(page: Browser) -> None:
    long = "word " * 5000
    page.run("document.querySelector('#message').value = arguments[0]", long)
    page.get("#message").send_keys(Keys.ENTER)
    page.until(lambda: page.text("#chat-error"), "an error")
    assert "no longer fits" in page.text("#chat-error")
    # nothing is lost, and nothing is left of it in the conversation
    assert page.run("return document.querySelector('#message').value") == long
    assert page.text("#log") == ""
    page.fill("#max-tokens", "0")
    page.run("document.querySelector('#message').value = 'hello'")
    page.get("#send").click()
    assert page.text("#log") == ""
    with serving("-c", "256") as other:
        page.open(other.url)
        assert other.stop() == 0
    say(page, "hello")
    page.until(lambda: page.text("#chat-error"), "an error")
    assert "cannot be reached" in page.text("#chat-error")


def test_words_are_never_markup(browser: Browser, tmp_path: Path) -> None:
    key = "tokenizer.ggml.tokens"
    tokens: list[str] = GGUFReader(demo.target_path()).fields[key].contents()
    tokens[tokens.index("Sure")] = MARKUP
    target = rewrite(demo.target_path(), tmp_path / "target.gguf", {key: tokens})
    with serving("-m", target, "-c", "256", "--name", MARKUP) as server:
        browser.open(server.url)
        browser.until(lambda: MARKUP in browser.text("#served"), "the model's name")
        say(browser, QUESTION)
        answered(browser)
        assert browser.text(".assistant .said").startswith(MARKUP)
        browser.fill("#system", MARKUP)
        say(browser, MARKUP + QUESTION)
        answered(browser, 2)
        assert browser.text(".user .said").endswith(MARKUP + QUESTION)
        assert browser.run("return window.broken ?? document.images.length") == 0
        # there is no draft either, which the page says
        assert "no draft" in browser.text("#served")
        is_quiet(browser, server)
        assert browser.run(
            "try { document.body.innerHTML = arguments[0] } catch (e) { return e.name }", MARKUP
        )
    browser.logs()


def test_a_server_that_wants_a_key(browser: Browser) -> None:
    with serving("-c", "256", LLAMASPEC_API_KEY="s3cret") as server:
        assert httpx.get(server.url).json()["error"]["code"] == "invalid_api_key"
        browser.open(server.url)
        browser.until(lambda: "wants an API key" in browser.text("#served"), "the request")
        browser.fill("#key", "wrong" + Keys.TAB)
        browser.until(lambda: "missing or wrong" in browser.text("#served"), "the refusal")
        browser.fill("#key", "s3cret" + Keys.TAB)
        browser.until(lambda: "context 256" in browser.text("#served"), "the model's name")
        browser.fill("#max-tokens", "5")
        say(browser, QUESTION)
        answered(browser)
        assert browser.text(".assistant .said")
        kept = "return [sessionStorage.length, localStorage.length, document.cookie, location.href]"
        assert browser.run(kept) == [1, 0, "", f"{server.url}/"]
        browser.driver.refresh()
        browser.until(lambda: "context 256" in browser.text("#served"), "the kept key")
        assert httpx.get(server.url, auth=("", "s3cret")).status_code == 200


def test_everything_has_a_name_and_fits_a_small_screen(page: Browser, server: Server) -> None:
    for field in page.all(FIELDS):
        if field.get_attribute("id") != "key":
            hidden = page.run("return arguments[0].closest('[hidden]') !== null", field)
            assert hidden or field.accessible_name, field.get_attribute("outerHTML")
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        for tab in ("chat", "race"):
            page.get(f"#tab-{tab}").click()
            assert page.run("return document.documentElement.scrollWidth") <= 360
            for field in page.all(FIELDS):
                assert field.rect["x"] + field.rect["width"] <= 360
                hidden = page.run("return arguments[0].closest('[hidden]') !== null", field)
                assert hidden or field.accessible_name, field.get_attribute("outerHTML")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    is_quiet(page, server)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_legible(page: Browser, scheme: str) -> None:
    value = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": value})
    try:
        ground = page.get("body").value_of_css_property("background-color")
        assert (ground == "rgba(253, 253, 252, 1)") == (scheme == "light")
        for pair in (
            ("body backgroundColor", "body color"),
            ("body backgroundColor", "#served color"),
            ("body backgroundColor", ".error color"),
            (".accepted backgroundColor", "body color"),
            (".accepted backgroundColor", ".note color"),
            ("#send backgroundColor", "#send color"),
        ):
            assert page.run(CONTRAST, *pair) >= 4.5, pair
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
