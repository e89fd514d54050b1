"""The table view: columns as bars and a map, with the numbers of the capture."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from anyformer.inspection.capture import look
from anyformer.inspection.importance import feature_attention
from anyformer.inspection.server import serve_look
from tests.inspection import models


@pytest.fixture(scope="module")
def many():
    """A capture of forty rows with their answers, and its server."""
    with models.table_file().open() as file:
        rows = [row | {"age": float(row["age"]), "income": float(row["income"])} for row in csv.DictReader(file)][:40]
    capture = look(models.ft(), rows, name="ft")
    server = serve_look(capture)
    yield capture, server
    server.close()


def rows_of(page):
    """The exact values as texts."""
    if not page.locator("details.exact").evaluate("box => box.open"):
        page.locator("details.exact > summary").click()
    page.locator("details.exact tbody tr").first.wait_for()  # filled once it is open
    heads = page.locator("details.exact thead th").all_inner_texts()
    return [
        dict(zip(heads, row.locator("td").all_inner_texts(), strict=True))
        for row in page.locator("details.exact tbody tr").all()
    ]


def test_bars_show_the_attention_of_the_capture(page_of, capture_of):
    page = page_of("ft", "table")
    found = feature_attention(capture_of("ft"))
    shown = {row["column"]: float(row["attention"]) for row in rows_of(page)}
    assert set(shown) == set(found.names)
    for name, value in zip(found.names, found.mean(), strict=True):
        assert shown[name] == pytest.approx(float(value), rel=1e-4)
    assert "One row cannot be shuffled" in page.inner_text(".drawing")
    best = found.names[int(np.argmax(found.mean()))]
    assert f'reads "{best}" most' in page.inner_text(".summary")


def test_rows_are_chosen_and_columns_sorted(many, pages, settled):
    capture, server = many
    page = pages.open(f"{server.url}#view=table")
    settled(page)
    found = feature_attention(capture)
    assert [row["column"] for row in rows_of(page)] == [
        found.names[i] for i in np.argsort(-found.mean(), kind="stable")
    ]
    page.get_by_role("button", name="table", exact=True).click()
    settled(page)
    assert [row["column"] for row in rows_of(page)] == list(found.names)
    page.get_by_label("Rows").select_option("3")
    settled(page)
    assert [float(row["attention"]) for row in rows_of(page)] == pytest.approx(found.mean(2).tolist(), rel=1e-4)
    assert [row["value"] for row in rows_of(page)] == [str(capture.inputs[2][name]) for name in found.names]
    assert "row=3" in page.url and "sort=table" in page.url


def test_shuffled_columns_stand_beside_attention_with_their_rank_correlation(many, pages, settled):
    _, server = many
    page = pages.open(f"{server.url}#view=table")
    settled(page)
    text = page.inner_text("#panel")
    assert "Spearman" in text and "accuracy" in text and "Only the order of columns is meaningful" in text
    page.get_by_role("button", name="permutation").click()
    settled(page)
    drops = [float(row["lost when shuffled"].replace("\u2212", "-")) for row in rows_of(page)]
    assert drops == sorted(drops, reverse=True) and max(drops) > 0


def test_kinds_of_columns_are_grouped(many, pages, settled):
    _, server = many
    page = pages.open(f"{server.url}#view=table")
    settled(page)
    page.get_by_label("Numbers and categories apart").check()
    settled(page)
    assert [row["kind"] for row in rows_of(page)] == ["number", "number", "category", "category"]
    assert "Numbers: 2 columns" in page.inner_text(".drawing")


def test_the_map_of_columns_is_walked_by_keys(page_of, settled):
    page = page_of("ft", "table")
    grid = page.get_by_role("grid")
    grid.focus()
    page.keyboard.press("ArrowDown")
    settled(page)
    page.keyboard.press("ArrowRight")
    settled(page)
    assert "reading=" in page.url and "read=" in page.url
    assert " reads " in page.inner_text(".readout")
