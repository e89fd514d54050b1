"""Figures of a capture for papers, rendered without a display: `capture.png("map.png", site=2, head=5)`.

steps      one head for one token: scores, weights and the weighted vectors
map        one head's attention map, or the mean of all, with the tokens on both sides
heads      thumbnails of every head of every layer, on one scale
cross      cross-attention of a decoder's tokens to the source, the strongest of each row outlined
trace      every token shaded by its probability, entropy, and the alternatives at one position
lens       the logit lens: predictions after each layer
image      the image, and the attention of its class token (or another one) in each head
rollout    attention rollout: an overlay, bars for a table, a map for a text
filters    principal components of the patch filters, beside those of an untrained network
positions  the model's kind of positions as a map and a curve
table      attention of a table's class token to the columns, and between columns
flow       norm of the residual stream by layer, what each branch adds, and FLOPs of the parts
remove     effect of each head's ablation on the answer, beside its attention
compare    one head's map in two captures, and their difference
training   one head at every checkpoint of its run, and the loss

A view of the page and its figure have the same name and the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from anyformer.errors import UserError, did_you_mean
from anyformer.inspection.axis import segment_words
from anyformer.inspection.canvas import HAIR, SOFT, Drawing, Label, Mark, Pixels, Rectangle, text_width
from anyformer.inspection.figure_answers import (
    compare_figure,
    flow_figure,
    remove_figure,
    trace_figure,
    training_figure,
)
from anyformer.inspection.figure_parts import (
    EDGE,
    KEY,
    MOST_DRAWN,
    Chosen,
    check_head,
    chosen_site,
    framed,
    head_words,
    reading_token,
    with_key,
)
from anyformer.inspection.figure_positions import positions_figure
from anyformer.inspection.figure_steps import steps_figure
from anyformer.inspection.grid import LINE, SMALL, TYPE, Bars, Matrix, colour_key, cut, number_text
from anyformer.inspection.overview import map_shape, overview
from anyformer.inspection.palette import SCALES, check_scale, coloured
from anyformer.inspection.rollout import columns_axis, output_axis

if TYPE_CHECKING:
    from anyformer.inspection.axis import TokenAxis
    from anyformer.inspection.capture_base import CaptureBase
    from anyformer.inspection.lens import Lens
    from anyformer.inspection.site import Site

PANEL = 150.0  # an image's longer side
MOST_POSITIONS = 14  # of a lens, across


def draw(
    capture: CaptureBase, view: str = "map", *, layer: int | None = None, head: int | None = None,
    query: int | None = None, site: int | None = None, scale: str = "sqrt",
) -> Drawing:  # fmt: skip
    """One figure as a drawing; `layer` selects its self-attention, in the view `cross` its cross-attention."""
    check_scale(scale)
    if view not in FIGURES:
        raise UserError(f"unknown picture {view[:40]!r}", where="picture", fix=did_you_mean(view[:40], FIGURES))
    if layer is not None and site is None:
        site = capture.find_site(layer, kind="cross" if view == "cross" else "self").index
    return FIGURES[view](capture, Chosen(site, head, query, scale))


# ---------------------------------------------------------------- maps


def map_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    site = chosen_site(capture, chosen.site, lambda one: True, "attention map")
    check_head(site, chosen.head)
    return map_of_site(capture, site, chosen, marked=False)


def cross_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    site = chosen_site(capture, chosen.site, lambda one: one.kind == "cross", "cross-attention")
    check_head(site, chosen.head)
    return map_of_site(capture, site, chosen, marked=True)


def map_of_site(capture: CaptureBase, site: Site, chosen: Chosen, *, marked: bool) -> Drawing:
    """The whole map, or a max-pooled one if it has too many tokens."""
    _, queries, keys = map_shape(capture, site.index)
    rows, columns = capture.axes[site.queries], capture.axes[site.keys]
    words = [head_words(site, chosen.head)]
    ticks = None
    if max(queries, keys) > MOST_DRAWN:
        seen = overview(capture, site.index, side=MOST_DRAWN)
        every = seen.max if chosen.head is not None else seen.mean
        named = [
            round_places(n, step, cells) for n, step, cells in zip(seen.shape, seen.step, every.shape[1:], strict=True)
        ]
        names, ticks = [named[0][0], named[1][0]], (named[0][1], named[1][1])
        words.append(f"{'largest' if chosen.head is not None else 'mean'} of {seen.step[0]} x {seen.step[1]} weights")
    else:
        every = capture.weights(site.index)
        names = [[token.text for token in capture.row_tokens(site)], columns.texts]
    values = (every.mean(0) if chosen.head is None else every[chosen.head]).float().numpy()
    axes = (
        ("written", "source")
        if rows.written and site.kind == "cross"
        else ("target", "source")
        if site.kind == "cross"
        else ("query", "key")
    )
    matrix = Matrix(
        values, names[0], names[1], float(values.max()), chosen.scale, row_axis=axes[0], column_axis=axes[1],
        marked=values.argmax(1).tolist() if marked and ticks is None else None, ticks=ticks,
        bands=None if ticks is not None else segment_bands(rows, columns),
    )  # fmt: skip
    words += [f"bands: {segment_words(columns)}"] if matrix.bands is not None else []
    words += ["strongest of each row outlined"] if matrix.marked else []
    return with_key(capture, matrix, (*words, "attention weights" if site.kind != "other" else site.mixer))


def segment_bands(rows: TokenAxis, columns: TokenAxis) -> tuple[list[int], list[int]] | None:
    """The segment of every row and column, if all have one."""
    found = [[token.segment for token in axis.tokens if token.segment is not None] for axis in (rows, columns)]
    return (found[0], found[1]) if (len(found[0]), len(found[1])) == (len(rows), len(columns)) else None


def round_places(count: int, step: int, cells: int) -> tuple[list[str], list[int]]:
    """Tick labels for pooled cells: about eight round numbers, and the cells that they label."""
    rough = count / 8
    power = 10 ** (len(str(int(rough))) - 1)
    apart = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    names = [""] * cells
    for place in range(0, count, apart):
        names[place // step] = f"{place:,}"
    return names, [i for i, name in enumerate(names) if name]


def heads_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """Thumbnails of all heads, layers down, heads across."""
    sites = [one for one in capture.sites if chosen.site in (None, one.index)]
    if not sites:
        raise UserError("there is no such attention", where="site", fix=f"use 0 to {len(capture.sites) - 1}")
    across = max(site.heads for site in sites)
    thumb = min(max(560.0 / across - 6, 18.0), 88.0)
    seen = [overview(capture, site.index, side=64).max.numpy() for site in sites]
    top = max(float(one.max()) for one in seen)
    left = max(text_width(site.label, TYPE) for site in sites) + 8
    marks: list[Mark] = []
    y = EDGE + LINE + 4
    marks += [
        Label(EDGE + left + h * (thumb + 6) + thumb / 2, EDGE + LINE / 2, str(h), SMALL, "middle", SOFT)
        for h in range(across)
    ]
    for site, maps in zip(sites, seen, strict=True):
        shape = maps.shape[1:]
        high = thumb * min(1.0, shape[0] / shape[1]) if shape[1] else thumb
        high, wide = (max(high, 6.0), thumb) if shape[0] <= shape[1] else (thumb, max(thumb * shape[1] / shape[0], 6.0))
        marks.append(Label(EDGE + left - 8, y + high / 2, site.label, TYPE, "end"))
        for h in range(site.heads):
            x = EDGE + left + h * (thumb + 6)
            marks.append(Pixels(x, y, wide, high, coloured(maps[h], top, chosen.scale)))
            marks.append(Rectangle(x, y, wide, high, stroke=HAIR, line=0.75))
        y += high + 6
    width = left + across * (thumb + 6)
    marks += colour_key(
        EDGE + width + 8, EDGE + LINE + 4, min(max(y - EDGE - LINE - 10, 40.0), 160.0), top, chosen.scale
    )
    high = max(y - EDGE - 6, LINE + 56)
    what = ("attention weights of every head", f"{SCALES[chosen.scale]}, 0 to {number_text(top)}")
    return framed(capture, width + KEY, high, marks, what)


# ---------------------------------------------------------------- images


def image_axis(capture: CaptureBase, site: Site) -> TokenAxis:
    axis: TokenAxis = capture.axes[site.keys]
    if axis.grid is None or capture.given.pixels is None:
        raise UserError("this input is not an image", where="picture", fix="use view='map'")
    return axis


def image_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """The image, then one token's attention to it in each head."""
    on_grid = [one.index for one in capture.sites if capture.axes[one.keys].grid is not None]
    site = chosen_site(capture, on_grid[-1] if chosen.site is None and on_grid else chosen.site,
                       lambda one: one.index in on_grid, "attention over patches")  # fmt: skip
    check_head(site, chosen.head)
    axis = image_axis(capture, site)
    query, name = reading_token(capture.axes[site.queries], chosen.query)
    rows, columns = axis.grid or (0, 0)
    weights = capture.weights(site.index).float().numpy()  # (H,T,S)
    read = weights.mean(1) if query is None else weights[:, query]  # (H,S)
    cells = read[:, axis.first : axis.first + rows * columns].reshape(-1, rows, columns)
    heads = range(site.heads) if chosen.head is None else [chosen.head]
    mean = [("mean of heads", cells.mean(0))] if chosen.head is None and site.heads > 1 else []
    panels = [*mean, *((f"head {h}", cells[h]) for h in heads)]
    what = f"{site.label}: what {name} reads" if query is not None else f"{site.label}: what patches read, on average"
    return panel_figure(capture, panels, chosen.scale, [what])


def panel_figure(
    capture: CaptureBase, panels: Sequence[tuple[str, np.ndarray]], scale: str, what: list[str]
) -> Drawing:
    """The image and overlays, four per row; each overlay is scaled to its own maximum, given above it."""
    pixels = capture.given.pixels
    assert pixels is not None
    unit = PANEL / max(pixels.shape[:2])
    wide, high = pixels.shape[1] * unit, pixels.shape[0] * unit
    pictures = [("input", pixels)] + [
        (f"{name}, 0 to {number_text(float(cells.max()))}", overlay(pixels, cells, scale)) for name, cells in panels
    ]
    gap = max(10.0, max(text_width(name, SMALL) for name, _ in pictures) + 8 - wide)
    across = min(len(pictures), 4)
    marks: list[Mark] = []
    for i, (name, picture) in enumerate(pictures):
        x, y = EDGE + (i % across) * (wide + gap), EDGE + (i // across) * (high + LINE + 12)
        marks.append(Label(x, y + LINE / 2, name, SMALL, fill=SOFT))
        marks.append(Pixels(x, y + LINE + 2, wide, high, picture, smooth=True))
        marks.append(Rectangle(x, y + LINE + 2, wide, high, stroke=HAIR, line=0.75))
    lines = -(-len(pictures) // across)
    width = across * (wide + gap) - gap
    marks += colour_key(EDGE + width + 12, EDGE + LINE + 2, high, 1.0, scale, "heat")
    return framed(capture, width + KEY, lines * (high + LINE + 12) - 10, marks,
                  [*what, f"{SCALES[scale]}, each panel to its own largest value"])  # fmt: skip


def overlay(pixels: np.ndarray, cells: np.ndarray, scale: str, resolution: int = 300) -> np.ndarray:
    """Heat map of patch weights over the grey image, with sharp patch edges."""
    factor = max(1, -(-resolution // max(pixels.shape[:2])))
    grey = pixels.astype(float).mean(-1).repeat(factor, 0).repeat(factor, 1)
    down = np.arange(grey.shape[0]) * cells.shape[0] // grey.shape[0]
    across = np.arange(grey.shape[1]) * cells.shape[1] // grey.shape[1]
    heat = coloured(cells, float(cells.max()), scale, "heat")[down][:, across]
    return np.clip(0.4 * grey[..., None] + 0.6 * heat, 0, 255).astype(np.uint8)


# ---------------------------------------------------------------- rollout


def rollout_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    shares = capture.rollout()  # (T,S)
    rows, columns = capture.axes[output_axis(capture)], columns_axis(capture)
    words = ["attention rollout, residual 0.5, mean of heads"]
    values = shares.float().numpy()
    if capture.given.pixels is not None and columns.grid is not None:
        query, name = reading_token(rows, chosen.query)
        read = values.mean(0) if query is None else values[query]
        high, wide = columns.grid
        cells = read[columns.first : columns.first + high * wide].reshape(high, wide)
        return panel_figure(capture, [("rollout", cells)], chosen.scale, [*words, f"from {name}"])
    if capture.modality == "table" or chosen.query is not None:
        query = 0 if chosen.query is None else chosen.query
        reading_token(rows, query)
        bars = Bars(columns.texts, [float(v) for v in values[query]])
        return framed(capture, bars.width, bars.height, bars.draw(EDGE, EDGE),
                      [*words, f"from {cut(rows.tokens[query].text)}"])  # fmt: skip
    if max(values.shape) > MOST_DRAWN:
        raise UserError(f"{max(values.shape):,} tokens are too many for this picture", where="picture",
                        fix="name one token with query=, or use view='map'")  # fmt: skip
    axes = ("after the last layer", "input")
    matrix = Matrix(values, rows.texts, columns.texts, float(values.max()), chosen.scale, row_axis=axes[0],
                    column_axis=axes[1])  # fmt: skip
    return with_key(capture, matrix, words)


# ---------------------------------------------------------------- filters


def filters_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """The principal components of the patch filters, and those of the same network before training."""
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.filters import components_of, patch_filters, untrained_filters

    if not isinstance(capture, Capture):
        raise UserError("this file holds no weights", where="picture", fix="look at the model itself")
    found = {"this model": patch_filters(capture.model), "untrained": untrained_filters(capture.model)}
    marks: list[Mark] = []
    x, high = EDGE, 0.0
    for name, filters in found.items():
        parts = components_of(filters)
        picture = parts.image()
        wide = 2 * PANEL
        high = wide * picture.shape[0] / picture.shape[1]
        share = f"{float(parts.explained.sum()):.1%} of the variance"
        marks.append(Label(x, EDGE + LINE / 2, f"{name}, {share}", SMALL, fill=SOFT))
        marks.append(Pixels(x, EDGE + LINE + 2, wide, high, picture))
        x += wide + 24
    return framed(capture, x - 24 - EDGE, high + LINE + 2, marks,
                  [f"the first {len(parts.explained)} principal components of the patch filters, strongest first",
                   "each on its own scale, grey is 0"])  # fmt: skip


# ---------------------------------------------------------------- lens


def lens_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    found = capture.lens(top=12)
    if found.values is not None:
        values = found.values[:, 0, 0].tolist()
        bars = Bars(found.layers, values)
        return framed(capture, bars.width, bars.height, bars.draw(EDGE, EDGE), ["the answer after each layer"])
    if found.ids.shape[1] == 1:
        return class_lens(capture, found, chosen)
    positions = found.ids.shape[1]
    first = max(0, positions - MOST_POSITIONS) if chosen.query is None else max(0, chosen.query - MOST_POSITIONS + 1)
    at = slice(first, min(positions, first + MOST_POSITIONS))
    ids, shares = (
        found.ids[:, at, 0].flip(0),
        found.logprobs[:, at, 0].exp().flip(0).float().numpy(),
    )  # last layer on top
    names = capture.names(ids.flatten().tolist(), found.kind)
    words = [[cut(names[number], 9) for number in line] for line in ids.tolist()]
    axis = capture.axes.get("") or capture.axes["decoder"]
    room = max(text_width(word, SMALL) for line in words for word in line) + 10
    matrix = Matrix(
        shares, list(reversed(found.layers)), axis.texts[at], 1.0, chosen.scale, words=words, row_axis="",
        column_axis="token that was read", cell=(max(room, 34.0), 22.0),
    )  # fmt: skip
    some = f"positions {first} to {at.stop - 1} of {positions}, " if at.stop - first < positions else ""
    return with_key(capture, matrix, [f"logit lens: {some}the most probable {found.kind} after each layer"])


def class_lens(capture: CaptureBase, found: Lens, chosen: Chosen) -> Drawing:
    """The lens of a classifier: layers down, classes across, the last layer's best first."""
    order = found.ids[-1, 0].tolist()
    shares = torch.zeros(len(found.layers), len(order))
    for layer in range(len(found.layers)):
        of_class = dict(zip(found.ids[layer, 0].tolist(), found.logprobs[layer, 0].exp().tolist(), strict=True))
        shares[layer] = torch.tensor([of_class.get(number, 0.0) for number in order])
    names = capture.names(order, found.kind)
    values = shares.flip(0).numpy()
    words = [[number_text(float(v)) for v in line] for line in values]
    matrix = Matrix(
        values, list(reversed(found.layers)), [names[number] for number in order], 1.0, chosen.scale, words=words,
        row_axis="", column_axis="class", cell=(48.0, 22.0),
    )  # fmt: skip
    return with_key(capture, matrix, ["logit lens: probability of each class after each layer"])


# ---------------------------------------------------------------- tables


def table_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """Attention of the class token to each column, sorted; beside it, attention between columns."""
    sites = [one for one in capture.sites if chosen.site in (None, one.index) and one.kind == "self"]
    axis = capture.axes[sites[0].keys] if sites else None
    if axis is None or not any(token.kind == "column" for token in axis.tokens):
        raise UserError("this input is not a row of a table", where="picture", fix="use view='map'")
    heads = slice(None) if chosen.head is None else slice(chosen.head, chosen.head + 1)
    maps = [capture.weights(site.index, row=row)[heads] for site in sites for row in range(capture.batch)]
    mean = torch.cat(maps).mean(0).float().numpy()  # (T,S)
    columns = [i for i, token in enumerate(axis.tokens) if token.kind == "column"]
    query, name = reading_token(axis, 0 if axis.tokens[0].kind == "special" else chosen.query)
    read = mean[columns].mean(0) if query is None else mean[query]
    order = sorted(columns, key=lambda i: -read[i])[:40]
    bars = Bars([axis.tokens[i].text for i in order], [float(read[i]) for i in order], wide=180.0)
    among = mean[np.ix_(columns, columns)]
    names = [axis.tokens[i].text for i in columns]
    matrix = Matrix(among, names, names, float(among.max()), chosen.scale, side=300.0, row_axis="column that reads",
                    column_axis="column that is read")  # fmt: skip
    marks = bars.draw(EDGE, EDGE + matrix.above)
    marks.append(Label(EDGE + bars.left, EDGE + matrix.above - LINE, f"read by {name}", SMALL, fill=SOFT))
    x = EDGE + bars.width + 24
    marks += matrix.draw(x, EDGE)
    high = min(max(matrix.high, 40.0), 160.0)
    marks += colour_key(x + matrix.width + 14, EDGE + matrix.above, high, matrix.top, chosen.scale)
    height = matrix.above + max(matrix.high, bars.height, high + 8)
    over = f"mean of {len(sites)} layers, {'all' if chosen.head is None else 'one of the'} heads"
    over += f" and {capture.batch} rows" if capture.batch > 1 else ""
    return framed(capture, bars.width + 24 + matrix.width + KEY, height, marks,
                  [f"attention between columns, {over}", f"{SCALES[chosen.scale]}, 0 to {number_text(matrix.top)}",
                   "ranks only: a weight is not an effect"])  # fmt: skip


FIGURES: dict[str, Callable[[CaptureBase, Chosen], Drawing]] = {
    "steps": steps_figure, "map": map_figure, "heads": heads_figure, "cross": cross_figure, "trace": trace_figure,
    "lens": lens_figure, "image": image_figure, "rollout": rollout_figure, "filters": filters_figure,
    "positions": positions_figure, "table": table_figure, "flow": flow_figure, "remove": remove_figure,
    "compare": compare_figure, "training": training_figure,
}  # fmt: skip
