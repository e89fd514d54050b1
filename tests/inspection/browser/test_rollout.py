"""The page of the rollout in a browser, for images, texts, tables and pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from anyformer.inspection.relevance import relevance


def values(page: Page) -> list[list[str]]:
    """The table of exact values."""
    if not page.locator("details.exact[open]").count():
        page.locator("details.exact > summary").click()
    page.wait_for_selector("details.exact tbody tr")
    return [row.locator("td").all_inner_texts() for row in page.locator("details.exact tbody tr").all()]


def column(page: Page, at: int) -> list[float]:
    return [float(row[at].replace("\u2212", "-")) for row in values(page)]


def move(page: Page, name: str, value: str, settled: Any) -> None:
    page.locator(f"[data-focus=option-{name}]").fill(value)
    settled(page)


def test_the_image_is_rolled_out(page_of: Callable[..., Page], capture_of: Any, settled: Any) -> None:
    page, capture = page_of("vit", "rollout"), capture_of("vit")
    assert page.locator("canvas.map").count() == 2  # the rollout, and gradient times attention
    assert column(page, 2) == pytest.approx(capture.rollout()[0].tolist(), rel=1e-4)
    assert column(page, 3) == pytest.approx(relevance(capture)[0].tolist(), rel=1e-3)
    move(page, "depth", "1", settled)
    assert column(page, 2) == pytest.approx(capture.rollout(depth=1)[0].tolist(), rel=1e-4)
    move(page, "residual", "0", settled)
    assert column(page, 2) == pytest.approx(capture.rollout(depth=1, residual=0)[0].tolist(), rel=1e-4)
    assert "the product of the maps alone" in page.inner_text(".drawing")
    page.get_by_role("button", name="Max").click()
    settled(page)
    move(page, "discard", "0.5", settled)
    expected = capture.rollout(depth=1, residual=0, fuse="max", discard=0.5)[0]
    assert column(page, 2) == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_patch_is_the_target(page_of: Callable[..., Page], capture_of: Any, settled: Any) -> None:
    page = page_of("vit", "rollout")
    box = page.locator("[data-focus=rollout]").bounding_box()
    assert box is not None
    page.locator("[data-focus=rollout]").click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.9})
    settled(page)
    assert "query=12" in page.url
    assert column(page, 2) == pytest.approx(capture_of("vit").rollout()[12].tolist(), rel=1e-4)
    page.locator("[data-focus=rollout]").press("ArrowLeft")
    settled(page)
    assert "query=11" in page.url


def test_another_answer_has_another_relevance(page_of: Callable[..., Page], capture_of: Any, settled: Any) -> None:
    page, capture = page_of("vit", "rollout"), capture_of("vit")
    before = column(page, 3)
    last = capture.prediction()[-1]
    page.locator("[data-focus=option-raised]").select_option(str(last.id))
    settled(page)
    assert last.name in page.inner_text("section[aria-label='Gradient × attention']")
    assert column(page, 3) == pytest.approx(relevance(capture, answer=last.id)[0].tolist(), rel=1e-3)
    assert column(page, 3) != pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("kind", ["gpt", "bert", "ft"])
def test_texts_and_tables_have_bars(kind: str, page_of: Callable[..., Page], capture_of: Any, settled: Any) -> None:
    page, capture = page_of(kind, "rollout"), capture_of(kind)
    tokens = len(next(iter(capture.axes.values())))
    assert page.locator("[aria-label='Rollout by token'] .row").count() == tokens
    page.locator("[aria-label='Token to trace'] button").nth(1).click()
    settled(page)
    assert "query=1" in page.url
    assert column(page, 2) == pytest.approx(capture.rollout()[1].tolist(), rel=1e-4, abs=1e-6)


def test_a_pair_is_traced_from_what_it_wrote_to_what_it_read(
    page_of: Callable[..., Page], capture_of: Any, settled: Any
) -> None:
    page, capture = page_of("t5", "rollout"), capture_of("t5")
    assert column(page, 2) == pytest.approx(capture.rollout()[-1].tolist(), rel=1e-4)
    page.locator("[aria-label='Token to trace'] button").nth(2).click()
    settled(page)
    assert "trace=2" in page.url
    assert column(page, 2) == pytest.approx(capture.rollout()[2].tolist(), rel=1e-4)
    page.locator("[data-focus=option-side]").select_option("encoder")
    settled(page)
    assert column(page, 2) == pytest.approx(capture.rollout(stack="encoder")[2].tolist(), rel=1e-4)
    assert page.locator("section[aria-label='Gradient × attention'] .bars").count() == 1
