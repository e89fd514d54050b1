"""A real server on loopback and one browser for all tests of the page; captures, servers and files are made once.

`page_of("gpt", view="map", site=1)` opens the page of a small model. A request to any other machine, an error on the
console or an exception in the page fails the test at its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from anyformer.inspection.capture import Capture, look
from anyformer.inspection.server import LookServer, serve_look
from tests.inspection import models

AXE = Axe()
# No name is resolved but the loopback's: nothing leaves this machine, whatever a page tries.
ARGS = ["--no-sandbox", "--font-render-hinting=none", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert path, "no browser: run make chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def capture_of() -> Callable[[str], Capture]:
    """The capture of a kind of small model, made once."""
    made: dict[str, Capture] = {}

    def capture(kind: str) -> Capture:
        if kind not in made:
            made[kind] = look(models.predictor(kind), models.inputs(kind), name=kind)
        return made[kind]

    return capture


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def file_of(capture_of: Callable[[str], Capture], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The exported page of a kind of small model, written once."""
    folder, written = tmp_path_factory.mktemp("pages"), dict[str, Path]()

    def path(kind: str) -> Path:
        if kind not in written:
            written[kind] = folder / f"{kind}.html"
            capture_of(kind).html(written[kind])
        return written[kind]

    return path


class OpenedPages:
    """Pages of one test, and what went wrong in them. Tests of one theme and width share a context: it is emptied."""

    def __init__(self, browser: Browser, kept: dict[tuple[str, int, int], BrowserContext]) -> None:
        self.browser, self.kept = browser, kept
        self.problems: list[str] = []
        self.pages: list[Page] = []
        self.contexts: list[BrowserContext] = []  # of this test alone

    def open(self, url: str, *, theme: str = "light", width: int = 1280, height: int = 900, **options: Any) -> Page:
        page = self.context(theme, width, height, options).new_page()
        self.pages.append(page)
        page.on("request", lambda request: self.check_loopback(request.url))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on(
            "response", lambda answer: self.problems.append(f"{answer.status} {answer.url}") if not answer.ok else None
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.goto(url)
        return page

    def context(self, theme: str, width: int, height: int, options: dict[str, Any]) -> BrowserContext:
        key = (theme, width, height)
        if not options and key in self.kept:
            return self.kept[key]
        size = {"width": width, "height": height}
        made = self.browser.new_context(viewport=size, color_scheme=theme, **options)  # type: ignore[arg-type]
        if options:
            self.contexts.append(made)
        else:
            self.kept[key] = made
        return made

    def check_loopback(self, url: str) -> None:
        """The browser itself resolves no other name (`browser`); that somebody tried is a fault too."""
        where = urlsplit(url)
        if where.scheme not in ("data", "blob", "file", "about") and where.hostname != "127.0.0.1":
            self.problems.append(f"a request to {url}")

    def close(self) -> None:
        for page in self.pages:
            if not page.is_closed():
                page.evaluate("() => { try { localStorage.clear(); } catch { /* a file has none */ } }")
                page.close()
        for context in self.contexts:
            context.close()


@pytest.fixture(scope="package")
def kept_contexts(browser: Browser) -> Iterator[dict[tuple[str, int, int], BrowserContext]]:
    kept: dict[tuple[str, int, int], BrowserContext] = {}
    yield kept
    for context in kept.values():
        context.close()


@pytest.fixture
def pages(browser: Browser, kept_contexts: dict[tuple[str, int, int], BrowserContext]) -> Iterator[OpenedPages]:
    """Opens any address; `pages.problems` are the errors so far: a test that means one clears it."""
    opened = OpenedPages(browser, kept_contexts)
    yield opened
    opened.close()
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


def without_faults(page: Page, *, narrow: bool = True) -> None:
    """Axe finds nothing, in light and in dark; and nothing is wider than the page, nor than a telephone."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # the page draws itself anew
        settled(page)
        found = AXE.run(page, options={"resultTypes": ["violations"]})
        assert not found.response["violations"], found.generate_report()
    for width in (1280, 360) if narrow else (1280,):
        page.set_viewport_size({"width": width, "height": 900})
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.fixture(name="settled")
def settled_fixture() -> Callable[[Page], None]:
    """`settled(page)`: wait until the page has drawn what is selected, after a click or a key."""
    return settled
