"""A part of a map and of the heads: by keyboard, wheel, two fingers and dragging, kept in the address."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
import torch

from anyformer.inspection.capture import look
from anyformer.inspection.server import serve_look
from tests.inspection import models
from tests.inspection.browser.conftest import without_faults

FIELD = "[role=grid][data-focus=heatmap]"


def selection(page):
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).fragment).items()}


def shown(page):
    """Rows, columns and the darkest cell of what is drawn."""
    return page.evaluate("""() => { const c = document.querySelector('[data-focus=heatmap] canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const sums = Array.from({length: c.width * c.height}, (_, i) => d[4 * i] + d[4 * i + 1] + d[4 * i + 2]);
        return [c.height, c.width, sums.indexOf(Math.min(...sums))]; }""")


@pytest.fixture(scope="module")
def forty():
    """A head over forty tokens."""
    ids = torch.randint(0, models.words().size, (1, 40), generator=torch.Generator().manual_seed(0))
    model = models.gpt().model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    capture = look(model, (ids,), name="gpt")
    with serve_look(capture) as server:
        yield server, capture


@pytest.fixture
def opened(forty, pages, settled):
    def open_page(address="view=map&site=1&head=1&query=20&key=10", **options):
        page = pages.open(f"{forty[0].url}#{address}", **options)
        settled(page)
        return page

    return open_page


def exact_darkest(capture, top, left, rows, columns):
    part = capture.weights(1)[1, top : top + rows, left : left + columns]
    return int(part.argmax())


def test_keys_zoom_about_the_cell_and_the_window_is_in_the_address(opened, forty, settled):
    page = opened()
    assert shown(page)[:2] == [40, 40] and "zoom" not in selection(page)
    page.focus(FIELD)
    for side in (20, 10, 8, 8):
        page.keyboard.press("+")
        settled(page)
        assert selection(page)["zoom"] == str(side) and shown(page)[:2] == [side, side]
        assert page.evaluate("document.activeElement.dataset.focus") == "heatmap"
    top, left = int(selection(page)["top"]), int(selection(page)["left"])
    assert top <= 20 < top + 8 and left <= 10 < left + 8  # the selected cell is still seen
    assert shown(page)[2] == exact_darkest(forty[1], top, left, 8, 8)
    assert f"Queries {top} to {top + 7} and keys {left} to {left + 7} of 40 by 40" in page.inner_text("#panel")
    again = opened(urlsplit(page.url).fragment)  # a link leads to the same window
    assert shown(again) == shown(page)
    page.focus(FIELD)
    page.keyboard.press("-")
    settled(page)
    assert selection(page)["zoom"] == "16"
    page.keyboard.press("0")
    settled(page)
    assert not {"zoom", "top", "left"} & set(selection(page)) and shown(page)[:2] == [40, 40]


def test_the_window_follows_the_arrow_keys_beyond_its_edge(opened, forty, settled):
    page = opened("view=map&site=1&head=1&query=20&key=10&zoom=8&top=13&left=8")
    page.focus(FIELD)
    page.keyboard.press("ArrowDown")
    settled(page)
    assert (selection(page)["query"], selection(page)["top"]) == ("21", "14")
    exact = float(forty[1].weights(1)[1, 21, 10])
    assert page.text_content("#heatmap-cell").endswith(f"weight {exact:.3g}".replace("e-0", "e\u2212"))
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
        settled(page)
    assert (selection(page)["key"], selection(page)["left"]) == ("7", "7")


def test_the_wheel_zooms_a_focused_map_and_scrolls_the_page_otherwise(opened, settled):
    page = opened()
    page.locator(FIELD).hover(position={"x": 8, "y": 8})
    page.mouse.wheel(0, -120)
    page.wait_for_timeout(100)
    assert "zoom" not in selection(page)  # control: not focused, the page scrolls
    page.focus(FIELD)
    box = page.locator(FIELD).bounding_box()
    w, t = box["width"] / 40, box["height"] / 40
    page.mouse.move(box["x"] + 4.5 * w, box["y"] + 30.5 * t)
    page.mouse.wheel(0, -120)
    page.wait_for_timeout(200)
    settled(page)
    chosen = selection(page)
    assert chosen["zoom"] == "20"
    assert abs(int(chosen["top"]) - 15) <= 1 and abs(int(chosen["left"]) - 2) <= 1  # what was under the pointer stays
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(200)
    settled(page)
    assert "zoom" not in selection(page)


def test_two_fingers_zoom(opened, settled):
    page = opened(has_touch=True)
    box = page.locator(FIELD).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    hand = page.context.new_cdp_session(page)

    def touch(kind, apart):
        points = [{"x": x - apart, "y": y}, {"x": x + apart, "y": y}] if apart else []
        hand.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 20)
    for apart in (24, 30, 36):
        touch("touchMove", apart)
    page.wait_for_timeout(200)
    settled(page)
    assert selection(page)["zoom"] == "20"


def test_a_long_map_zooms_within_its_window(pages, settled):
    ids = torch.randint(0, models.words().size, (1, 600), generator=torch.Generator().manual_seed(1))
    capture = look(models.gpt().model, (ids,), name="gpt")
    with serve_look(capture) as server:
        page = pages.open(f"{server.url}#view=map&site=1&head=1&query=500&key=450&zoom=16")
        settled(page)
        assert shown(page)[:2] == [16, 16]
        exact = float(capture.weights(1)[1, 500, 450])
        assert f"weight {exact:.3g}".replace("e-0", "e\u2212") in page.inner_text(".readout")
        page.get_by_role("button", name="Earlier queries").click()
        settled(page)
        assert selection(page)["query"] == "372" and "Queries 364 to 379" in page.inner_text("#panel")


def test_buttons_zoom_too_and_it_is_without_faults(opened, settled):
    page = opened()
    page.get_by_role("button", name="Zoom: nearer").click()
    settled(page)
    assert selection(page)["zoom"] == "20" and page.get_by_role("button", name="Zoom: all").is_enabled()
    without_faults(page)
    page.get_by_role("button", name="Zoom: all").click()
    settled(page)
    assert "zoom" not in selection(page) and page.get_by_role("button", name="Zoom: all").is_disabled()


def heads_within(capture, low, high):
    return {f"thumb-{row['site']}-{row['head']}" for row in capture.heads() if low <= row["entropy"] < high}


def thumbs(page):
    return {each.get_attribute("data-focus") for each in page.locator(".thumb").all()}


def test_heads_are_chosen_by_a_part_of_their_histogram(opened, forty, settled):
    page = opened("view=heads&sort=entropy")
    values = sorted(row["entropy"] for row in forty[1].heads())
    low, step = values[0], (values[-1] - values[0]) / 24
    assert len(thumbs(page)) == len(values) == 8
    box = page.locator("svg.brush").bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.up()
    settled(page)
    assert selection(page)["brush"] == "0-12"
    kept = heads_within(forty[1], low - 1, low + 12 * step)
    assert thumbs(page) == kept and 0 < len(kept) < 8
    assert f"{len(kept)} of 8 heads" in page.inner_text(".drawing")
    page.focus("[data-focus=brush-from]")
    page.keyboard.press("ArrowRight")  # by keyboard: the low end moves by one bar
    settled(page)
    assert selection(page)["brush"] == "1-12"
    assert thumbs(page) == heads_within(forty[1], low + step, low + 12 * step)
    assert page.evaluate("document.activeElement.dataset.focus") == "brush-from"
    without_faults(page)
    page.locator("svg.brush").click(position={"x": 5, "y": 20})  # a click alone shows all again
    settled(page)
    assert "brush" not in selection(page) and len(thumbs(page)) == 8
