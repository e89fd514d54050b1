"""Maps of long inputs: pooled overviews, exact tiles and the strongest keys, from a few rows of a map at a time.

At 16,384 tokens the map of a head takes a gigabyte; here at most `ENTRIES` weights are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import UserError

ENTRIES = 2**22  # weights in memory at once: 16 MiB of float32
SIDE = 256  # most cells per side of an overview
STRONGEST = 16  # keys listed for each row


class MapSource(Protocol):
    """A source of maps, such as a capture."""

    @property
    def sites(self) -> tuple[Any, ...]: ...
    @property
    def axes(self) -> dict[str, Any]: ...
    def weights(self, site: int, *, rows: slice = ..., row: int | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Overview:
    """Every head of a site in at most `SIDE` x `SIDE` cells; a cell covers `step` queries and keys."""

    max: Tensor  # (H,P,R) the largest weight in a cell
    mean: Tensor  # (H,P,R) the mean weight in a cell
    step: tuple[int, int]  # queries, keys
    shape: tuple[int, int]  # of the whole map: T, S


@dataclass(frozen=True)
class StrongestKeys:
    """The largest weights of each row, largest first, and the total weight of all other keys."""

    keys: Tensor  # (H,t,n) indices
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
    """Pool the last axis in cells of `step`; zero padding of the last cell changes neither sum nor maximum."""
    padded = F.pad(x, (0, -x.shape[-1] % step))
    return reduce(padded.unflatten(-1, (-1, step)), -1)


def whole_cells(queries: int, step: int, most: int) -> Iterator[slice]:
    """Blocks of at most `most` rows: several whole cells or, if a cell is larger, parts of one."""
    outer = max(step, most // step * step)
    for start in range(0, queries, outer):
        stop = min(start + outer, queries)
        for first in range(start, stop, min(outer, max(most, 1))):
            yield slice(first, min(first + most, stop))


def rows_at_once(capture: MapSource, heads: int, keys: int) -> int:
    """Rows of a map that may be in memory at once, by ENTRIES and by the capture's budget."""
    budget = getattr(capture, "budget", None)
    entries = ENTRIES if budget is None else min(ENTRIES, budget // 4)
    return max(1, entries // (heads * keys))


def row_runs(capture: MapSource, site: int, rows: slice) -> Iterator[slice]:
    """The requested rows of a site, in blocks that fit the memory bound."""
    heads, queries, keys = map_shape(capture, site)
    start, stop, _ = rows.indices(queries)
    most = rows_at_once(capture, heads, keys)
    for first in range(start, stop, most):
        yield slice(first, min(first + most, stop))


def tile(
    capture: MapSource, site: int, head: int, rows: slice = slice(None), keys: slice = slice(None), *,
    row: int | None = None,
) -> Tensor:  # fmt: skip
    """The exact weights (t,s) of one head for some queries and keys."""
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
    """The `count` largest weights of each row of every head, and the rest of the weight."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for run in row_runs(capture, site, rows):
        weights = capture.weights(site, rows=run, row=row)  # (H,t,S)
        top = weights.topk(min(count, weights.shape[-1]), -1)
        # The rest is summed, not taken from 1: a fully masked row has none.
        rest = weights.double().scatter(-1, top.indices, 0.0).sum(-1).float()
        found.append((top.indices, top.values, rest))
    if not found:
        raise UserError(f"no query is in {rows.start}:{rows.stop}", where="rows", fix="name a query of the map")
    return StrongestKeys(*(torch.cat(parts, 1) for parts in zip(*found, strict=True)))
