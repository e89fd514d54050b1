"""Remove, in a browser: numbers are those of Python, things go and come back, by mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from anyformer.inspection.answer import Query
from anyformer.inspection.capture import Capture
from anyformer.inspection.manifest import start_of
from anyformer.inspection.views import remove
from tests.inspection.browser.conftest import without_faults

MINUS = "\u2212"


def shown(value: float) -> str:
    """A number as the page writes it, with its sign; for sizes from 0.0001 to 1000."""
    digits = f"{abs(value):#.3g}"
    return ("+" if value > 0 else MINUS) + digits


def cells(page: Page) -> list[list[str]]:
    """The exact values of the view."""
    page.locator("details.exact > summary").click()
    rows = page.locator("details.exact tbody tr")
    expect(rows.first).to_be_visible()
    found = [rows.nth(i).locator("th, td").all_inner_texts() for i in range(rows.count())]
    page.locator("details.exact > summary").click()
    return found


def number(text: str) -> float:
    return float(text.replace(MINUS, "-").replace(",", ""))


@pytest.mark.parametrize("kind", ["gpt", "bert", "t5", "vit", "ft"])
def test_numbers_are_those_of_python(
    kind: str, page_of: Callable[..., Page], capture_of: Callable[[str], Capture]
) -> None:
    page = page_of(kind, "remove", site=1, head=2, query=0, key=1)
    facts = remove.answer(capture_of(kind), Query(1, 2, 0, 1)).facts
    rows = cells(page)
    assert len(rows) == len(facts["what_if"])
    for row, each in zip(rows, facts["what_if"], strict=True):
        assert number(row[2]) == pytest.approx(each["change"], rel=2e-3, abs=1e-9)
    assert "Attention shows where information was read, not why." in page.inner_text(".read")
    assert facts["target"]["name"].strip() in page.inner_text(".drawing")


def test_heads_and_tokens_go_and_come_back(
    page_of: Callable[..., Page], capture_of: Callable[[str], Capture], settled: Callable[[Page], None]
) -> None:
    page = page_of("gpt", "remove", site=0, head=1, query=6, key=2)
    page.get_by_role("button", name="Remove this head").click()
    settled(page)
    page.get_by_role("button", name=re.compile("^Remove the token")).click()
    settled(page)
    assert "heads=0.1" in page.url and "tokens=2" in page.url
    asked = Query(0, 1, 6, 2, options={"heads": "0.1", "tokens": "2"})
    gone = remove.answer(capture_of("gpt"), asked).facts["removed"]
    assert f"change of the log-probability {shown(gone['change'])}." in page.inner_text(".drawing")
    assert "--prune-heads 0.1" in page.inner_text(".drawing")
    bars = page.get_by_role("list", name="Answers before and after").get_by_role("listitem")
    assert bars.count() == 2 * len(gone["answers"])
    page.get_by_role("button", name="Put back Layer 0, head 1").click()
    settled(page)
    assert "heads=" not in page.url and "--prune-heads" not in page.inner_text(".drawing")
    page.get_by_role("button", name="Put all back").click()
    settled(page)
    assert "tokens=" not in page.url and not page.get_by_role("list", name="Answers before and after").count()


def test_every_head_in_turn_selects_a_head_by_keyboard(
    page_of: Callable[..., Page], capture_of: Callable[[str], Capture], settled: Callable[[Page], None]
) -> None:
    page = page_of("gpt", "remove", site=0, head=0, query=6, key=2)
    assert page.get_by_role("grid", name="What each head is worth").count() == 0
    page.get_by_label(re.compile("Every head in turn")).check()
    settled(page)
    grid = page.get_by_role("grid", name="What each head is worth")
    expect(grid).to_be_visible()
    change = remove.answer(capture_of("gpt"), Query(options={"every": "1"})).arrays["change"]
    assert shown(float(change[0, 0])) in grid.inner_text()
    grid.focus()
    page.keyboard.press("ArrowDown")
    settled(page)
    expect(page.get_by_role("grid", name="What each head is worth")).to_be_visible()
    assert "site=1" in page.url and "head=0" in page.url
    lines = page.get_by_role("group", name="Heads that speak most for the answer").locator("tbody tr")
    found = [number(lines.nth(i).locator("td").first.inner_text()) for i in range(lines.count())]
    assert found == sorted(found) and len(found) == change.size
    assert found[0] == pytest.approx(float(change.min()), rel=2e-3)
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')") == "What each head is worth"
    assert len(cells(page)) == 6 + change.size  # the selection, and every head


def test_the_answer_at_the_query(page_of: Callable[..., Page], capture_of: Callable[[str], Capture]) -> None:
    page = page_of("gpt", "remove", site=0, head=1, query=2, key=1, of="query")
    facts = remove.answer(capture_of("gpt"), Query(0, 1, 2, 1, options={"of": "query"})).facts
    whole = remove.answer(capture_of("gpt"), Query(0, 1, 2, 1)).facts
    assert number(cells(page)[0][2]) == pytest.approx(facts["what_if"][0]["change"], rel=2e-3)
    assert facts["what_if"][0]["change"] != whole["what_if"][0]["change"]


def test_a_wrong_address_is_told_in_words(page_of: Callable[..., Page], pages: Any) -> None:
    page = page_of("gpt", "remove", heads="0.77")
    assert "head 0.77 is out of range" in page.inner_text("#panel")
    assert any("400" in problem for problem in pages.problems)
    pages.problems.clear()


def test_an_exported_page_holds_every_head(
    pages: Any, capture_of: Callable[[str], Capture], settled: Callable[[Page], None], file_of: Callable[[str], Path]
) -> None:
    capture = capture_of("gpt")
    page = pages.open(f"{file_of('gpt').as_uri()}#view=remove&all=1")
    settled(page)
    grid = page.get_by_role("grid", name="What each head is worth")
    expect(grid).to_be_visible()
    grid.focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    expect(page.get_by_role("grid", name="What each head is worth")).to_be_visible()
    start = start_of(capture)
    facts = remove.answer(capture, Query(0, 1, start.query, start.key)).facts
    assert number(cells(page)[0][2]) == pytest.approx(facts["what_if"][0]["change"], rel=2e-3)
    assert "log-probability" in page.inner_text(".summary")


def test_it_is_without_faults_in_both_themes_and_fits(page_of: Callable[..., Page]) -> None:
    page = page_of("t5", "remove", all=1, heads="0.1", tokens="encoder.2", edges="3.0.1.2")
    without_faults(page)
    expect(page.get_by_role("grid", name="What each head is worth")).to_be_visible()
