"""An attention map in a terminal, with query tokens at the left and key tokens above."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from anyformer.errors import UserError
from anyformer.terminal.colour import grey, shade
from anyformer.terminal.heat import heat_map
from anyformer.terminal.words import visible

if TYPE_CHECKING:
    from anyformer.inspection.capture_base import CaptureBase

LABEL = 10  # letters of a token
NARROWEST = 24


def draw_map(
    capture: CaptureBase, site: int, head: int, width: int | None = None, *, console: Console | None = None
) -> str:
    """One head's attention map as text, coloured if the console supports it; NO_COLOR gives shades of grey.

    Weights are drawn on a square-root scale, so that small ones are visible. If the map is wider than `width`, it is
    max-pooled.
    """
    console = Console() if console is None else console
    colour = console.color_system is not None and not console.no_color
    picture = map_of(capture, site, head, console.width if width is None else width, colour=colour,
                     ascii_only=console.options.ascii_only)  # fmt: skip
    if not colour:
        return picture.plain
    with console.capture() as written:
        console.print(picture, soft_wrap=True, highlight=False, end="")
    return written.get()


def map_of(
    capture: CaptureBase, site: int, head: int, width: int, *, colour: bool = True, ascii_only: bool = False
) -> Text:
    """The map with its title and scale."""
    place = capture.site(site)
    if not 0 <= head < place.heads:
        raise UserError(f"head {head} is out of range", where=place.label, fix=f"use 0 to {place.heads - 1}")
    if width < NARROWEST:
        raise UserError(f"width {width} is too narrow for a map", where=place.label, fix=f"use {NARROWEST} or more")
    weights = capture.weights(site)[head]  # (T,S)
    rows = [visible(token.text, ascii_only) for token in capture.row_tokens(place)]
    columns = [visible(text, ascii_only) for text in capture.axes[place.keys].texts]
    dot, arrow = (".", "->") if ascii_only else ("·", "→")
    out = Text(f"{place.label.replace('·', dot)} {dot} head {head}\n\n", no_wrap=True)
    margin = min(LABEL, max(map(len, rows))) + 1
    whole = weights.max().item()
    drawn = (weights / max(whole, 1e-12)).sqrt()
    if margin + 2 * len(columns) <= width:
        out.append_text(heat_map(drawn.tolist(), rows, columns, colour=colour, ascii_only=ascii_only, label=LABEL))
        note = ""
    else:
        step = -(-len(columns) // (width - margin))
        pooled = pool(drawn, step)
        out.append_text(packed_map(pooled, rows[::step], margin - 1, colour=colour, ascii_only=ascii_only))
        note = f"; a cell is the largest of {step} by {step} tokens" if step > 1 else ""
    roles = "rows are written, columns read" if place.kind == "cross" else "rows ask, columns answer"
    out.append(f"\n\n{roles} ({first_and_last(rows)} {arrow} {first_and_last(columns)})")
    out.append(f"\nweights from 0 to {whole:.3g}, by their square root{note}")
    return out


def pool(weights: Tensor, step: int) -> Tensor:
    """Max-pooling in step x step cells."""
    if step == 1:
        return weights
    return torch.nn.functional.max_pool2d(weights[None, None], step, ceil_mode=True)[0, 0]


def packed_map(matrix: Tensor, rows: list[str], margin: int, *, colour: bool, ascii_only: bool) -> Text:
    """One character per column: half blocks of two rows with colours, else one line per row."""
    out, values = Text(no_wrap=True), matrix.tolist()
    if not colour or ascii_only:
        lines = [f"{name[:LABEL]:>{margin}} " + "".join(grey(value, ascii_only) for value in line)
                 for name, line in zip(rows, values, strict=True)]  # fmt: skip
        return out.append("\n".join(line.rstrip() for line in lines))
    for i in range(0, len(values), 2):
        lower = values[i + 1] if i + 1 < len(values) else None
        out.append(f"{rows[i][:LABEL]:>{margin}} ")
        for j, value in enumerate(values[i]):
            behind = "" if lower is None else f" on {rgb(lower[j])}"
            out.append("▀", rgb(value) + behind)
        out.append("\n")
    out.right_crop(1)
    return out


def rgb(value: float) -> str:
    return "rgb({},{},{})".format(*shade(value))


def first_and_last(words: list[str]) -> str:
    shown = (words[0], words[-1]) if len(words) > 1 else (words[0],)
    return " ... ".join(word[:LABEL] for word in shown)
