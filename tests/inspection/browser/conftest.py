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
from playwright.sync_api import Browser, Page, sync_playwright

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


Window = tuple[str, int, int]  # theme, width, height


class KeptPages:
    """Pages that tests of one theme and size take one after the other, emptied in between: a new one is a process.

    Each is in a context, that is in a window, of its own: of two pages in a window the browser draws the one behind
    once a second, and every click on it waits for that.
    """

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.problems: list[str] = []
        self.idle: dict[Window, list[Page]] = {}

    def take(self, window: Window, options: dict[str, Any]) -> Page:
        """A page; one with further options is a new one."""
        idle = self.idle.setdefault(window, [])
        if not options and idle:
            return idle.pop()
        theme, width, height = window
        size = {"width": width, "height": height}
        context = self.browser.new_context(viewport=size, color_scheme=theme, **options)  # type: ignore[arg-type]
        return self.watched(context.new_page())

    def watched(self, page: Page) -> Page:
        tell = self.problems.append
        page.on("request", lambda request: self.check_loopback(request.url))
        page.on("console", lambda message: tell(message.text) if message.type == "error" else None)
        page.on("response", lambda answer: tell(f"{answer.status} {answer.url}") if not answer.ok else None)
        page.on("pageerror", lambda error: tell(str(error)))
        return page

    def check_loopback(self, url: str) -> None:
        """The browser itself resolves no other name (`browser`); that somebody tried is a fault too."""
        where = urlsplit(url)
        if where.scheme not in ("data", "blob", "file", "about") and where.hostname != "127.0.0.1":
            self.problems.append(f"a request to {url}")

    def give_back(self, page: Page, window: Window) -> None:
        """As new: nothing stored, in its own theme and size, on no page."""
        theme, width, height = window
        page.evaluate("() => { try { localStorage.clear(); } catch { /* a file has none */ } }")
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": height})
        page.goto("about:blank")
        self.idle[window].append(page)

    def close(self) -> None:
        for page in (page for pages in self.idle.values() for page in pages):
            page.context.close()


class OpenedPages:
    """Pages of one test, and what went wrong in them."""

    def __init__(self, kept: KeptPages) -> None:
        self.kept, self.problems = kept, kept.problems
        self.lent: list[tuple[Page, Window | None]] = []

    def open(self, url: str, *, theme: str = "light", width: int = 1280, height: int = 900, **options: Any) -> Page:
        window = (theme, width, height)
        page = self.kept.take(window, options)
        self.lent.append((page, None if options else window))
        page.goto(url)
        return page

    def close(self, *, as_new: bool) -> None:
        for page, window in self.lent:
            if window is None or page.is_closed() or not as_new:
                page.context.close()
            else:
                self.kept.give_back(page, window)


@pytest.fixture(scope="package")
def kept_pages(browser: Browser) -> Iterator[KeptPages]:
    kept = KeptPages(browser)
    yield kept
    kept.close()


@pytest.fixture
def pages(kept_pages: KeptPages) -> Iterator[OpenedPages]:
    """Opens any address; `pages.problems` are the errors so far: a test that means one clears it."""
    kept_pages.problems.clear()
    opened = OpenedPages(kept_pages)
    yield opened
    found = list(opened.problems)
    opened.close(as_new=not found)
    assert not found, found


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


def without_faults(page: Page) -> None:
    """Axe finds nothing, in light and in dark; and nothing is wider than the page, nor than a telephone."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        redrawn(page)
        found = AXE.run(page, options={"resultTypes": ["violations"]})
        assert not found.response["violations"], found.generate_report()
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        redrawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def redrawn(page: Page) -> None:
    """Until the page has heard of another theme or size, and has drawn itself anew."""
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
    )
    settled(page)


@pytest.fixture(name="settled")
def settled_fixture() -> Callable[[Page], None]:
    """`settled(page)`: wait until the page has drawn what is selected, after a click or a key."""
    return settled
