"""Pooled maps, tiles and strongest keys equal what the whole map gives; a long map is never there as a whole."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import UserError
from anyformer.inspection import overview as module
from anyformer.inspection.answer import Query
from anyformer.inspection.capture import look
from anyformer.inspection.overview import overview, strongest_keys, tile, whole_cells
from anyformer.inspection.views import heads
from tests.inspection import models


class Whole:
    """One site whose map is known as a whole; it notes how much of it was asked for at once."""

    def __init__(self, weights: Tensor) -> None:
        heads, queries, keys = weights.shape
        self.map, self.asked = weights, []
        self.sites = (SimpleNamespace(index=0, heads=heads, queries="q", keys="k"),)
        self.axes = {"q": SimpleNamespace(tokens=range(queries)), "k": SimpleNamespace(tokens=range(keys))}

    def weights(self, site: int, *, rows: slice = slice(None), row: int | None = None) -> Tensor:
        part = self.map[:, rows]
        self.asked.append(part.numel())
        return part


def whole(heads: int, queries: int, keys: int, *, causal: bool = False) -> Whole:
    scores = 3 * torch.randn(heads, queries, keys, generator=torch.Generator().manual_seed(0))
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(1).bool(), -torch.inf)
    return Whole(scores.softmax(-1))


def naive(weights: Tensor, step: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Max and mean of every cell by slicing, one cell at a time."""
    heads, queries, keys = weights.shape
    cells = math.ceil(queries / step[0]), math.ceil(keys / step[1])
    largest, mean = torch.zeros(heads, *cells), torch.zeros(heads, *cells)
    for i in range(cells[0]):
        for j in range(cells[1]):
            cell = weights[:, i * step[0] : (i + 1) * step[0], j * step[1] : (j + 1) * step[1]].double()
            largest[:, i, j], mean[:, i, j] = cell.amax((1, 2)), cell.mean((1, 2))
    return largest, mean


@pytest.mark.parametrize("entries", [1, 7, 300, 10**6])
@pytest.mark.parametrize(
    "shape, side",
    [((2, 10, 10), 4), ((3, 7, 12), 5), ((1, 5, 5), 256), ((2, 33, 1), 8), ((2, 1, 33), 8), ((1, 64, 64), 8)],
)
def test_an_overview_equals_every_cell_of_the_whole_map(
    shape: tuple[int, int, int], side: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENTRIES", entries)
    source = whole(*shape)
    seen = overview(source, 0, side=side)
    largest, mean = naive(source.map, seen.step)
    assert seen.max.shape == largest.shape and max(seen.max.shape[1:]) <= side
    assert torch.equal(seen.max, largest)
    torch.testing.assert_close(seen.mean, mean, atol=1e-7, rtol=1e-6)
    assert max(source.asked) <= max(entries, shape[0] * shape[2])
    assert sum(source.asked) == source.map.numel()  # every weight was read once
    if seen.max.shape[2] > 1:
        assert not torch.equal(seen.max.roll(1, 2), largest)  # control


def test_the_mean_keeps_the_mass_of_every_row() -> None:
    source = whole(2, 50, 30)
    seen = overview(source, 0, side=16)
    queries = torch.tensor([len(range(s, min(s + seen.step[0], 50))) for s in range(0, 50, seen.step[0])])
    keys = torch.tensor([len(range(s, min(s + seen.step[1], 30))) for s in range(0, 30, seen.step[1])])
    mass = (seen.mean.double() * queries[:, None] * keys).sum((1, 2))
    torch.testing.assert_close(mass, torch.full((2,), 50.0, dtype=torch.float64), atol=1e-4, rtol=0)


def test_blocks_cover_every_row_once_and_stay_within_cells() -> None:
    for queries, step, most in [(10, 3, 100), (10, 3, 4), (10, 3, 2), (1, 1, 1), (100, 7, 15), (9, 9, 1)]:
        blocks = list(whole_cells(queries, step, most))
        assert [i for b in blocks for i in range(b.start, b.stop)] == list(range(queries))
        assert all(b.stop - b.start <= most for b in blocks)
        for b in blocks:  # a block starts at a cell's start, or lies within one
            assert b.start % step == 0 or b.start // step == (b.stop - 1) // step


@pytest.mark.parametrize(
    "rows, keys", [(slice(None), slice(None)), (slice(3, 9), slice(2, 4)), (slice(-2, None), slice(5, 99))]
)
def test_a_tile_is_the_same_cells_of_the_whole_map(rows: slice, keys: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES", 50)
    source = whole(3, 12, 10, causal=False)
    assert torch.equal(tile(source, 0, 2, rows, keys), source.map[2, rows, keys])
    assert not torch.equal(tile(source, 0, 1, rows, keys), source.map[2, rows, keys])  # control: another head
    assert max(source.asked) <= 50


def test_strongest_keys_and_the_rest_are_the_whole_row() -> None:
    source = whole(2, 20, 40, causal=True)
    source.map[0, 3] = 0.0  # a query that sees nothing
    found = strongest_keys(source, 0)
    ordered = source.map.sort(-1, descending=True)
    assert torch.equal(found.weights, ordered.values[..., :16])
    assert torch.equal(source.map.gather(-1, found.keys), found.weights)
    torch.testing.assert_close(found.rest, ordered.values[..., 16:].sum(-1), atol=1e-6, rtol=0)
    assert found.rest[0, 3] == 0 and found.weights[0, 3].sum() == 0
    assert found.rest.max() > 1e-3  # control: not all rows end within sixteen keys


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: tile(s, 1, 0),
        lambda s: tile(s, 0, 9),
        lambda s: tile(s, 0, 0, slice(50, 60)),
        lambda s: overview(s, -1),
        lambda s: strongest_keys(s, 0, rows=slice(5, 5)),
    ],
)
def test_what_is_not_there_is_refused(ask: Any) -> None:
    with pytest.raises(UserError):
        ask(whole(2, 4, 4))


@pytest.mark.parametrize("kind", models.KINDS)
def test_overviews_of_a_real_capture_are_its_own_maps(kind: str) -> None:
    capture = look(models.predictor(kind), models.inputs(kind))
    for site in capture.sites:
        weights = capture.weights(site.index)
        seen = overview(capture, site.index, side=4)
        torch.testing.assert_close(seen.max, naive(weights, seen.step)[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(tile(capture, site.index, 1), weights[1], atol=1e-6, rtol=1e-5)
        found = strongest_keys(capture, site.index, count=1).weights[..., 0]
        torch.testing.assert_close(found, weights.amax(-1), atol=1e-6, rtol=1e-5)


def test_a_small_budget_makes_small_blocks() -> None:
    model, ids = models.gpt().model, torch.arange(400)[None] % 200
    large, small = look(model, ids), look(model, ids, budget="1100KB")
    with pytest.raises(UserError, match="budget"):
        small.weights(0)
    for one, other in (
        (overview(small, 0, side=64).max, overview(large, 0, side=64).max),
        (strongest_keys(small, 1).weights, strongest_keys(large, 1).weights),
    ):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


LONG = """
import re, torch
from pathlib import Path
from anyformer import LM, Attention, Block, Model, Rope, Stack, Tokens
from anyformer.inspection.capture import look
from anyformer.inspection.overview import overview, strongest_keys, tile
# Not getrusage: what it says of a new process can be its parent's.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
block = Block(mixer=Attention(heads=2), relative=Rope())
net = Model(embed=Tokens(vocab=64), stack=Stack(width=16, depth=1, causal=True, block=block), head=LM()).build(seed=0)
ids = torch.randint(0, 64, (1, 16384), generator=torch.Generator().manual_seed(0))
look(net, ids[:, :512]).weights(0)  # what libraries allocate at first use
before = peak()
capture = look(net, ids)
seen = overview(capture, 0)
rows = strongest_keys(capture, 0, rows=slice(16000, 16064))
cell = tile(capture, 0, 1, slice(16000, 16256), slice(8000, 8256))
after = peak()
assert seen.max.shape == (2, 256, 256) and seen.step == (64, 64) and cell.shape == (256, 256)
assert abs(float((seen.mean.double() * 64 * 64).sum()) - 2 * 16384) < 0.1, "every row has a mass of one"
direct = capture.weights(0, rows=slice(16000, 16256))[1, :, 8000:8256]
assert (cell - direct).abs().max() < 1e-6
print((after - before) * 1024)
whole = torch.ones(4, 16384, 2048)  # control: half a map would be seen
print((peak() - before) * 1024)
"""


def test_16k_tokens_take_little_memory() -> None:
    """One head's whole map would be a gigabyte; the pass, its overview, rows and a tile stay under 400 MB."""
    made = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    taken, with_half_a_map = map(int, made.stdout.split())
    assert taken < 400 * 10**6 < with_half_a_map


def test_many_heads_have_smaller_thumbnails() -> None:
    """So that a page of 144 heads is not mostly thumbnails: a megabyte of them at most, before compression."""
    ids = torch.randint(0, 300, (1, 128), generator=torch.Generator().manual_seed(0))
    few, many = (look(models.gpt(depth=depth, heads=12, width=48).model, ids) for depth in (2, 12))
    sizes = [heads.answer(capture, Query()).arrays["thumbnails"].size for capture in (few, many)]
    assert sizes == [24 * 128 * 128, 144 * 64 * 64] and sizes[1] <= heads.MOST
