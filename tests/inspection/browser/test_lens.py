"""The lens in a browser: its numbers are Python's, and its cells are chosen by click and by keys."""

from __future__ import annotations

import pytest

from tests.inspection.browser.reading import as_number, exact_rows


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_the_values_are_those_of_the_capture(kind, page_of, capture_of):
    right = capture_of(kind).lens(top=10)
    layers, positions = right.ranks.shape
    rows = exact_rows(page_of(kind, "lens"))
    assert len(rows) == layers * positions
    for i, row in enumerate(rows):
        layer, t = divmod(i, positions)
        assert row[0] == right.layers[layer] and int(as_number(row[1])) == t
        assert as_number(row[4]) == pytest.approx(float(right.logprobs[layer, t, 0].exp()), rel=2e-5)
        assert as_number(row[6]) == pytest.approx(float(right.chosen_logprobs[layer, t].exp()), rel=2e-5)
        assert as_number(row[7]) == int(right.ranks[layer, t])
        assert as_number(row[8]) == pytest.approx(float(right.divergence[layer, t]), rel=2e-5, abs=1e-9)
        assert as_number(row[9]) == pytest.approx(float(right.entropy[layer, t]), rel=2e-5)


@pytest.mark.parametrize("kind", ["bert", "vit", "ft"])
def test_classifiers_show_their_classes_by_layer(kind, page_of, capture_of):
    capture = capture_of(kind)
    right = capture.lens(top=10)
    rows = exact_rows(page_of(kind, "lens"))
    classes = right.ids.shape[2]
    assert len(rows) == len(right.layers) * classes
    for i, row in enumerate(rows):
        layer, k = divmod(i, classes)
        assert row[1] == capture.predictor.label(int(right.ids[layer, 0, k]))
        assert as_number(row[2]) == pytest.approx(float(right.logprobs[layer, 0, k].exp()), rel=2e-5)


def test_a_cell_shows_its_ten_best(page_of, capture_of, settled):
    capture = capture_of("gpt")
    right = capture.lens(top=10)
    page = page_of("gpt", "lens")
    page.locator("button[data-row='1'][data-column='3']").click()
    settled(page)
    assert "layer=1" in page.url and "query=3" in page.url
    shown = [as_number(text) for text in page.locator(".bars .figure").all_inner_texts()]
    assert shown == pytest.approx(right.logprobs[1, 3].exp().tolist(), rel=6e-3)  # three digits
    page.keyboard.press("ArrowUp")
    settled(page)
    assert "layer=0" in page.url
    assert page.evaluate("document.activeElement.dataset.row") == "0"
    page.keyboard.press("ArrowRight")
    settled(page)
    assert "query=4" in page.url


def test_without_the_norm_the_page_says_that_the_last_row_is_not_the_model(page_of, settled):
    page = page_of("gpt", "lens")
    assert "the model's own logits" in page.inner_text(".drawing")
    page.locator("input[data-focus=option-norm]").uncheck()
    settled(page)
    assert "norm=0" in page.url and "is not the model's answer" in page.inner_text("#panel")


def test_the_column_that_is_looked_at_is_in_sight(page_of):
    page = page_of("gpt", "lens", width=360)
    inside = """() => { const cell = document.querySelector('table.lens [aria-current]').getBoundingClientRect();
        const box = document.querySelector('table.lens').parentNode.getBoundingClientRect();
        return [cell.left >= box.left, cell.right <= box.right + 1]; }"""
    assert page.evaluate(inside) == [True, True]
    page.evaluate("document.querySelector('table.lens').parentNode.scrollLeft = 0")
    assert page.evaluate(inside) == [True, False]  # control: it lies far to the right
