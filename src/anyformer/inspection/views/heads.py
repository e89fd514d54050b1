"""Overview of all heads: a thumbnail map and statistics for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.inspection.answer import Query, ViewAnswer, as_bytes
from anyformer.inspection.head_stats import STATISTICS, head_statistics
from anyformer.inspection.overview import overview

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Heads"
READ = "One small map a head, layers downward, all in one range of colours; open one to see it large."
CLAIM = "head-count"
TOUR = (2, "Every head at a glance. Sort them by what they do, and open one that looks interesting.")
NOTES = {
    "sizes": "These heads have maps of different sizes: choose heads of one kind of layer.",
    "brush": "Drag over the bars, or move the ends, to see a part.",
}
SIDE = 128  # most cells per side of a thumbnail
MOST = 2**20  # bytes of all thumbnails: many are displayed small and need few pixels


def applies(capture: Capture) -> str | None:
    return None if any(site.kind != "other" for site in capture.sites) else "This model has no attention heads."


def answer(capture: Capture, query: Query) -> ViewAnswer:
    """Thumbnails of every head as one array of bytes on a square-root scale, and statistics per head."""
    if ("heads",) not in capture.kept:
        capture.keep(("heads",), thumbnails(capture))
    pictures, entries, top = capture.kept["heads",]
    statistics = capture.kept.get(("head statistics",))
    if statistics is None:
        statistics = head_statistics(capture)
        capture.keep(("head statistics",), statistics)
    facts = {"sites": entries, "top": top, "statistics": statistics, "names": STATISTICS}
    return ViewAnswer(facts, {"thumbnails": pictures})


def thumbnails(capture: Capture) -> tuple[np.ndarray, list[dict[str, Any]], float]:
    """All pooled maps, smaller if there are many, with the start of each site's maps and the largest weight."""
    sites = [site for site in capture.sites if site.kind != "other"]
    side = side_for(capture, SIDE)
    pooled = [overview(capture, site.index, side=side).max.numpy() for site in sites]
    top = max((float(maps.max()) for maps in pooled if maps.size), default=1.0) or 1.0
    entries, start = [], 0
    for site, maps in zip(sites, pooled, strict=True):
        heads, rows, columns = maps.shape
        entries.append({"site": site.index, "label": site.label, "heads": heads, "groups": site.groups, "rows": rows,
                        "columns": columns, "start": start})  # fmt: skip
        start += maps.size
    coded = [as_bytes(np.sqrt(maps / top)).reshape(-1) for maps in pooled]
    return np.concatenate(coded), entries, top


def side_for(capture: Capture, side: int) -> int:
    """The largest side for which all thumbnails stay within MOST bytes."""
    while side > 16 and sum(cells_of(capture, site, side) for site in capture.sites) > MOST:
        side //= 2
    return side


def cells_of(capture: Capture, site: Any, side: int) -> int:
    lengths = [len(capture.axes[name]) for name in (site.queries, site.keys)]
    cells = 1
    for length in lengths:
        cells *= -(-length // -(-length // side))
    return int(site.heads) * cells
