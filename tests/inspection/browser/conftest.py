"""A real server on loopback and one browser for all tests of the page.

`page_of("gpt", view="map", site=1)` opens the page of a small model. A request to any other machine, an error on the
console or an exception in the page fails the test at its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from anyformer.inspection.capture import Capture, look
from anyformer.inspection.server import LookServer, serve_look
from tests.inspection import models

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert path, "no browser: run make chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--font-render-hinting=none"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def capture_of() -> Callable[[str], Capture]:
    """The capture of a kind of small model, made once."""
    made: dict[str, Capture] = {}

    def capture(kind: str) -> Capture:
        if kind not in made:
            made[kind] = look(models.predictor(kind), models.inputs(kind), name=kind)
        return made[kind]

    return capture


@pytest.fixture(scope="module")
def server_of(capture_of: Callable[[str], Capture]) -> Iterator[Callable[[str], LookServer]]:
    """The server of a kind of small model."""
    running: dict[str, LookServer] = {}

    def server(kind: str) -> LookServer:
        if kind not in running:
            running[kind] = serve_look(capture_of(kind))
        return running[kind]

    yield server
    for one in running.values():
        one.close()


class OpenedPages:
    """Pages of one test, and what went wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self.browser, self.problems = browser, []  # type: ignore[var-annotated]
        self.contexts: list[Any] = []

    def open(self, url: str, *, theme: str = "light", width: int = 1280, height: int = 900, **options: Any) -> Page:
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            **options,  # type: ignore[arg-type]
        )
        self.contexts.append(context)
        context.route("**/*", self.only_loopback)
        page = context.new_page()
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on(
            "response", lambda answer: self.problems.append(f"{answer.status} {answer.url}") if not answer.ok else None
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.goto(url)
        return page

    def only_loopback(self, route: Route) -> None:
        where = urlsplit(route.request.url)
        if where.scheme in ("data", "blob", "file", "about") or where.hostname == "127.0.0.1":
            route.continue_()
        else:
            self.problems.append(f"a request to {route.request.url}")
            route.abort()


@pytest.fixture
def pages(browser: Browser) -> Iterator[OpenedPages]:
    """Opens any address; `pages.problems` are the errors so far: a test that means one clears it."""
    opened = OpenedPages(browser)
    yield opened
    for context in opened.contexts:
        context.close()
    assert not opened.problems, opened.problems


@pytest.fixture
def page_of(server_of: Callable[[str], LookServer], pages: OpenedPages) -> Callable[..., Page]:
    """The page, drawn: `page_of(kind, view="map", theme="dark", width=360, head=1)`; more words are its selection."""

    def opened(kind: str, view: str = "map", *, theme: str = "light", width: int = 1280, **selection: Any) -> Page:
        words = urlencode({"view": view} | selection)
        page = pages.open(f"{server_of(kind).url}#{words}", theme=theme, width=width)
        settled(page)
        return page

    return opened


def settled(page: Page) -> None:
    """Until the page has drawn what is selected."""
    page.wait_for_selector("html[data-ready=yes][data-busy=no]", state="attached")  # a function would need eval


@pytest.fixture(name="settled")
def settled_fixture() -> Callable[[Page], None]:
    """`settled(page)`: wait until the page has drawn what is selected, after a click or a key."""
    return settled
