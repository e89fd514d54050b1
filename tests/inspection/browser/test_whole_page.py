"""What holds for the whole page: every view is exported, every control reached by keyboard, every dialog readable."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from anyformer.inspection.capture import look
from anyformer.inspection.server import serve_look
from anyformer.inspection.views import NAMES, views
from tests.inspection import models
from tests.inspection.browser.reading import as_number, exact_rows
from tests.inspection.browser.test_views import violations

EXPORTED = {
    "gpt": ("steps", "map", "heads", "trace", "lens", "positions", "flow", "remove"),
    "both": ("compare",),
    "t5": ("cross",), "vit": ("image", "rollout", "filters"), "ft": ("table", "training"),
}  # fmt: skip


def test_every_view_is_in_the_list():
    assert sorted(view for names in EXPORTED.values() for view in names) == sorted(NAMES)


def saved(page, word):
    with page.expect_download() as waiting:
        page.get_by_role("button", name=f"Export as {word}").click()
    return waiting.value.path().read_bytes()


SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"svg", "title", "g", "rect", "text", "tspan", "image", "path", "line", "circle", "polyline", "polygon"}
# What stands in the panel, piece by piece in its order, without the names of what one uses.
WRITTEN = """panel => [...panel.querySelectorAll('.token, .name, .figure, .thumb, .soft, h3, td, th, math, svg text')]
    .filter((each) => each.checkVisibility() && !each.closest('.controls, .control, .unseen')
        && !each.querySelector('button, input, .unseen')).map((each) => each.textContent)"""


def drawn(text):
    """The texts of a drawing, which holds vectors and pictures alone and is as large as it says."""
    root = ElementTree.fromstring(text)
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= DRAWN
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.get("viewBox") == f"0 0 {width:g} {height:g}" and min(width, height) > 100
    return ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]


def packed(text):
    return "".join(text.split())


def same(cell, shown):
    """Whether a cell of a CSV file is what the page shows, a number to six digits, a text perhaps cut."""
    try:
        return as_number(shown) == pytest.approx(float(cell), rel=1e-5, abs=1e-12)
    except ValueError:
        return cell.removeprefix("'").startswith(shown.removesuffix("\u2026"))


@pytest.fixture(scope="module")
def both():
    """The page of two inputs."""
    capture = look(models.gpt(), models.TEXT, name="both")
    capture.compare(look(models.gpt(), "An old cat and a young boy"))
    with serve_look(capture) as server:
        yield server


@pytest.mark.parametrize("kind", EXPORTED)
def test_every_view_is_exported_as_picture_drawing_and_table(kind, page_of, pages, both, settled):
    page = pages.open(both.url) if kind == "both" else page_of(kind)
    settled(page)
    for name in EXPORTED[kind]:
        page.evaluate("hash => { location.hash = hash; }", f"view={name}&site=0")
        page.wait_for_selector(f"#views button[aria-current=page][data-focus=view-{name}]", state="attached")
        settled(page)
        drawing = saved(page, "SVG")
        text = ElementTree.fromstring(drawing).findtext(f"{SVG}title")
        assert page.inner_text("h1.brand").partition(" · anyformer")[0] in text and "anyformer" in text, name
        written, whole = page.locator(".drawing").evaluate(WRITTEN), packed("".join(drawn(drawing)))
        assert len(written) > 2 and all(packed(each) in whole for each in written), name
        picture = Image.open(io.BytesIO(saved(page, "PNG"))).convert("RGB")
        assert picture.getpixel((2, 2)) == (255, 255, 255) and len(picture.getcolors(1 << 24)) > 20, name
        file = list(csv.reader(io.StringIO(saved(page, "CSV").decode())))
        shown = exact_rows(page)
        page.locator("details.exact > summary").click()
        assert len(shown) == min(len(file) - 1, 400) > 0, name
        for row, cells in zip(file[1:], shown, strict=False):
            assert all(same(cell, read) for cell, read in zip(row, cells, strict=True)), (name, row, cells)


# Where each token's text begins and how far down it stands, from the first one.
CHIPS = """chips => chips.map((chip) => { const range = document.createRange();
    range.selectNodeContents(chip.firstChild);
    const box = range.getBoundingClientRect(); return [box.left, box.bottom]; })"""
PLACES = """(root, words) => { const at = Object.fromEntries([...root.querySelectorAll('text')].map((node) => {
    const box = node.getBoundingClientRect(); return [node.textContent, [box.left, box.bottom, box.right]]; }));
    return words.map((word) => at[word]); }"""


def test_an_exported_drawing_opens_by_itself_with_every_token_in_its_place(page_of, pages, tmp_path):
    page = page_of("gpt", "remove", site=1)
    chips = page.locator(".drawing .token")
    shown, words = chips.evaluate_all(CHIPS), chips.all_text_contents()
    (tmp_path / "view.svg").write_bytes(saved(page, "SVG"))
    alone = pages.open((tmp_path / "view.svg").as_uri())
    root = alone.locator("svg").first
    found = root.evaluate(PLACES, words)
    assert len(words) == 7 and words[1] == "·old"
    for (left, bottom), (x, y, right) in zip(shown, found, strict=True):
        assert x - found[0][0] == pytest.approx(left - shown[0][0], abs=1)
        assert y - found[0][1] == pytest.approx(bottom - shown[0][1], abs=1)
        assert 0 < x < right < float(root.get_attribute("width"))
    picture = Image.open(io.BytesIO(alone.screenshot())).convert("RGB")
    assert picture.getpixel((2, 2)) == (255, 255, 255) and len(picture.getcolors(1 << 24)) > 20
    accent = (31, 95, 191)
    assert accent in {colour for _, colour in picture.getcolors(1 << 24)}  # the frame of the selected token
    root.evaluate("root => { for (const node of root.querySelectorAll(':scope > *')) node.remove(); }")
    blank = Image.open(io.BytesIO(alone.screenshot())).convert("RGB")
    assert len(blank.getcolors(1 << 24)) == 1  # control: without its parts nothing is drawn


# Tabs from the body until the focus leaves the page; what was reached, what of it showed no focus, and what was not.
REACHED = """() => { const at = document.activeElement; if (!at || at === document.body) return null;
    at.dataset.reached = 'yes'; const style = getComputedStyle(at);
    const box = at.getBoundingClientRect();
    const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 0;
    return [at.outerHTML.slice(0, 120), shown]; }"""
MISSED = """inside => [...document.querySelectorAll(inside)].flatMap((box) => [...box.querySelectorAll(
    'button, select, input, textarea, summary, a[href], [tabindex="0"]')]).filter((each) => each.tabIndex >= 0
    && !each.disabled && each.checkVisibility() && !each.dataset.reached).map((each) => each.outerHTML.slice(0, 120))"""


def walk(page, most=150):
    """Tab through all there is; the elements that got the focus without showing it."""
    unseen = []
    for count in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(REACHED)
        if at is None:
            return unseen, count
        if not at[1]:
            unseen.append(at[0])
    raise AssertionError(f"the focus does not leave the page within {most} steps: a trap")


def test_tab_reaches_every_control_of_the_page_and_leaves_it(page_of):
    page = page_of("gpt", "map", site=1, head=1)
    unseen, count = walk(page)
    assert not unseen and count > 30
    assert page.evaluate(MISSED, "body") == []
    page.evaluate("document.querySelector('[data-focus=theme]').removeAttribute('data-reached')")
    assert len(page.evaluate(MISSED, "body")) == 1  # control: what was not reached would be named


def test_tab_stays_in_a_dialog_and_escape_gives_the_focus_back(page_of):
    page = page_of("gpt")
    page.locator("[data-focus=keys]").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Keys").wait_for()
    inside = (
        "document.activeElement === document.body || document.querySelector('dialog').contains(document.activeElement)"
    )
    for _ in range(6):
        page.evaluate(REACHED)
        page.keyboard.press("Tab")
        assert page.evaluate(inside)
    assert page.evaluate(MISSED, "dialog") == []
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("document.activeElement.dataset.focus") == "keys"


def test_every_dialog_is_without_faults(page_of):
    page = page_of("gpt")
    page.wait_for_selector(".trust.good")
    openers = {"Keys": "?", "Find a token": "/", "Export": "e", "Another input": "[data-focus=new]",
               "Compare with another input": "d", "Checked": "[data-focus=trust]"}  # fmt: skip
    for name, opener in openers.items():
        if len(opener) == 1:
            page.keyboard.press(opener)
        else:
            page.locator(opener).click()
        page.get_by_role("dialog", name=name).wait_for()
        if name == "Find a token":
            page.get_by_role("textbox").fill("o")
        assert not violations(page), name
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")


def test_every_state_is_without_faults_and_says_what_to_do(page_of, pages, file_of, settled):
    page = page_of("gpt", "cross")
    assert "Not for this model" in page.inner_text("main") and not violations(page)

    page = page_of("bert", "heads")
    page.route("**/api/view/lens*", lambda route: None)  # an answer that does not come
    page.locator("[data-focus=view-lens]").click()
    page.get_by_text("Computing \u2026").wait_for()
    assert page.get_attribute("main", "aria-busy") == "true" and not violations(page)
    page.route(
        "**/api/view/flow*", lambda route: route.fulfill(status=500, json={"error": "Broken.", "fix": "Read on."})
    )
    page.locator("[data-focus=view-flow]").click()
    page.get_by_role("button", name="Try again").wait_for()
    assert "Read on." in page.inner_text("main") and not violations(page)
    page.unroute_all(behavior="ignoreErrors")
    pages.problems.clear()

    capture = look(models.gpt(), models.TEXT)
    capture.budget = 500  # bytes: a row fits, no map
    with serve_look(capture) as server:
        page = pages.open(f"{server.url}#view=map")
        page.get_by_role("button", name="Try again").wait_for()
        assert "the budget is" in page.inner_text("main") and not violations(page)
        pages.problems.clear()

    page = pages.open(f"{file_of('gpt').as_uri()}#view=map&site=1&head=3&show=values")
    settled(page)
    assert "Not in this page" in page.inner_text("main") and not violations(page)
    assert views()["map"].applies(look(models.gpt(), models.TEXT)) is None  # control: the view itself is there
