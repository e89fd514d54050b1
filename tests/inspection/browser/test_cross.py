"""Cross-attention in a browser: its numbers are Python's, and a target lights its sources."""

from __future__ import annotations

import pytest

from anyformer.inspection.answer import Query
from anyformer.inspection.views import cross
from tests.inspection import models
from tests.inspection.browser.reading import exact_rows


@pytest.mark.parametrize("heads", ["mean", "one"])
def test_the_values_are_those_of_the_capture(heads, page_of, capture_of):
    capture = capture_of("t5")
    every = capture.weights(5)  # (H,T,S)
    right = every.mean(0) if heads == "mean" else every[2]
    rows = exact_rows(page_of("t5", "cross", site=5, head=2, heads=heads))
    assert len(rows) == right.numel()
    for row, value in zip(rows, right.flatten().tolist(), strict=True):
        assert float(row[4]) == pytest.approx(value, rel=2e-5)


def test_from_any_layer_the_first_cross_attention_is_shown(page_of, capture_of, settled):
    page = page_of("t5", "cross", site=0)
    label = page.locator("select[data-focus=cross-site] option:checked").inner_text()
    assert label == "Decoder layer 0 · cross"
    page.locator("select[data-focus=cross-site]").select_option(label="Decoder layer 1 · cross")
    settled(page)
    assert "site=5" in page.url


def test_a_target_under_the_focus_or_the_pointer_lights_its_sources(page_of, capture_of):
    right = capture_of("t5").weights(3).mean(0)  # (T,S)
    page = page_of("t5", "cross", site=3, query=0)
    values = page.locator("[aria-label='Source tokens'] .value")
    targets = page.locator("[aria-label='Target tokens'] button")
    assert [float(text) for text in values.all_inner_texts()] == pytest.approx(right[0].tolist(), abs=6e-4)
    targets.nth(4).hover()
    assert [float(text) for text in values.all_inner_texts()] == pytest.approx(right[4].tolist(), abs=6e-4)
    page.mouse.move(0, 0)
    targets.nth(2).focus()
    assert [float(text) for text in values.all_inner_texts()] == pytest.approx(right[2].tolist(), abs=6e-4)


def test_the_alignment_names_each_targets_strongest_source(page_of, capture_of, settled):
    capture = capture_of("t5")
    right = capture.weights(3).mean(0)
    page = page_of("t5", "cross", site=3)
    rows = page.locator("[aria-label=Alignment] tbody tr")
    assert rows.count() == right.shape[0]
    for t, row in enumerate(rows.all()):
        text = row.locator("td").nth(1).inner_text()
        assert text.replace("\u00b7", " ") == capture.axes["encoder"].tokens[int(right[t].argmax())].text
    rows.nth(3).locator("button").click()
    settled(page)
    assert "query=3" in page.url and f"key={int(right[3].argmax())}" in page.url


def test_a_word_stands_beside_its_translation(page_of):
    """A translator whose weights are set: writing "zwei" it reads "two"; the token it had read before stands beside."""
    page = page_of("translator", "cross", site=2)
    rows = page.locator("[aria-label=Alignment] tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent.replace('\u00b7', '')))"
    )
    assert [row[0::2][:2] for row in rows[:4]] == [[two, one] for one, two in models.PAIRS.items()]
    assert [row[1] for row in rows[:3]] == ["<s>", "zwei", "drei"]
    page.locator("[aria-label='Target tokens'] button").nth(1).focus()
    assert page.locator("[aria-label='Target tokens'] button").nth(1).get_attribute("aria-label") == " drei, after zwei"
    assert page.locator("select[data-focus=trail-query] option").first.inner_text() == '"zwei" 0'
    assert exact_rows(page)[0][1::2][:2] == [" zwei", " two"]


def test_nothing_is_wider_than_a_small_screen(page_of):
    page = page_of("t5", "cross", width=360, theme="dark", heads="one")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_another_beam_is_another_target(page_of, capture_of, settled):
    page = page_of("t5", "cross", site=3)
    page.locator("select[data-focus=option-beam]").select_option("2")
    settled(page)
    right = cross.answer(capture_of("t5"), Query(site=3, options={"beam": "2"}))
    assert page.locator("[aria-label='Target tokens'] button").count() == len(right.facts["targets"])
    rows = exact_rows(page)
    assert [float(row[4]) for row in rows] == pytest.approx(right.arrays["weights"].flatten().tolist(), rel=2e-5)
