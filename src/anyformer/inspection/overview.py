"""Maps of long inputs: pooled overviews, exact tiles and the strongest keys, from a few rows of a map at a time.

All heads of 16,384 tokens at once are a gigabyte each; here no more than `ENTRIES` weights exist at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import UserError

ENTRIES = 2**22  # weights made at once: 16 MiB of float32
SIDE = 256  # cells of an overview to a side, at most
STRONGEST = 16  # keys named of each row


class MapSource(Protocol):
    """What has maps: a capture."""

    @property
    def sites(self) -> tuple[Any, ...]: ...
    @property
    def axes(self) -> dict[str, Any]: ...
    def weights(self, site: int, *, rows: slice = ..., row: int | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Overview:
    """Every head of a site in at most `SIDE` x `SIDE` cells; a cell covers `step` queries and keys."""

    max: Tensor  # (H,P,R) the largest weight under a cell
    mean: Tensor  # (H,P,R) their mean; times the pairs under each cell it sums to the rows of the map
    step: tuple[int, int]  # queries, keys
    shape: tuple[int, int]  # of the whole map: T, S


@dataclass(frozen=True)
class StrongestKeys:
    """The largest weights of each row, largest first, and what all the other keys have together."""

    keys: Tensor  # (H,t,n) which keys
    weights: Tensor  # (H,t,n)
    rest: Tensor  # (H,t)


def map_shape(capture: MapSource, site: int) -> tuple[int, int, int]:
    """Heads, queries and keys of a site's map."""
    if not 0 <= site < len(capture.sites):
        raise UserError(f"site {site} is out of range", where="site", fix=f"use 0 to {len(capture.sites) - 1}")
    one = capture.sites[site]
    return one.heads, len(capture.axes[one.queries].tokens), len(capture.axes[one.keys].tokens)


def overview(capture: MapSource, site: int, *, side: int = SIDE, row: int | None = None) -> Overview:
    """The pooled maps of all heads of one site."""
    heads, queries, keys = map_shape(capture, site)
    steps = -(-queries // side), -(-keys // side)
    cells = -(-queries // steps[0]), -(-keys // steps[1])
    largest, total = torch.zeros(heads, *cells), torch.zeros(heads, *cells, dtype=torch.float64)
    for rows in whole_cells(queries, steps[0], rows_at_once(capture, heads, keys)):
        weights = capture.weights(site, rows=rows, row=row)  # (H,t,S)
        first = rows.start // steps[0]
        for reduce, into in ((Tensor.amax, largest), (Tensor.sum, total)):
            block = pooled(pooled(weights, steps[1], reduce).mT, steps[0], reduce).mT  # (H,p,R)
            at = into[:, first : first + block.shape[1]]
            torch.maximum(at, block, out=at) if into is largest else at.add_(block)
    counts = [F.pad(torch.ones(n), (0, cells[i] * steps[i] - n)).view(-1, steps[i]).sum(-1) for i, n in
              enumerate((queries, keys))]  # fmt: skip
    return Overview(largest, (total / torch.outer(*counts)).float(), steps, (queries, keys))


def pooled(x: Tensor, step: int, reduce: Any) -> Tensor:
    """The last axis in cells of `step`; a last cell that is not full has zeros, which change no sum and no maximum."""
    padded = F.pad(x, (0, -x.shape[-1] % step))
    return reduce(padded.unflatten(-1, (-1, step)), -1)


def whole_cells(queries: int, step: int, most: int) -> Iterator[slice]:
    """Blocks of at most `most` rows: of several whole cells or, where a cell is larger, within one."""
    outer = max(step, most // step * step)
    for start in range(0, queries, outer):
        stop = min(start + outer, queries)
        for first in range(start, stop, min(outer, max(most, 1))):
            yield slice(first, min(first + most, stop))


def rows_at_once(capture: MapSource, heads: int, keys: int) -> int:
    """Rows of a map that may be there at once: by our own bound, and by the capture's budget where that is small."""
    budget = getattr(capture, "budget", None)
    entries = ENTRIES if budget is None else min(ENTRIES, budget // 4)
    return max(1, entries // (heads * keys))


def row_runs(capture: MapSource, site: int, rows: slice) -> Iterator[slice]:
    """The wanted rows of a site, few enough at a time."""
    heads, queries, keys = map_shape(capture, site)
    start, stop, _ = rows.indices(queries)
    most = rows_at_once(capture, heads, keys)
    for first in range(start, stop, most):
        yield slice(first, min(first + most, stop))


def tile(
    capture: MapSource, site: int, head: int, rows: slice = slice(None), keys: slice = slice(None), *,
    row: int | None = None,
) -> Tensor:  # fmt: skip
    """The exact weights (t,s) of one head, some queries and some keys."""
    heads = map_shape(capture, site)[0]
    if not 0 <= head < heads:
        raise UserError(f"head {head} is out of range", where="head", fix=f"use 0 to {heads - 1}")
    runs = [capture.weights(site, rows=run, row=row)[head, :, keys] for run in row_runs(capture, site, rows)]
    if not runs:
        raise UserError(f"no query is in {rows.start}:{rows.stop}", where="rows", fix="name a query of the map")
    return torch.cat(runs)


def strongest_keys(
    capture: MapSource, site: int, *, rows: slice = slice(None), count: int = STRONGEST, row: int | None = None
) -> StrongestKeys:
    """The `count` largest weights of each row of every head, with the mass that is left."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for run in row_runs(capture, site, rows):
        weights = capture.weights(site, rows=run, row=row)  # (H,t,S)
        top = weights.topk(min(count, weights.shape[-1]), -1)
        # The mass left is summed, not taken from 1: a row that sees nothing has none.
        rest = weights.double().scatter(-1, top.indices, 0.0).sum(-1).float()
        found.append((top.indices, top.values, rest))
    if not found:
        raise UserError(f"no query is in {rows.start}:{rows.stop}", where="rows", fix="name a query of the map")
    return StrongestKeys(*(torch.cat(parts, 1) for parts in zip(*found, strict=True)))
