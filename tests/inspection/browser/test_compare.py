"""The view that compares: what the page shows is what Python says, by mouse and by keyboard."""

from __future__ import annotations

import re

import pytest

from anyformer.inspection.capture import look
from anyformer.inspection.server import serve_look
from tests.inspection.browser.conftest import without_faults
from tests.inspection.models import TEXT, bert, gpt

OTHER = "An old cat and a young boy"


@pytest.fixture
def compared(pages, settled):
    """`compared(model, first, second)`: the page of two inputs, and the comparison itself."""
    servers = []

    def opened(model, first, second, address="view=compare", **options):
        capture = look(model, first)
        found = capture.compare(look(model, second))
        servers.append(serve_look(capture))
        page = pages.open(f"{servers[-1].url}#{address}", **options)
        settled(page)
        return page, found

    yield opened
    for server in servers:
        server.close()


def cells(page):
    """The rows of the exact values."""
    page.locator("details.exact summary").click()
    page.locator("details.exact tbody tr").first.wait_for()
    return [row.locator("td, th").all_inner_texts() for row in page.locator("details.exact tbody tr").all()]


def as_number(text):
    return float(text.replace("\u2212", "-").replace(",", ""))


def test_the_difference_on_the_page_is_that_of_python(compared):
    page, found = compared(gpt(), TEXT, OTHER, "view=compare&site=1&head=2")
    difference = found.difference(1, 2)
    shown = [as_number(row[4]) for row in cells(page)]
    assert len(shown) == difference.numel()
    assert shown == pytest.approx(difference.flatten().tolist(), rel=0.01, abs=2e-6)
    assert page.get_by_role("grid", name="Difference of the two maps").count() == 1


def test_a_click_on_the_head_table_selects_the_head(compared, settled):
    page, _ = compared(gpt(), TEXT, OTHER)
    grid = page.get_by_role("grid", name="Distance of every head")
    grid.scroll_into_view_if_needed()
    box = grid.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.75)
    settled(page)
    assert "site=1" in page.url and "head=3" in page.url
    assert "head 3" in page.locator(".summary").inner_text()
    grid.focus()
    page.keyboard.press("ArrowLeft")
    settled(page)
    assert "head=2" in page.url


def test_maps_stand_side_by_side_where_no_token_is_shared(compared, settled):
    page, _ = compared(bert(), "the river", "She prefers")
    assert page.get_by_text("no token in common").count() == 1
    assert page.get_by_role("grid", name=re.compile("First map|Second map")).count() == 2
    other, _ = compared(gpt(), TEXT, OTHER)
    assert other.get_by_role("grid", name="Difference of the two maps").count() == 1  # control
    other.get_by_role("button", name="Side by side").click()
    settled(other)
    assert other.get_by_role("grid", name=re.compile("First map|Second map")).count() == 2


def test_answers_of_both_stand_in_one_table(compared):
    page, found = compared(bert(), TEXT, OTHER)
    names = [
        row.locator("th").inner_text()
        for row in page.get_by_role("group", name="Answers of both").locator("tbody tr").all()
    ]
    assert names == [f'"{row["name"]}"' for row in found.predictions()]


@pytest.mark.parametrize("address", ["view=compare", "view=compare&maps=side"])
def test_it_is_without_faults_in_both_themes_and_fits(compared, address):
    without_faults(compared(gpt(), TEXT, "A very old dog", address)[0])


def test_d_asks_for_a_second_input_then_goes_to_the_view(page_of, settled):
    page = page_of("translator", "map")
    page.keyboard.press("d")
    dialog = page.get_by_role("dialog", name="Compare with another input")
    dialog.get_by_label("A text").fill("two six three eight")
    dialog.get_by_role("button", name="Compare").click()
    page.wait_for_selector("dialog", state="detached")
    settled(page)
    assert page.locator("h2").first.inner_text() == "Compare"
    assert page.locator(".drawing dd").all_inner_texts() == ['"two three six eight"', '"two six three eight"']
    page.locator("[data-focus=view-map]").click()
    settled(page)
    page.keyboard.press("d")  # there is something to compare by now
    settled(page)
    assert page.locator("h2").first.inner_text() == "Compare" and page.locator("dialog").count() == 0
    page.keyboard.press("d")  # and here it adds another
    assert page.get_by_role("dialog", name="Compare with another input").count() == 1


def test_the_view_itself_begins_a_comparison(page_of):
    page = page_of("bert", "compare")
    assert "press d for a second input" in page.locator("main").inner_text()
    page.get_by_role("button", name="Compare with another input").click()
    assert page.get_by_role("dialog", name="Compare with another input").count() == 1


def test_a_second_model_reads_a_new_input_too(pages, settled):
    capture = look(gpt(), TEXT)
    capture.compare(look(gpt(), TEXT))
    with serve_look(capture) as server:
        page = pages.open(f"{server.url}#view=compare")
        settled(page)
        page.get_by_role("button", name="New input").click()
        page.get_by_label("A text").fill("She prefers cats")
        page.get_by_role("dialog").get_by_role("button", name="Look").click()
        page.wait_for_selector("dialog", state="detached")
        settled(page)
        assert page.locator(".drawing dd").all_inner_texts() == ['"She prefers cats"'] * 2
