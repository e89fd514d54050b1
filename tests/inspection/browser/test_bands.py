"""Bands beside a map show the segments of a pair of texts; learned positions are drawn interpolated."""

from __future__ import annotations

import pytest
import torch

from anyformer import Attention, Block, Learned, Model, Pooled, Stack, Tokens
from anyformer.inspection import capture as capturing
from anyformer.inspection.capture import look
from anyformer.inspection.given import NetworkInputs
from anyformer.inspection.positions import position_arrays
from anyformer.inspection.server import serve_look
from tests.inspection.browser.conftest import without_faults
from tests.inspection.browser.reading import as_number, exact_rows

IDS = torch.arange(2, 11)[None]
SEGMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])


@pytest.fixture(scope="module")
def pair():
    """A server over a network that is told which of two texts a token is in."""
    embed = Tokens(vocab=31, position=Learned(length=12), segments=2)
    stack = Stack(width=32, depth=2, block=Block(mixer=Attention(heads=4)))
    network = Model(embed=embed, stack=stack, head=Pooled(classes=2)).build(seed=0).eval()
    with pytest.MonkeyPatch.context() as patch:  # nothing that is typed gives a bare network its segments
        given = NetworkInputs((IDS,), {"segments": SEGMENTS}, text="two texts")
        patch.setattr(capturing, "given_to", lambda *rest: given)
        capture = look(network, IDS)
    with serve_look(capture) as server:
        yield server


def test_every_token_has_a_band_of_its_segment(pair, pages, settled):
    page = pages.open(f"{pair.url}#view=map")
    settled(page)
    bands = page.locator(".heatmap rect.band")
    fills = bands.evaluate_all("all => all.map((each) => each.getAttribute('fill'))")
    assert len(fills) == 18 and fills[:4] == fills[9:13] and len(set(fills)) == 2
    assert fills[:9] == [fills[0]] * 4 + [fills[4]] * 5 and fills[0] != fills[4]
    assert "Bands: segment 0 is tokens 0 to 3, segment 1 tokens 4 to 8." in page.inner_text("#panel")
    boxes = bands.evaluate_all("all => all.map((each) => each.getBoundingClientRect().width)")
    sides = [boxes[:9], boxes[9:]]  # above the columns, and beside the rows
    assert max(map(max, sides)) > 5 and min(map(max, sides)) == pytest.approx(3)
    without_faults(page)


def test_one_text_has_none(page_of):
    page = page_of("bert", "map")
    assert page.locator(".heatmap rect.band").count() == 0 and "Bands" not in page.inner_text("#panel")


def test_learned_positions_of_a_text_are_drawn_between_those_that_were_trained(page_of, capture_of):
    page = page_of("bert", "positions", picture="interpolation", of=1)
    made = position_arrays("learned", capture_of("bert").model)
    shown = [as_number(row[1]) for row in exact_rows(page)]
    assert shown == pytest.approx(made.arrays["resized"][:, 1].tolist(), abs=1e-4) and len(shown) == 128
    assert f"Channel {made.facts['channels'][1]}" in page.inner_text(".summary")
    assert page.locator("path.curve").count() == 2


def test_positions_of_patches_are_drawn_as_trained_and_for_an_image_twice_as_large(page_of, capture_of):
    page = page_of("vit", "positions", picture="interpolation")
    made = position_arrays("learned", capture_of("vit").model)
    grids = page.get_by_role("grid")
    assert [(grids.nth(i).get_attribute("aria-rowcount"), grids.nth(i).get_attribute("aria-colcount"))
            for i in range(2)] == [("3", "4"), ("6", "8")]  # fmt: skip
    rows = exact_rows(page)
    shown = [[as_number(row[1 + i]) for row in rows] for i in range(6)]  # a column of the table is a row of patches
    wanted = made.arrays["resized"][:, 0].reshape(6, 8)
    for one, other in zip(shown, wanted.tolist(), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    without_faults(page)
