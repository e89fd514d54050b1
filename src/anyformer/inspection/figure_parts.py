"""Shared parts of figures: selection, margins, colour bar, caption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from anyformer.errors import UserError
from anyformer.inspection.answer import Query
from anyformer.inspection.canvas import Drawing, Mark
from anyformer.inspection.grid import Caption, Matrix, cut, number_text
from anyformer.inspection.palette import SCALES
from anyformer.version import __version__

if TYPE_CHECKING:
    from anyformer.inspection.axis import TokenAxis
    from anyformer.inspection.capture_base import CaptureBase
    from anyformer.inspection.site import Site

EDGE = 20.0  # white around a figure
KEY = 72.0  # width of the colour bar, with the space before it
NARROWEST = 320.0  # least width, for the caption
MOST_DRAWN = 256  # tokens drawn one by one; more are pooled


@dataclass(frozen=True)
class Chosen:
    """The selection to draw; None leaves the choice to the figure."""

    site: int | None = None
    head: int | None = None
    query: int | None = None
    scale: str = "sqrt"


def framed(capture: CaptureBase, width: float, height: float, marks: list[Mark], what: Sequence[str]) -> Drawing:
    """Marks with margins and a caption below."""
    wide = max(width, NARROWEST)
    told = " · ".join((*what, f"anyformer {__version__}"))
    caption = Caption(capture.title, quoted(capture), told[:1].upper() + told[1:], wide)
    below = EDGE + height + 12
    drawing = Drawing(wide + 2 * EDGE, below + caption.height + EDGE, f"{capture.title}: {', '.join(what)}")
    drawing.marks = [*marks, *caption.draw(EDGE, below)]
    return drawing


def quoted(capture: CaptureBase) -> str:
    text: str = capture.given.text
    pixels = capture.given.pixels
    if pixels is not None and text.isidentifier():  # the name of a type: an image without a path
        return f"image of {pixels.shape[1]} x {pixels.shape[0]} pixels"
    return f'"{text}"' if capture.modality in ("text", "pair") else text


def with_key(capture: CaptureBase, matrix: Matrix, what: Sequence[str]) -> Drawing:
    """A matrix with its colour bar at the right."""
    marks, width, height = panels_beside([matrix])
    return framed(capture, width, height, marks, (*what, f"{SCALES[matrix.scale]}, 0 to {number_text(matrix.top)}"))


def panels_beside(panels: Sequence[Matrix]) -> tuple[list[Mark], float, float]:
    """Matrices in a row with their colour bars, aligned at the first row of cells; and the total width and height."""
    marks: list[Mark] = []
    above, x, high = max(panel.above for panel in panels), EDGE, 0.0
    for panel in panels:
        marks += panel.draw(x, EDGE + above - panel.above)
        key = min(max(panel.high, 40.0), 160.0)
        marks += panel.key(x + panel.left + panel.wide + 14, EDGE + above, key)
        x += max(panel.left + panel.wide + KEY, panel.width) + 12
        high = max(high, above + panel.high, above + key + 8)
    return marks, x - 12 - EDGE, high


def chosen_site(capture: CaptureBase, site: int | None, allowed: Callable[[Site], bool], what: str) -> Site:
    """The given site, or the first allowed one."""
    fitting = [one for one in capture.sites if allowed(one)]
    if site is None:
        if not fitting:
            raise UserError(f"this model has no {what}", where="picture", fix="use view='map' or view='heads'")
        return fitting[0]
    found = next((one for one in capture.sites if one.index == site), None)
    if found is None or found not in fitting:
        numbers = ", ".join(str(one.index) for one in fitting[:12])
        raise UserError(f"site {site} is not a {what}", where="site", fix=f"use one of {numbers}" if numbers else "")
    return found


def check_head(site: Site, head: int | None) -> None:
    if head is not None and not 0 <= head < site.heads:
        raise UserError(f"head {head} is out of range", where="head", fix=f"use 0 to {site.heads - 1}")


def head_words(site: Site, head: int | None) -> str:
    """The layer and head of a figure, named as on the page."""
    if head is not None:
        return f"{site.label}, head {head}"
    return site.label if site.heads == 1 else f"{site.label}, mean of {site.heads} heads"


def reading_token(axis: TokenAxis, query: int | None) -> tuple[int | None, str]:
    """The query token and its name: by default the class token, or the mean of all patches if there is none."""
    if query is not None:
        if not 0 <= query < len(axis):
            raise UserError(f"token {query} is out of range", where="query", fix=f"use 0 to {len(axis) - 1}")
        return query, cut(axis.tokens[query].text)
    return (0, cut(axis.tokens[0].text)) if axis.first > 0 else (None, "mean of all patches")


def cell_of(capture: CaptureBase, chosen: Chosen, kinds: Sequence[str] = ("self", "cross", "other")) -> Query:
    """The cell for a view: the selection, else where the page opens."""
    start = capture.start
    default = start.site if start.site < len(capture.sites) and capture.sites[start.site].kind in kinds else None
    wanted = default if chosen.site is None else chosen.site
    site = chosen_site(capture, wanted, lambda one: one.kind in kinds, "attention")
    check_head(site, chosen.head)
    axis = capture.axes[site.queries]
    query = min(start.query, len(axis) - 1) if chosen.query is None else reading_token(axis, chosen.query)[0]
    return Query(site.index, chosen.head or 0, query or 0, min(start.key, len(capture.axes[site.keys]) - 1))


def peak(*arrays: np.ndarray) -> float:
    return max((float(np.abs(array).max()) for array in arrays if array.size), default=0.0) or 1.0
