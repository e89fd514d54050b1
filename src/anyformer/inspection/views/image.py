"""Attention over an image: a token's attention to the patches, for every head, on the patch grid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer, as_bytes
from anyformer.inspection.place_maps import map_attention, shown_image, token_maps

if TYPE_CHECKING:
    from anyformer.inspection.axis import TokenAxis
    from anyformer.inspection.capture import Capture, Site

TITLE = "Image attention"
READ = (
    "The strength of the colour on a patch is the weight that the chosen token gives it. "
    "Move to a patch to see where it looks itself."
)
CLAIM = "receptive-field"
TOUR = (5, "The image. Where a patch, or the class token, looks.")
PARTS = ("maps", "picture", "rows")
MOST_ROWS = 2**20  # most weights sent at once for hovering over patches: one byte each


def applies(capture: Capture) -> str | None:
    if shown_image(capture) is None:
        return "This model was given no image and no sound."
    if not patch_sites(capture) and token_maps(capture) is None and map_attention(capture) is None:
        return "No layer of this model looks at patches."
    return None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    """`part=picture`: the image; `part=rows`: all rows of one head; else the maps of all heads for one token."""
    part = query.choice("part", "maps", PARTS)
    if part == "picture":
        return picture(capture)
    if not patch_sites(capture):
        return places(capture, query)
    return rows_of_head(capture, query) if part == "rows" else maps_of_token(capture, query)


def exported(capture: Capture) -> Iterable[Query]:
    """The picture, and every layer for the token that a page opens with."""
    from anyformer.inspection.manifest import start_of

    start = start_of(capture)
    found = [Query(options={"part": "picture"})]
    if not patch_sites(capture):
        rounds = len(token_maps(capture) or ())
        return [*found, Query(), *(Query(options={"round": str(i + 1)}) for i in range(rounds - 1))]
    return found + [
        Query(site=site.index, query=min(start.query, len(capture.axes[site.queries]) - 1))
        for site in patch_sites(capture)
    ]


# ---------------------------------------------------------------- layers that attend to patches


def patch_sites(capture: Capture) -> list[Site]:
    """The attentions whose keys are patches: self-attention of an image, or cross-attention of a decoder."""
    return [site for site in capture.sites if site.kind != "other" and capture.axes[site.keys].grid is not None]


def chosen_site(capture: Capture, index: int) -> Site:
    """The selected layer if it attends to patches, else the nearest one that does."""
    return min(patch_sites(capture), key=lambda site: abs(site.index - index))


def place_of(axis: TokenAxis) -> tuple[int, int, list[int]]:
    """The first patch, one past the last, and all tokens that are not patches."""
    assert axis.grid is not None
    last = axis.first + axis.grid[0] * axis.grid[1]
    return axis.first, last, [i for i in range(len(axis)) if not axis.first <= i < last]


# ---------------------------------------------------------------- answers


def picture(capture: Capture) -> ViewAnswer:
    pixels = shown_image(capture)
    assert pixels is not None
    return ViewAnswer({"size": list(pixels.shape[:2])}, {"picture": pixels})


def maps_of_token(capture: Capture, query: Query) -> ViewAnswer:
    """One token's weights on the patches and on all other tokens, for every head."""
    site = chosen_site(capture, query.site)
    queries, axis = capture.axes[site.queries], capture.axes[site.keys]
    token = min(query.query, len(queries) - 1)
    first, last, others = place_of(axis)
    weights = capture.weights(site.index, rows=slice(token, token + 1))[:, 0].numpy()  # (H,S)
    facts: dict[str, Any] = {
        "kind": "attention", "site": site.index, "label": site.label, "token": token, "grid": axis.grid, "first": first,
        "others": others, "queries": site.queries, "keys": site.keys, "heads": site.heads,
        "patches_look": site.queries == site.keys, "has_rows": len(queries) * (last - first) <= MOST_ROWS,
    }  # fmt: skip
    return ViewAnswer(facts, {"maps": weights[:, first:last], "others": weights[:, others]})


def rows_of_head(capture: Capture, query: Query) -> ViewAnswer:
    """All rows of one head's map: one byte per weight, 255 is the row's largest on a patch."""
    site = chosen_site(capture, query.site)
    axis = capture.axes[site.keys]
    first, last, _ = place_of(axis)
    if len(capture.axes[site.queries]) * (last - first) > MOST_ROWS:
        raise UserError("there are too many patches to send all rows at once", where=TITLE, fix="choose one patch")
    weights = capture.weights(site.index)[min(query.head, site.heads - 1)].numpy()[:, first:last]  # (T,N)
    top = weights.max(1, keepdims=True)
    return ViewAnswer(
        {"site": site.index}, {"rows": as_bytes(weights / np.maximum(top, 1e-12)), "top": top[:, 0].astype(np.float32)}
    )


# ---------------------------------------------------------------- positions of convolutional feature maps


def places(capture: Capture, query: Query) -> ViewAnswer:
    """The spatial attention of visual tokens, or attention between positions of a feature map."""
    rounds = token_maps(capture)
    if rounds is not None:
        at = query.integer("round", len(rounds), 1, len(rounds))
        maps = rounds[at - 1]
        facts = {"kind": "tokens", "round": at, "rounds": len(rounds), "grid": maps.shape[1:], "heads": len(maps)}
        return ViewAnswer(facts, {"maps": maps.reshape(len(maps), -1).astype(np.float32)})
    found = map_attention(capture)
    assert found is not None
    cell = query.integer("cell", 0, 0, len(found.weights) - 1)
    facts = {"kind": "places", "grid": found.grid, "cell": cell, "heads": 1}
    return ViewAnswer(facts, {"maps": found.weights[cell : cell + 1]})
