"""Statistics of attention heads: entropy, weight on the previous token, on the first token, and so on.

All are means over the queries of one map (H,T,S), without fully masked queries (all weights 0).

    entropy     in bits: 0 for a single token, log2(S) for uniform attention
    previous    weight on the token before the query
    first       weight on the first token, over all queries but the first
    distance    weighted mean distance of query and key, in tokens, or in patches of an image
    induction   weight on tokens that followed an earlier occurrence of the query's token
    diagonal    weight on the query's own token
    largest     the largest weight of a query

Maps are read in blocks of rows, so that a long text never needs a T x S tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from anyformer.inspection.axis import TokenAxis
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.site import Site

# The name of each, its description, and its unit.
STATISTICS = {
    "entropy": ("entropy", "entropy in bits", "bits"),
    "previous": ("previous token", "weight on the token before", "weight"),
    "first": ("first token", "weight on the first token", "weight"),
    "distance": ("distance", "mean distance", "tokens"),
    "induction": ("induction", "weight on what followed the same token earlier", "weight"),
    "diagonal": ("own token", "weight on its own token", "weight"),
    "largest": ("largest weight", "largest weight of a query", "mean over queries"),
}
ENTRIES = 2**20  # elements of a map read at once


class HeadSums:
    """Sums over the rows of one map, accumulated in blocks.

    `ids` (S,) are the token ids, for induction; `distances` (T,S) the distance of each pair, by default in tokens, nan
    if undefined. `aligned`: queries and keys are the same tokens, the queries the last T of S keys.
    """

    def __init__(
        self, heads: int, queries: int, keys: int, *, aligned: bool = True, ids: Tensor | None = None,
        distances: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.queries, self.keys, self.aligned = queries, keys, aligned
        self.before = keys - queries  # keys of earlier tokens, from a KV cache or a prefix
        self.ids, self.distances = ids, distances
        self.sums = {name: torch.zeros(heads, dtype=torch.float64) for name in STATISTICS}
        self.counts = {name: torch.zeros(heads, dtype=torch.float64) for name in STATISTICS}

    def add(self, weights: Tensor, start: int = 0) -> None:
        """Add rows (H,t,S) from `start` on."""
        weights, device = weights.detach().float(), weights.device
        live = weights.sum(-1) > 0.5  # (H,t); a row sums to 1 or, if fully masked, to 0
        count = weights.shape[1]
        self.note("entropy", torch.special.entr(weights).sum(-1) / math.log(2), live)
        self.note("largest", weights.amax(-1), live)
        if not self.aligned:
            if self.distances is not None:
                self.note_distance(weights, live, self.distances[start : start + count].to(device))
            return
        row = torch.arange(count, device=device)
        place = row + start + self.before  # (t,): the index of each query among the keys
        self.note("diagonal", weights[:, row, place], live)
        later = place > 0  # (t,)
        self.note("previous", weights[:, row, (place - 1).clamp(min=0)], live & later)
        self.note("first", weights[:, :, 0], live & later)
        if self.distances is not None:
            apart = self.distances[start : start + count].to(device)
        else:
            apart = (place[:, None] - torch.arange(self.keys, device=device)).abs().float()  # (t,S)
        self.note_distance(weights, live, apart)
        if self.ids is not None:
            wanted = follows_same(self.ids.to(device), place)  # (t,S)
            self.note("induction", (weights * wanted).sum(-1), live & wanted.any(-1))

    def note(self, name: str, values: Tensor, counted: Tensor) -> None:
        values, counted = values.cpu().double(), counted.cpu()  # one number per row; the maps stay on their device
        self.sums[name] += values.masked_fill(~counted, 0.0).sum(-1)
        self.counts[name] += counted.sum(-1)

    def note_distance(self, weights: Tensor, live: Tensor, apart: Tensor) -> None:
        known = apart.isfinite()  # (t,S)
        mass = (weights * known).sum(-1)  # (H,t)
        mean = (weights * apart.nan_to_num(0.0)).sum(-1) / mass.clamp(min=1e-12)
        self.note("distance", mean, live & (mass > 0))

    def means(self) -> dict[str, list[float | None]]:
        """Every statistic, one number per head."""
        means = {name: (self.sums[name] / self.counts[name]).tolist() for name in STATISTICS}  # nan: no row counted
        return {name: [None if value != value else value for value in values] for name, values in means.items()}


def follows_same(ids: Tensor, place: Tensor) -> Tensor:
    """The keys that follow an earlier occurrence of a query's token: bool (t,S) for queries at `place` (t,).

    In "a b c a" that is b for the last token. The query itself and later tokens never count.
    """
    keys = torch.arange(len(ids), device=ids.device)
    same = torch.zeros(len(place), len(ids), dtype=torch.bool, device=ids.device)
    same[:, 1:] = ids[place][:, None] == ids[None, :-1]  # key j follows an occurrence at j - 1
    return same & (keys < place[:, None])


def statistics_of(
    weights: Tensor, *, aligned: bool = True, ids: Tensor | None = None, distances: Tensor | None = None
) -> dict[str, list[float | None]]:
    """Statistics of a whole map (H,T,S).

    >>> found = statistics_of(torch.eye(4)[None])
    >>> found["diagonal"], found["entropy"], found["previous"], found["induction"]
    ([1.0], [0.0], [0.0], [None])
    """
    sums = HeadSums(*weights.shape, aligned=aligned, ids=ids, distances=distances)
    sums.add(weights)
    return sums.means()


def head_statistics(capture: Capture, sites: Iterable[int] | None = None) -> list[dict[str, Any]]:
    """One row per head of all sites, or of `sites`: site, label, layer, head, and one number per statistic.

    None is a statistic that is undefined there, such as the previous token in cross-attention.
    """
    wanted = range(len(capture.sites)) if sites is None else sites
    return [row for site in wanted for row in site_statistics(capture, site)]


def site_statistics(capture: Capture, index: int) -> list[dict[str, Any]]:
    """The statistics of the heads of one site; empty for a mixer without attention."""
    site = capture.sites[index]
    if site.kind == "other":
        return []
    queries, keys = len(capture.axes[site.queries].tokens), len(capture.axes[site.keys].tokens)
    sums = None
    step = max(1, ENTRIES // max(1, site.heads * keys))
    for start in range(0, queries, step):
        rows = slice(None) if step >= queries else slice(start, min(start + step, queries))
        block = capture.weights(index, rows=rows)  # (H,t,S)
        if sums is None:
            sums = HeadSums(block.shape[0], queries, block.shape[2], **pairs_of(capture, site, block.shape[2]))
        sums.add(block, start)
    if sums is None:
        return []
    means = sums.means()
    return [
        {"site": index, "label": site.label, "layer": site.layer, "head": head}
        | {name: means[name][head] for name in STATISTICS}
        for head in range(site.heads)
    ]


def pairs_of(capture: Capture, site: Site, keys: int) -> dict[str, Any]:
    """Relation of a site's queries and keys: whether they are the same tokens, their ids, and patch distances."""
    query_axis, key_axis = capture.axes[site.queries], capture.axes[site.keys]
    aligned = site.kind == "self" and keys >= len(query_axis.tokens)
    ids = [token.id for token in key_axis.tokens]
    known = aligned and len(ids) == keys and all(one is not None for one in ids)
    on_grid = key_axis.grid is not None and query_axis.grid is not None and len(key_axis.tokens) == keys
    return {
        "aligned": aligned,
        "ids": torch.tensor(ids) if known else None,
        "distances": patch_distances(query_axis, key_axis) if on_grid else None,
    }


def patch_distances(queries: TokenAxis, keys: TokenAxis) -> Tensor:
    """Distances (T,S) in patches, nan if either token is not a patch."""
    return torch.cdist(patch_places(queries), patch_places(keys))


def patch_places(axis: TokenAxis) -> Tensor:
    """Row and column (T,2) of each patch, nan for other tokens."""
    assert axis.grid is not None
    rows, columns = axis.grid
    places = torch.full((len(axis.tokens), 2), torch.nan)
    cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2).float()
    places[axis.first : axis.first + len(cells)] = cells
    return places
