"""The frame around the views: keys, addresses, themes, widths, exports and what is said to a screen reader."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from anyformer.inspection.manifest import KEYS, manifest_of
from anyformer.inspection.views import views
from anyformer.lab.catalogue import all_claims
from tests.inspection.browser.test_views import violations


def selection(page):
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).fragment).items()}


def press(page, settled, *keys):
    for key in keys:
        page.keyboard.press(key)
        settled(page)


def views_of(capture):
    return [view["name"] for view in manifest_of(capture)["views"] if view["applies"]]


def test_the_header_says_model_input_and_prediction(page_of, capture_of):
    page, capture = page_of("bert"), capture_of("bert")
    text = page.inner_text("#top")
    best = capture.prediction()[0]
    assert capture.title in text and capture.given.text in text and best.name in text
    assert f"{best.probability * 100:.3g} %" in text
    page.get_by_role("button", name="numbers checked").click()
    dialog = page.get_by_role("dialog").inner_text()
    assert all(check.name in dialog for check in capture.trust.checks)


def test_keys_walk_through_layers_and_heads(page_of, settled):
    page = page_of("gpt", site=0, head=0)
    press(page, settled, "]", "}", "}")
    assert (selection(page)["site"], selection(page)["head"]) == ("1", "2")
    press(page, settled, "]", "]")  # the last stays the last
    assert selection(page)["site"] == "1"
    press(page, settled, "[", "{")
    assert (selection(page)["site"], selection(page)["head"]) == ("0", "1")
    assert page.input_value("select[aria-label=Layer]") == "0" and page.input_value("select[aria-label=Head]") == "1"


def test_every_key_of_the_list_does_something(page_of, settled):
    """Each key that the dialog names is taken by the page or by the map that has the focus."""
    page = page_of("gpt", site=0, head=0)
    named = {"\u2190\u2191": ["ArrowLeft", "ArrowUp"], "\u2192\u2193": ["ArrowRight", "ArrowDown"],
             "Esc": ["Escape"], "+": [], "\u2212": [], "0": [], "Enter": []}  # fmt: skip
    # Three of the last are those of large maps: test_zoom.py presses them. Enter leaves the map: see below.
    # A dialog of the key before may have opened after it was closed.
    taken = """key => { document.querySelector('dialog[open]')?.close(); document.querySelector('.field').focus();
        const event = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true });
        const free = document.activeElement.dispatchEvent(event);
        document.querySelector('dialog')?.close(); return !free; }"""
    keys = [one for _, *keys in KEYS for key in keys for one in named.get(key, [key])]
    found = {}
    for key in keys:
        found[key] = page.evaluate(taken, key)
        settled(page)
    assert found == dict.fromkeys(keys, True)
    assert not page.evaluate(taken, "q")  # control: another letter is nobody's


def test_arrows_move_the_cell_and_say_it(page_of, capture_of, settled):
    page = page_of("gpt", site=1, head=2, query=3, key=1)
    page.focus(".field")
    press(page, settled, "ArrowDown", "ArrowRight")
    assert (selection(page)["query"], selection(page)["key"]) == ("4", "2")
    exact = float(capture_of("gpt").weights(1)[2, 4, 2])
    tokens = capture_of("gpt").axes[""].tokens
    said = f'query "{tokens[4].text.strip()}", key "{tokens[2].text.strip()}": weight {exact:.3g}'
    assert page.inner_text("#live") == said
    assert page.text_content("[role=gridcell]") == said
    assert page.evaluate("document.activeElement.getAttribute('role')") == "grid"  # the focus stays on the map
    press(page, settled, "End")
    assert selection(page)["key"] == str(len(tokens) - 1)
    assert "masked" in page.inner_text("#live")
    start = manifest_of(capture_of("gpt"))["start"]
    press(page, settled, "Escape")
    assert (selection(page)["query"], selection(page)["key"]) == (str(start["query"]), str(start["key"]))


def test_a_hovered_cell_is_previewed_and_a_click_pins_it(page_of, capture_of, settled):
    page = page_of("gpt", site=0, head=0, query=6, key=4)
    box = page.locator(".field").bounding_box()
    size = box["width"] / 7
    there = {"x": 1.5 * size, "y": 3.5 * size}  # query 3, key 1
    exact = float(capture_of("gpt").weights(0)[0, 3, 1])
    page.locator(".field").hover(position=there)
    assert f"weight {exact:.3g}" in page.inner_text(".readout") and selection(page)["query"] == "6"
    page.hover("h2")
    assert '"boy"' in page.inner_text(".readout")
    page.locator(".field").click(position=there)
    settled(page)
    assert (selection(page)["query"], selection(page)["key"]) == ("3", "1")


def test_a_cell_leads_to_its_steps(page_of, settled):
    page = page_of("gpt", site=1, head=2, query=4, key=1)
    page.focus(".field")
    press(page, settled, "ArrowDown")
    page.get_by_role("button", name="Step by step for this cell").click()
    settled(page)
    found = selection(page)
    assert page.inner_text("h2") == "Step by step" and page.locator(".state").count() == 0
    assert (found["site"], found["head"], found["query"], found["key"]) == ("1", "2", "5", "1")


def test_enter_and_a_double_click_open_the_steps_of_a_cell(page_of, settled):
    page = page_of("gpt", site=1, head=2, query=4, key=1)
    page.focus(".field")
    press(page, settled, "ArrowDown", "Enter")
    found = selection(page)
    assert page.inner_text("h2") == "Step by step"
    assert (found["head"], found["query"], found["key"]) == ("2", "5", "1")
    page.go_back()
    settled(page)
    size = page.locator(".field").bounding_box()["width"] / 7
    there = {"x": 0.5 * size, "y": 3.5 * size}
    page.locator(".field").click(position=there)  # control: one click selects and stays
    settled(page)
    assert page.inner_text("h2") == "Attention map" and selection(page)["query"] == "3"
    page.locator(".field").dblclick(position=there | {"x": 2.5 * size})
    settled(page)
    found = selection(page)
    assert page.inner_text("h2") == "Step by step" and (found["query"], found["key"]) == ("3", "2")


def test_a_hovered_row_colours_the_tokens(page_of, capture_of):
    page = page_of("gpt", site=0, head=0, query=6, key=4)
    values = page.locator(".drawing .token .value")
    weights = capture_of("gpt").weights(0)[0]
    assert values.all_inner_texts() == [f"{float(weight):.3g}".ljust(5, "0") for weight in weights[6]]
    size = page.locator(".field").bounding_box()["width"] / 7
    page.locator(".field").hover(position={"x": 0.5 * size, "y": 2.5 * size})
    assert page.locator(".drawing h3").inner_text() == 'Where "dog" reads'
    assert [float(text) for text in values.all_inner_texts()] == pytest.approx(weights[2, :3].tolist(), abs=5e-4)
    page.hover("h2")
    assert page.locator(".drawing h3").inner_text() == 'Where "boy" reads' and values.count() == 7


def test_a_view_names_its_claim_of_the_lectures(page_of, settled):
    claims = {name: getattr(module, "CLAIM", None) for name, module in views().items()}
    named = {name: claim for name, claim in claims.items() if claim}
    assert len(named) >= 9 and set(named.values()) <= set(all_claims())
    page = page_of("gpt", "steps")
    assert page.inner_text(".claim").endswith("anyformer lab run softmax-scale")
    page.locator("[data-focus=view-lens]").click()
    settled(page)
    assert claims["lens"] is None and page.locator(".claim").count() == 0  # control: nothing is said of others


def test_letters_change_scale_numbers_and_sink(page_of, settled):
    page = page_of("gpt")
    press(page, settled, "c")
    assert selection(page)["scale"] == "linear" and "linear scale" in page.inner_text(".legend")
    press(page, settled, "c", "c")
    assert "scale" not in selection(page)  # the default again
    press(page, settled, "n")
    assert page.locator(".over text.figure").count() > 10
    press(page, settled, "n", "s")
    assert page.locator(".over text.figure").count() == 0 and "without the sink" in page.inner_text(".summary")


def test_single_letters_can_be_turned_off(page_of, settled):
    page = page_of("gpt")
    press(page, settled, "?")
    page.get_by_label("Single-letter keys are on").uncheck()
    press(page, settled, "Escape", "c")
    assert "scale" not in selection(page)


def test_finding_a_token_selects_it(page_of, capture_of, settled):
    page = page_of("gpt", query=0, key=0)
    press(page, settled, "/")
    page.wait_for_selector("dialog[open] input:focus")  # before it letters would be keys of the page
    page.keyboard.type("young")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")
    settled(page)
    young = next(i for i, token in enumerate(capture_of("gpt").axes[""].tokens) if "young" in token.text)
    assert selection(page)["query"] == str(young)
    assert page.locator("dialog").count() == 0


def test_an_address_opens_what_it_says_and_back_goes_back(page_of, settled):
    page = page_of("gpt", view="map", site=1, head=3, query=2, key=1, scale="log")
    assert "log scale" in page.inner_text(".legend")
    assert page.input_value("select[aria-label=Layer]") == "1" and page.input_value("select[aria-label=Head]") == "3"
    page.click("#views button[data-focus=view-heads]")
    settled(page)
    page.click(".thumb[data-focus=thumb-0-2]")
    settled(page)
    assert (selection(page)["view"], selection(page)["site"], selection(page)["head"]) == ("map", "0", "2")
    page.go_back()
    settled(page)
    assert page.inner_text("h2") == "Heads"
    page.go_back()
    settled(page)
    assert page.inner_text("h2") == "Attention map" and page.input_value("select[aria-label=Head]") == "3"


def test_an_address_beyond_the_model_is_brought_back(page_of, capture_of):
    page = page_of("gpt", view="map", site=99, head=99, query=9999, key=5000)
    assert page.input_value("select[aria-label=Layer]") == "1" and page.locator(".state").count() == 0


def test_the_map_on_the_page_has_the_captures_numbers(page_of, capture_of):
    page = page_of("gpt", site=1, head=1)
    page.click("details.exact > summary")
    page.wait_for_selector("details.exact tbody tr")
    rows = page.locator("details.exact tbody tr").all()
    exact = capture_of("gpt").weights(1)[1]
    assert len(rows) == len(exact)
    for i, row in enumerate(rows):
        cells = [cell.replace("−", "-").replace(",", "") for cell in row.locator("td").all_inner_texts()[1:]]
        assert cells[i + 1 :] == ["masked"] * (len(exact) - 1 - i)
        assert [float(cell) for cell in cells[: i + 1]] == pytest.approx(exact[i, : i + 1].tolist(), rel=1e-5)


def test_pixels_of_the_map_follow_the_weights(page_of, capture_of):
    page = page_of("t5", site=0, head=0, scale="linear")
    pixels = page.evaluate("""() => { const c = document.querySelector('.field canvas');
        return [c.width, c.height, Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)]; }""")
    width, height, colours = pixels
    exact = capture_of("t5").weights(0)[0]
    assert [height, width] == list(exact.shape)
    darkness = [sum(colours[i : i + 3]) for i in range(0, len(colours), 4)]
    order = exact.flatten().argsort()
    assert darkness[int(order[-1])] == min(darkness) < max(darkness) == darkness[int(order[0])]


def test_a_csv_file_holds_the_exact_values(page_of, capture_of):
    page = page_of("gpt", site=0, head=1)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export as CSV").click()
    rows = list(csv.reader(io.StringIO(waiting.value.path().read_text())))
    exact = capture_of("gpt").weights(0)[1]
    assert [float(cell) for cell in rows[-1][1:]] == pytest.approx(exact[-1].tolist(), rel=1e-6)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_is_saved_on_white_with_its_caption(theme, page_of, capture_of, settled):
    page, data = page_of("gpt", theme=theme), {}
    for end in ("PNG", "SVG"):
        press(page, settled, "e")
        with page.expect_download() as waiting:
            page.get_by_role("dialog").get_by_role("button", name=end).click()
        data[end] = waiting.value.path().read_bytes()
    text = "".join(ElementTree.fromstring(data["SVG"]).itertext())
    assert capture_of("gpt").title in text and "Layer 0 · head 0" in text and "anyformer" in text
    image = Image.open(io.BytesIO(data["PNG"])).convert("RGB")
    assert image.getpixel((2, 2)) == (255, 255, 255) and len(image.getcolors(1 << 24)) > 20


def test_markup_in_a_token_stays_text(pages, capture_of, settled):
    from anyformer.inspection.capture import look
    from anyformer.inspection.server import serve_look
    from tests.inspection import models

    hostile = "<script>window.hit=1</script><img src=x onerror=window.hit=1> </script>"
    capture = look(models.gpt(), hostile, name="<b>gpt</b>")
    with serve_look(capture) as server:
        page = pages.open(server.url)
        settled(page)
        for view in views_of(capture):
            page.evaluate("name => { location.hash = 'view=' + name; }", view)
            page.wait_for_selector(f"#views button[aria-current=page][data-focus=view-{view}]")
            settled(page)
            assert page.evaluate("window.hit") is None, view
        assert hostile in page.inner_text(".given") and page.locator("#top img, #top b, main script").count() == 0
        exported = pages.open("about:blank")
        exported.set_content(capture.html())
        settled(exported)
        assert exported.evaluate("window.hit") is None


def test_control_axe_sees_a_fault(page_of):
    page = page_of("gpt")
    page.evaluate("document.querySelector('#panel').append(document.createElement('button'))")
    assert violations(page)


def test_the_theme_switch_is_kept(page_of, settled, pages):
    page = page_of("gpt", theme="light")
    page.get_by_role("button", name="Theme: light").click()
    settled(page)
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(18, 20, 23)"
    page.reload()
    settled(page)
    assert page.evaluate(paper) == "rgb(18, 20, 23)"


def test_another_input_is_looked_at(page_of, pages, settled):
    from anyformer.inspection.capture import look
    from anyformer.inspection.server import serve_look
    from tests.inspection import models

    with serve_look(look(models.gpt(), "The old cat", name="gpt")) as server:
        page = pages.open(server.url)
        settled(page)
        page.get_by_role("button", name="New input").click()
        page.get_by_label("A text").fill("She prefers cats to dogs")
        page.get_by_role("dialog").get_by_role("button", name="Look").click()
        page.wait_for_selector("dialog", state="detached")
        settled(page)
        assert "She prefers cats to dogs" in page.inner_text("#top")
        assert "prefers" in page.inner_text("#panel")
        page.go_back()
        page.wait_for_selector(".given dd:has-text('The old cat')")


@pytest.mark.alone
def test_what_the_page_promises_in_seconds(page_of, settled, capture_of):
    page = page_of("gpt")
    measured = "name => performance.getEntriesByName(name).map((each) => each.duration)"
    assert max(page.evaluate(measured, "look:interactive")) < 1000
    page.evaluate("performance.clearMeasures()")
    press(page, settled, "}", "}", "{")
    assert sorted(page.evaluate(measured, "look:draw"))[1] < 50


def test_the_facts_of_a_page_are_those_of_the_capture(page_of, capture_of, server_of):
    page = page_of("t5")
    told = page.evaluate("fetch('/look/api/manifest').then((r) => r.json())")
    assert told["title"] == capture_of("t5").title and len(told["sites"]) == len(capture_of("t5").sites)
    assert json.dumps(told)


def test_the_tour_walks_through_the_views_by_keyboard(page_of, settled):
    page = page_of("gpt", view="lens")
    page.get_by_role("button", name="Tour").click()
    seen = []
    for _ in range(5):
        settled(page)
        seen.append(selection(page)["view"])
        assert page.evaluate("document.activeElement.dataset.focus") == "tour-next"
        page.keyboard.press("Enter")
    settled(page)
    assert seen == ["map", "heads", "steps", "lens", "remove"]
    assert page.locator(".tour").count() == 0
    page.get_by_role("button", name="Tour").click()
    settled(page)
    assert not violations(page)
    page.keyboard.press("Escape")
    assert page.locator(".tour").count() == 0
