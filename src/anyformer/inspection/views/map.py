"""The attention map of one head: weights, scores before the softmax, or weights times the norms of the values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.attend import score_steps, spread
from anyformer.inspection.answer import Query, ViewAnswer, as_bytes
from anyformer.inspection.axis import segment_words
from anyformer.inspection.overview import SIDE, STRONGEST, map_shape, overview, row_runs

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Attention map"
READ = "Each row is a query and shows where it reads: the stronger a cell, the more it takes of that key's value."
CLAIM = "soft-dictionary"
TOUR = (1, "The map. Each row is a token and shows where one head reads. Click a cell; the arrow keys move it.")
NOTES = {
    "other": " is no attention: a cell is how strongly one token depends on another, the mean size over channels, each "
    "row divided by its sum.",
    "faint": "Lines below a fiftieth of that are left out.",
    "bars": "Bars at the right: entropy of a row; below: mean weight of a key.",
    "zoom": "Keys + − 0, two fingers, or the wheel on the focused map.",
}
SHOWN = ("weights", "scores", "values")
AXES = 1024  # tokens up to which a whole map is computed at once
EXPORTED_BYTES = 800_000  # of maps in an exported page, before compression


def applies(capture: Capture) -> str | None:
    return None if capture.sites else "This model has no layer that mixes tokens."


def answer(capture: Capture, query: Query) -> ViewAnswer:
    """The map, or a window of it with a pooled overview if a side has more than 256 tokens."""
    site = capture.site(query.site)
    show = query.choice("show", "weights", SHOWN)
    over = query.choice("over", "head", ("head", "mean"))
    heads, queries, keys = map_shape(capture, site.index)
    long = max(queries, keys) > SIDE
    row = query.integer("row", centred(query.query, queries), 0, max(0, queries - 1)) if long else 0
    column = query.integer("column", centred(query.key, keys), 0, max(0, keys - 1)) if long else 0
    rows, columns = slice(row, min(row + SIDE, queries)), slice(column, min(column + SIDE, keys))
    has_scores = capture.inputs_of(site.index) is not None
    show = show if has_scores else "weights"
    chosen = None if over == "mean" else query.head
    values = window(capture, site.index, chosen, show, rows, columns)
    facts: dict[str, Any] = {
        "site": site.index, "heads": heads, "shape": [queries, keys], "row": row, "column": column, "long": long,
        "show": show, "has_scores": has_scores, "over": over, "causal": site.causal, "kind": site.kind,
        "mixer": site.mixer, "segments": segment_words(capture.axes[site.keys]),
    }  # fmt: skip
    arrays = {"map": values.numpy()}
    if long:
        pooled = kept_overview(capture, site.index)
        whole = pooled.max.mean(0) if chosen is None else pooled.max[chosen]
        top = float(whole.max()) or 1.0
        facts |= {"step": list(pooled.step), "top": top, **strongest(capture, site.index, chosen, query.query)}
        arrays["overview"] = as_bytes((whole / top).sqrt().numpy())
    return ViewAnswer(facts, arrays)


def strongest(capture: Capture, site: int, head: int | None, query: int) -> dict[str, Any]:
    """The strongest keys of a whole row, inside the window or not, and the total weight of all others."""
    rows = capture.weights(site, rows=slice(query, query + 1))[:, 0]  # (H,S)
    row = rows.mean(0) if head is None else rows[head]
    best = row.topk(min(STRONGEST, len(row)))
    pairs = [[key, weight] for key, weight in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return {"strongest": pairs, "rest": float(row.double().sum() - best.values.double().sum())}


def centred(place: int, length: int) -> int:
    """The start of the window around a token, quantised so that it stays while the cell moves within it."""
    step = SIDE // 2
    return max(0, min((place - step // 2) // step * step, length - SIDE))


def kept_overview(capture: Capture, site: int) -> Any:
    key = ("overview", site, capture.row)
    if key not in capture.kept:
        capture.keep(key, overview(capture, site))
    return capture.kept[key]


def window(capture: Capture, site: int, head: int | None, show: str, rows: slice, columns: slice) -> Tensor:
    """The values (t,s) of a window, nan where masked; for all heads their mean."""
    found = []
    for run in row_runs(capture, site, rows):
        block = {"weights": weight_rows, "scores": score_rows, "values": value_rows}[show](
            capture, site, run
        )  # (H,t,S)
        found.append(block.mean(0) if head is None else block[head])
    return torch.cat(found)[:, columns].contiguous()


def weight_rows(capture: Capture, site: int, rows: slice) -> Tensor:
    """Weights (H,t,S), nan where masked, to distinguish that from a weight of 0."""
    whole = len(capture.axes[capture.sites[site].queries]) <= AXES
    # The capture caches a whole map: other heads and rows of this view are then slices of it.
    weights = capture.weights(site)[:, rows] if whole else capture.weights(site, rows=rows)
    seen = visible_rows(capture, site, rows)
    return weights if seen is None else weights.masked_fill(~seen, torch.nan)


def score_rows(capture: Capture, site: int, rows: slice) -> Tensor:
    """The inputs of the softmax, (H,t,S), nan where masked."""
    p = capture.inputs_of(site)
    assert p is not None
    with torch.no_grad():
        steps = score_steps(p.q, p.k, p.scores, rows)
    scores = steps.masked[0].float().cpu()
    return scores.masked_fill(scores == -torch.inf, torch.nan)


def value_rows(capture: Capture, site: int, rows: slice) -> Tensor:
    """Weights times the norm of the values, |w v|, (H,t,S): a key with a short value vector adds little."""
    p = capture.inputs_of(site)
    assert p is not None
    weights = weight_rows(capture, site, rows)
    lengths = spread(p.v, weights.shape[0])[0].float().norm(dim=-1).cpu()  # (H,S)
    return weights * lengths[:, None]


def visible_rows(capture: Capture, site: int, rows: slice) -> Tensor | None:
    """The mask of visible keys, bool, broadcasts to (H,t,S); None for all."""
    p = capture.inputs_of(site)
    if p is None:
        return None
    seen = p.scores.visible(rows)
    return None if seen is None else seen[0].cpu()


def exported(capture: Capture) -> Iterator[Query]:
    """Every head of every site up to the size limit, the first heads of all sites before the second ones."""
    shapes = [map_shape(capture, site.index) for site in capture.sites]
    taken = 0
    for head in range(max((heads for heads, _, _ in shapes), default=0)):
        for site, (heads, queries, keys) in enumerate(shapes):
            if head < heads:
                taken += 4 * min(queries, SIDE) * min(keys, SIDE)
                if taken > EXPORTED_BYTES:
                    return
                yield Query(site, head)
