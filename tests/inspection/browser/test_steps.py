"""The steps view: a change runs through all later steps as the softmax says, and the lecture's numbers are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from playwright.sync_api import Page

from anyformer import Attention, Block, Learned, Model, Stack, Tokens
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.server import serve_look
from anyformer.inspection.steps import steps_of
from anyformer.inspection.views import steps as view
from tests.inspection.models import KINDS

Opened = Callable[..., Page]
MINUS = "\u2212"


def column(page: Page, name: str, count: int) -> list[float]:
    """The numbers of one step as the page shows them."""
    texts = [page.inner_text(f"[data-focus=cell-{name}-{j}]") for j in range(count)]
    return [float(text.replace(MINUS, "-").replace("∗", "").strip()) for text in texts]


def scores(page: Page, count: int) -> list[float]:
    return [float(page.input_value(f"[data-focus=score-{j}]")) for j in range(count)]


def softmax(numbers: list[float]) -> list[float]:
    powers = [math.exp(x) for x in numbers]
    return [power / sum(powers) for power in powers]


def test_the_numbers_are_those_of_the_model(page_of: Opened, capture_of: Callable[[str], Capture]) -> None:
    page = page_of("gpt", "steps", site=1, head=2, query=5)
    steps = steps_of(capture_of("gpt"), 1, 2, 5)
    assert scores(page, 7) == pytest.approx(steps.scores.tolist(), rel=1e-3)
    assert column(page, "scaled", 7) == pytest.approx(steps.scaled.tolist(), rel=5e-3)
    assert column(page, "weights", 7) == pytest.approx(steps.weights.tolist(), rel=5e-3)
    assert page.inner_text("tr:has([data-focus=seen-6])").count(f"{MINUS}∞") == 1  # a later token is hidden
    assert not page.is_checked("[data-focus=seen-6]") and page.is_checked("[data-focus=seen-5]")
    assert "largest difference" in page.inner_text(".drawing")


def test_a_changed_score_gives_the_weights_that_softmax_says(page_of: Opened, settled: Any) -> None:
    page = page_of("gpt", "steps", site=0, head=1, query=3)
    before, given = column(page, "weights", 4), scores(page, 4)
    assert page.is_disabled("text=Reset")
    page.fill("[data-focus=score-1]", "5.5")
    given[1] = 5.5
    wanted = softmax([score / math.sqrt(8) for score in given])
    assert column(page, "weights", 4) == pytest.approx(wanted, rel=5e-3)
    assert wanted != pytest.approx(before, rel=1e-1)  # control: the change is seen
    assert "∗" in page.inner_text("[data-focus=cell-weights-0]")
    assert "changed" in (page.get_attribute("[data-focus=cell-weights-0]", "aria-label") or "")
    page.get_by_text("With your changes").wait_for()
    page.click("text=Cornell")  # a redraw keeps the change
    settled(page)
    assert column(page, "weights", 4) == pytest.approx(wanted, rel=5e-3)
    page.click("text=Reset")
    assert column(page, "weights", 4) == before and page.is_disabled("text=Reset")
    assert "∗" not in page.inner_text(".drawing table")


def test_the_output_follows_a_change(page_of: Opened, capture_of: Callable[[str], Capture]) -> None:
    """What the page says the layer's output moves by is what the layer's own weights give."""
    page = page_of("bert", "steps", site=1, head=3, query=2)
    steps = steps_of(capture_of("bert"), 1, 3, 2)
    page.fill("[data-focus=score-0]", "4")
    changed = steps.scores.clone().double()
    changed[0] = 4.0
    z = (changed * steps.scale).softmax(0) @ steps.v.double()
    moved = float(((z - steps.z.double()) @ steps.projection.double()).norm())
    page.get_by_text("moves by").wait_for()
    told = page.inner_text(".drawing").split("moves by ")[1].split(";")[0]
    assert float(told) == pytest.approx(moved, rel=5e-3) and moved > 0


def test_a_hidden_key_can_be_shown_and_the_root_left_out(page_of: Opened, capture_of: Callable[[str], Capture]) -> None:
    page = page_of("gpt", "steps", site=0, head=0, query=2)
    raw = steps_of(capture_of("gpt"), 0, 0, 2).scores.tolist()
    page.check("[data-focus=seen-6]")
    seen = [0, 1, 2, 6]
    wanted = softmax([raw[j] / math.sqrt(8) for j in seen])
    found = column(page, "weights", 7)
    assert [found[j] for j in seen] == pytest.approx(wanted, rel=5e-3) and found[3] == 0
    page.uncheck("[data-focus=root]")
    found = column(page, "weights", 7)
    assert [found[j] for j in seen] == pytest.approx(softmax([raw[j] for j in seen]), rel=5e-3)
    assert column(page, "scaled", 7) == pytest.approx(raw, rel=5e-3)
    for j in seen:
        page.uncheck(f"[data-focus=seen-{j}]")
    assert column(page, "weights", 7) == [0.0] * 7  # a token that sees nothing takes nothing


def test_the_lectures_example_is_on_the_page(page_of: Opened, settled: Any) -> None:
    page = page_of("gpt", "steps")
    page.click("text=Lecture example")
    settled(page)
    assert scores(page, 2) == [102.0, 99.0]
    assert [page.inner_text(f"[data-focus=cell-scaled-{j}]") for j in range(2)] == ["58.9", "57.2"]
    assert [page.inner_text(f"[data-focus=cell-weights-{j}]").strip() for j in range(2)] == ["0.850", "0.150"]
    assert "divide by √3" in page.inner_text(".drawing")
    page.uncheck("[data-focus=root]")  # without the root: .95257 and .04743
    assert [page.inner_text(f"[data-focus=cell-weights-{j}]").strip() for j in range(2)] == ["0.953 ∗", "0.0474 ∗"]
    page.click("text=Back to the model")
    settled(page)
    assert page.locator("tbody tr").count() == 7


def test_the_steps_are_scrubbed_by_keys_and_numbered_both_ways(page_of: Opened, settled: Any) -> None:
    page = page_of("gpt", "steps", site=0, head=0, query=6)
    titles = lambda: page.locator(".drawing thead tr:nth-child(2) th").all_inner_texts()  # noqa: E731
    assert "Step 6 of 6" in page.inner_text(".drawing")
    page.focus("[data-focus=step]")
    for step, seen in ((6, "weight × v"), (5, "weight × v"), (4, "softmax"), (3, "÷ √d"), (2, "q·k"), (1, "v")):
        page.wait_for_function(
            "step => document.querySelector('.drawing').innerText.includes(`Step ${step} of 6`)", arg=step
        )
        settled(page)
        assert titles()[-1] == seen
        assert page.evaluate("document.activeElement.dataset.focus") == "step"
        page.keyboard.press("ArrowLeft")
    page = page_of("gpt", "steps", site=0, head=0, query=6, numbering="cornell")
    assert "Step 5 of 5" in page.inner_text(".drawing")
    numbers = page.locator(".drawing thead tr:nth-child(1) th").all_inner_texts()
    assert numbers == ["Step", "1", "1", "2", "2", "3", "3", "4"]


def test_a_focused_number_shows_its_formula(page_of: Opened) -> None:
    page = page_of("gpt", "steps", site=0, head=0, query=6, key=2)
    page.focus("[data-focus=cell-weights-2]")
    assert "Weight of key" in page.inner_text(".readout") and page.locator(".readout math mfrac").count() == 2
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.focus") == "cell-weights-1"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.focus") == "seen-1"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.focus") == "cell-scaled-1"
    assert page.locator(".readout math msqrt").count() == 2
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.focus") == "score-1"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.focus") == "score-2"
    rows = page.inner_html(".formula >> nth=0")
    page.click("text=columns: WᵀX")
    page.wait_for_function("before => document.querySelector('.formula').innerHTML !== before", arg=rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_of_every_kind_of_model(kind: str, page_of: Opened, capture_of: Any, settled: Any) -> None:
    page = page_of(kind, "steps")
    capture = capture_of(kind)
    for site in capture.sites:
        page.evaluate("at => { location.hash = 'view=steps&head=1&query=1&site=' + at; }", site.index)
        page.wait_for_function(
            "at => document.querySelector('[data-focus=trail-site]').value === String(at)", arg=site.index
        )
        settled(page)
        steps = steps_of(capture, site.index, 1, 1)
        count = len(steps.keys)
        assert column(page, "weights", count) == pytest.approx(steps.weights.tolist(), rel=5e-3, abs=1e-6)


def test_many_keys_are_shown_a_page_at_a_time(pages: Any, settled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the vectors of the keys shown travel: their sum with the others is still the layer's own."""
    torch.manual_seed(0)
    stack = Stack(width=16, depth=1, block=Block(mixer=Attention(heads=2)))
    net = Model(embed=Tokens(vocab=50, position=Learned(length=200)), stack=stack, init="xavier").build(seed=0)
    capture = look(net, torch.randint(0, 50, (1, 150)))
    steps = steps_of(capture, 0, 0, 3)
    for most in (view.MOST, 100):
        monkeypatch.setattr(view, "MOST", most)
        server = serve_look(capture)
        try:
            page = pages.open(f"{server.url}#view=steps&query=3")
            settled(page)
            best = int(steps.weights.argmax())
            assert page.locator("tbody tr").count() == 64 and page.is_visible(f"[data-focus=cell-weights-{best}]")
            page.click("text=From the first") if page.is_enabled("text=From the first") else None
            settled(page)
            assert page.is_visible("[data-focus=cell-weights-0]") and "of 150" in page.inner_text(".drawing")
            page.fill("[data-focus=score-0]", "9")
            changed = steps.scores.clone().double()
            changed[0] = 9.0
            weights = (changed * steps.scale).softmax(0)
            assert column(page, "weights", 3) == pytest.approx(weights[:3].tolist(), rel=5e-3)
            moved = float(((weights @ steps.v.double() - steps.z.double()) @ steps.projection.double()).norm())
            page.get_by_text("moves by").wait_for()
            told = page.inner_text(".drawing").split("moves by ")[1].split(";")[0]
            assert float(told) == pytest.approx(moved, rel=5e-3)
        finally:
            server.close()


def test_an_exported_page_holds_the_example_and_computes(
    pages: Any, settled: Any, capture_of: Any, tmp_path: Any
) -> None:
    path = tmp_path / "inside.html"
    capture_of("gpt").html(path)
    page = pages.open(f"{path.as_uri()}#view=steps&example=lecture")
    settled(page)
    assert [page.inner_text(f"[data-focus=cell-weights-{j}]").strip() for j in range(2)] == ["0.850", "0.150"]
    page.fill("[data-focus=score-1]", "102")
    assert column(page, "weights", 2) == [0.5, 0.5]
    page = pages.open(f"{path.as_uri()}#view=steps&site=1&head=3&query=6")
    settled(page)
    page.fill("[data-focus=score-1]", "3")
    page.get_by_text("moves by").wait_for()
