"""Reads numbers off the page."""

from __future__ import annotations

from playwright.sync_api import Page

CELLS = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"


def exact_rows(page: Page) -> list[list[str]]:
    """The table of exact values, in one question to the browser."""
    page.locator("details.exact > summary").click()
    page.wait_for_selector("details.exact tbody tr")
    found: list[list[str]] = page.locator("details.exact tbody tr").evaluate_all(CELLS)
    return found


def as_number(text: str) -> float:
    """A number as the page writes it, with its own minus sign and commas, perhaps as a percentage."""
    plain = text.replace("\u2212", "-").replace(",", "")
    return float(plain.removesuffix(" %")) / 100 if plain.endswith(" %") else float(plain)
