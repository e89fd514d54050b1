"""The positions view: the model's own kind first, every picture drawn, and shuffled tokens."""

from __future__ import annotations

import numpy as np
import pytest

from anyformer.inspection.positions import position_arrays
from tests.inspection.browser.test_table import rows_of


@pytest.mark.parametrize(("kind", "words"), [
    ("gpt", "This model has Rotary (RoPE)"), ("bert", "This model has Learned table"),
    ("vit", "This model has Learned table"), ("ft", "This model has no positions of its own"),
])  # fmt: skip
def test_the_models_own_kind_comes_first(kind, words, page_of):
    assert words in page_of(kind, "positions").inner_text(".summary")


@pytest.mark.parametrize(("kind", "shown"), [
    ("gpt", "rope"), ("gpt", "sinusoid"), ("gpt", "alibi"), ("gpt", "buckets"), ("bert", "learned"), ("vit", "learned"),
])  # fmt: skip
def test_every_picture_of_a_kind_draws_and_has_values(kind, shown, page_of, settled):
    page = page_of(kind, "positions", scheme=shown)
    names = page.get_by_label("Picture").locator("option").all_inner_texts()
    assert len(names) >= 2
    for name in names:
        page.get_by_label("Picture").select_option(name)
        settled(page)
        assert not page.query_selector(".state"), f"{name}: {page.inner_text('#panel')}"
        assert rows_of(page), name
        assert page.locator(".drawing canvas, .drawing .chart, .drawing .bars").count() > 0


def test_one_position_is_the_row_of_the_table(page_of, settled):
    page = page_of("gpt", "positions", scheme="sinusoid", picture="one position", place=7)
    table = position_arrays("sinusoid").arrays["table"]
    shown = [float(row["position 7"].replace("\u2212", "-")) for row in rows_of(page)]
    assert shown == pytest.approx(table[7].tolist(), abs=1e-5)
    page.get_by_label("Position", exact=True).focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    assert "place=8" in page.url
    assert [float(row["position 8"].replace("\u2212", "-")) for row in rows_of(page)] == pytest.approx(
        table[8].tolist(), abs=1e-5
    )


def test_the_counter_is_written_in_binary(page_of):
    page = page_of("gpt", "positions", scheme="sinusoid", picture="binary counter")
    assert [row["binary"] for row in rows_of(page)] == [format(n, "04b") for n in range(16)]
    assert page.get_by_role("grid").count() == 3


def test_scalings_are_four_lines(page_of, capture_of):
    page = page_of("gpt", "positions", picture="longer texts")
    wanted = position_arrays("rope", capture_of("gpt").model).arrays["scaled_distance"]
    shown = rows_of(page)
    for i, name in enumerate(("plain", "linear", "ntk", "yarn")):
        values = [float(row[name].replace("\u2212", "-")) for row in shown[:20]]
        assert np.abs(np.array(values) - wanted[i, :20]).max() < 1e-4


@pytest.mark.parametrize(("kind", "bars"), [("bert", 2), ("gpt", 3)])
def test_shuffled_tokens_move_only_where_something_tells_their_order(kind, bars, page_of, settled):
    page = page_of(kind, "positions")
    page.get_by_label("Shuffle tokens").check()
    settled(page)
    listed = page.get_by_role("list", name="Largest change of a token's vector").get_by_role("listitem")
    texts = listed.all_inner_texts()
    assert len(texts) == bars and "rounding" in texts[-1] and "rounding" not in texts[0]
    before = page.get_by_text("Shuffled:").inner_text()
    page.get_by_role("button", name="Another order").click()
    settled(page)
    assert page.get_by_text("Shuffled:").inner_text() != before and "seed=1" in page.url


def test_an_exported_page_has_every_kind_and_its_sliders(file_of, pages, settled):
    page = pages.open(f"{file_of('gpt').as_uri()}#view=positions")
    settled(page)
    assert "This model has Rotary" in page.inner_text(".summary")
    page.get_by_label("Kind").select_option("sinusoid")
    settled(page)
    page.get_by_label("Picture").select_option("one position")
    settled(page)
    page.get_by_label("Position", exact=True).focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    table = position_arrays("sinusoid").arrays["table"]
    assert [float(row["position 3"].replace("\u2212", "-")) for row in rows_of(page)] == pytest.approx(
        table[3].tolist(), abs=1e-5
    )
