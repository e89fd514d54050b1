"""The page at /look of a model that is being served: a real server process, opened as a person opens it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inspection import models
from tests.serving.server import KEY, Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = models.gpt().save(tmp_path_factory.mktemp("served") / "small")
    with serving(folder, env={"ANYFORMER_API_KEY": KEY}) as running:
        yield running


def test_a_served_model_opens_on_its_map_and_reads_a_new_text(server, pages, settled):
    """The browser asks for the key as for a password, and sends it with everything that the page loads."""
    page = pages.open(f"{server.url}/look", http_credentials={"username": "me", "password": KEY})
    settled(page)
    grid = page.locator("[role=grid]").first
    assert grid.is_visible() and page.locator("h1.brand").inner_text().startswith("small")
    page.wait_for_selector(".trust.good")
    grid.focus()
    page.keyboard.press("ArrowDown")
    settled(page)
    page.locator("[data-focus=view-heads]").click()
    settled(page)
    assert page.locator("h2").first.inner_text() == "Heads"
    page.locator("[data-focus=new]").click()
    page.locator("dialog textarea").fill("She prefers cats")
    page.locator("dialog .primary").click()
    page.wait_for_selector("dialog", state="detached")
    settled(page)
    assert page.locator("dd.input").first.inner_text() == "She prefers cats"
    page.keyboard.press("d")
    page.locator("dialog textarea").fill("She prefers dogs")
    page.locator("dialog .primary").click()
    page.wait_for_selector("dialog", state="detached")
    settled(page)
    assert page.locator(".drawing dd").all_inner_texts() == ['"She prefers cats"', '"She prefers dogs"']


def test_without_the_password_nothing_opens(server, pages):
    page = pages.open(f"{server.url}/look", http_credentials={"username": "me", "password": "something else"})
    assert page.locator("[role=grid]").count() == 0 and "invalid_api_key" in page.content()
    assert pages.problems and all("401" in problem for problem in pages.problems)
    pages.problems.clear()
