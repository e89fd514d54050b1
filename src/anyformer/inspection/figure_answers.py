"""Figures drawn from the same answers that the page gets."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.canvas import HAIR, SOFT, Drawing, Label, Mark, Pixels, Rectangle, text_width
from anyformer.inspection.figure_parts import (
    EDGE,
    Chosen,
    cell_of,
    framed,
    panels_beside,
    peak,
)
from anyformer.inspection.grid import (
    LINE,
    SMALL,
    TYPE,
    Bars,
    ChartLine,
    LineChart,
    Matrix,
    cut,
    number_text,
    table_marks,
)
from anyformer.inspection.palette import coloured, ink_on

if TYPE_CHECKING:
    from anyformer.inspection.capture_base import CaptureBase

CHIPS = 620.0  # width at which tokens are wrapped
ROW = 18.0  # height of a token
ALTERNATIVES = 10  # tokens shown at one position
MOST_ROWS = 30  # of a table of parts
THUMBNAIL = 96.0
MOST_CHECKPOINTS = 12  # whose maps are drawn


# ---------------------------------------------------------------- generation trace


def trace_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """Every token shaded by its probability, the entropy at each, and the alternatives at one position."""
    answer = capture.answer("trace", Query())
    facts, arrays = answer.facts, answer.arrays
    scored, masked = facts["scored"], facts["kind"] != "written"
    places = [i for i, one in enumerate(scored) if one]
    if not places:
        raise UserError("no token of this text has a probability", where="picture", fix="look at a longer text")
    first = next((i for i in places if i >= facts["first"]), places[0])
    at = first if chosen.query is None else chosen.query
    if at not in places:
        raise UserError(f"token {at} has no probability", where="query", fix=f"use one of {places[0]} to {places[-1]}")
    shares = [float(np.exp(value)) if one else None for value, one in zip(arrays["logprobs"], scored, strict=True)]
    names = [cut(token["text"]) for token in facts["tokens"]]
    marks: list[Mark] = []
    y = EDGE
    parts = [("each word masked in turn", 0, len(names))] if masked else [
        ("read", 0, facts["first"]), ("written", facts["first"], len(names))]  # fmt: skip
    for title, start, stop in parts:
        if stop > start:
            marks.append(Label(EDGE, y + LINE / 2, title, SMALL, fill=SOFT))
            drawn, y = chips(names, shares, start, stop, y + LINE + 2, at)
            marks += drawn
    chart = LineChart([ChartLine("entropy", places, [float(arrays["entropy"][i]) for i in places]),
                       ChartLine("surprise", places, [-float(arrays["logprobs"][i]) for i in places])],
                      "position", "nats", wide=300.0, zero=True)  # fmt: skip
    marks += chart.draw(EDGE, y)
    top = list(zip(arrays["top_ids"][at].tolist(), arrays["top_logprobs"][at].tolist(), strict=True))[:ALTERNATIVES]
    known = facts["names"]
    bars = Bars([known.get(str(number), f"#{number}") for number, _ in top], [math.exp(log) for _, log in top], 140.0)
    x = EDGE + chart.width + 16
    marks.append(Label(x, y + LINE / 2, f"at position {at}, “{names[at]}”", SMALL, fill=SOFT))
    marks += bars.draw(x, y + LINE + 6)
    what = ["each word's probability where it is masked" if masked else "tokens shaded by their probability",
            f"log-probability {number_text(facts['total'])} in all"]  # fmt: skip
    what += [f"perplexity {number_text(facts['perplexity'])}"] if facts["perplexity"] is not None else []
    height = y - EDGE + max(chart.height, LINE + 6 + bars.height)
    return framed(capture, max(CHIPS, x - EDGE + bars.width), height, marks, what)


def chips(
    names: list[str], shares: list[float | None], start: int, stop: int, y: float, at: int
) -> tuple[list[Mark], float]:
    """Wrapped tokens coloured by probability, with the number below; and the y at which the last line ends."""
    marks: list[Mark] = []
    x, high = EDGE, ROW + LINE + 4
    for i in range(start, stop):
        share = shares[i]
        said = "" if share is None else f"{100 * share:.3g}%"
        wide = max(text_width(names[i], TYPE), text_width(said, SMALL)) + 12
        if x > EDGE and x + wide > EDGE + CHIPS:
            x, y = EDGE, y + high
        rgb = np.array([255, 255, 255]) if share is None else coloured(np.array(share), 1.0, "linear")
        marks.append(Rectangle(x, y, wide, ROW, fill="#{:02x}{:02x}{:02x}".format(*(int(part) for part in rgb))))
        marks.append(Rectangle(x, y, wide, ROW, stroke="#a34700" if i == at else HAIR, line=1.5 if i == at else 0.75))
        marks.append(Label(x + wide / 2, y + ROW / 2, names[i], TYPE, "middle", ink_on(rgb)))
        marks.append(Label(x + wide / 2, y + ROW + LINE / 2, said, SMALL, "middle", SOFT))
        x += wide + 4
    return marks, y + high + 4


# ---------------------------------------------------------------- the residual stream


def flow_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """Norms of the residual stream and of each branch by layer, mean over tokens; and the cost of the parts."""
    answer = capture.answer("flow", Query())
    facts, arrays = answer.facts, answer.arrays
    marks: list[Mark] = []
    x, high = EDGE, 0.0
    for number, stack in enumerate(facts["stacks"]):
        series = []
        named = (("stream", "stream", -1), ("mixer", mixer_name(facts, stack["name"]), 0),
                 ("feed", "feed-forward", 0), ("cross", "cross-attention", 0))  # fmt: skip
        for style, (name, title, start) in enumerate(named):
            if (values := arrays.get(f"{name}{number}")) is not None:
                layers = [start + i for i in range(len(values))]
                series.append(ChartLine(title, layers, np.nanmean(values, 1).tolist(), style))
        up = "length of the vector" + (f", {stack['name']}" if stack["name"] else "")
        chart = LineChart(series, "layer, -1 is the embedding", up, wide=260.0, zero=True)
        marks += chart.draw(x, EDGE)
        x, high = x + chart.width + 24, max(high, chart.height)
    rows = [part_row(facts, group) for group in facts["groups"]]
    cutoff = max(0, len(rows) - MOST_ROWS)
    rows = [*rows[:MOST_ROWS], *([(f"{cutoff} more", "", "", "")] if cutoff else []),
            ("all", f"{facts['parameters']:,}", f"{facts['flops']:,}", "")]  # fmt: skip
    drawn, wide, tall = table_marks(EDGE, EDGE + high + 8, ("part", "parameters", "FLOPs", "output"), rows)
    return framed(capture, max(x - 24 - EDGE, wide), high + 8 + tall, [*marks, *drawn],
                  ["residual stream: mean over the tokens", "FLOPs of this pass"])  # fmt: skip


def mixer_name(facts: dict[str, Any], stack: str) -> str:
    names = {
        group["block"]["branches"][0]["name"] for group in facts["groups"] if group["block"] and group["stack"] == stack
    }
    return "mixer" if len(names) != 1 else "attention" if names == {"Attention"} else names.pop()


def part_row(facts: dict[str, Any], group: dict[str, Any]) -> tuple[str, str, str, str]:
    first, last, part = group["first"], group["last"], group["parts"][0]
    if group["block"]:
        name = f"layer {last}" if first == last else f"layers {first} to {last}"
        name = f"{group['stack']} {name}".strip()
    else:
        name = f"{facts['roles'][part['role']]} ({part['name']})"
    left = group["parts"][-1]["left"]
    return name, f"{group['parameters']:,}", f"{group['flops']:,}", " x ".join(map(str, left)) or "–"


# ---------------------------------------------------------------- ablation


def remove_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """Effect of ablating each head on the answer; for a model without heads, of what else can be ablated."""
    cell = cell_of(capture, chosen)
    try:
        every = capture.answer("remove", Query(options={"every": "1"}))
    except UserError:
        every = None  # a file of a model with many heads
    if every is None or not every.facts["sites"]:
        return removed_bars(capture, capture.answer("remove", cell))
    facts, change, weight = every.facts, every.arrays["change"], every.arrays["weight"]
    names = [re.sub(r"^\S+ layer (\d+) · cross$", r"Cross layer \1", site["label"]) for site in facts["sites"]]
    unit = facts["target"]["unit"]
    one = head_matrix(change, names, f"change of the {unit} without the head", signed=True)
    two = head_matrix(weight, names, "its largest weights, mean", chosen.scale)
    marks, wide, high = panels_beside([one, two])
    target = facts["target"]
    about = f"the {target['name']}" if target["kind"] == "value" else f"“{cut(target['name'])}”"
    what = [
        f"each cell is one pass without that head: change of the {unit} of {about}",
        "below 0 it spoke for the answer",
    ]
    what += [f"rank correlation of both {facts['rank']:.2f}"] if facts["rank"] is not None else []
    return framed(capture, wide, high, marks, [*what, "attention shows where information was read, not why"])


def head_matrix(
    values: np.ndarray, names: list[str], title: str, scale: str = "linear", *, signed: bool = False
) -> Matrix:
    """Layers down, heads across, with the numbers in the cells if they fit."""
    words = [["" if np.isnan(value) else number_text(float(value)) for value in row] for row in values]
    room = max(max(text_width(word, SMALL) for row in words for word in row) + 8, 24.0)
    fits = room * values.shape[1] < 480
    heads = [str(head) for head in range(values.shape[1])]
    return Matrix(
        values, names, heads, peak(np.nan_to_num(values)), scale, row_axis="", column_axis="head", signed=signed,
        words=words if fits else None, cell=(room, 22.0) if fits else None, title=title,
    )  # fmt: skip


def removed_bars(capture: CaptureBase, answer: ViewAnswer) -> Drawing:
    facts = answer.facts
    known = [one for one in facts["what_if"] if one["change"] is not None]
    if not known:
        raise UserError("nothing can be removed here", where="picture", fix="choose another layer or head")
    bars = Bars([f"without the {one['what']}" for one in known], [one["change"] for one in known])
    return framed(capture, bars.width, bars.height, bars.draw(EDGE, EDGE),
                  [f"change of the {facts['target']['unit']} of “{cut(facts['target']['name'])}”"])  # fmt: skip


# ---------------------------------------------------------------- two captures


def compare_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """One head's map in both captures, and second minus first, over the common tokens."""
    cell = cell_of(capture, chosen, ("self", "cross"))
    answer = capture.answer("compare", Query(cell.site, cell.head))
    facts, arrays = answer.facts, answer.arrays
    panels = []
    for name in ("first", "second"):  # each with its own tokens if they differ
        own = f"{name}_own" in arrays
        values = arrays[f"{name}_own" if own else name]
        queries, keys = (facts[f"{name}_{axis}" if own else axis] for axis in ("queries", "keys"))
        panels.append(Matrix(values, queries, keys, float(values.max()), chosen.scale, side=240.0, title=name))
    for panel in panels:
        panel.top = max(one.top for one in panels)
    if facts["shared"]:
        change = arrays["difference"]
        panels.append(Matrix(change, facts["queries"], facts["keys"], peak(change), "linear", side=240.0, signed=True,
                             title="second - first"))  # fmt: skip
    marks, wide, high = panels_beside(panels)
    second = facts["names"][1]
    what = [f"{facts['label']}, head {facts['head']}", f"second: {second['model']}, “{second['input'][:60]}”"]
    moved = facts["distances"][cell.site][facts["head"]]
    what += [f"this head has moved by {number_text(moved)} bits"] if moved is not None else []
    return framed(capture, wide, high, marks, what)


# ---------------------------------------------------------------- checkpoints


def training_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """One head at every checkpoint of its run, and the loss."""
    cell = cell_of(capture, chosen) if capture.sites else Query()
    answer = capture.answer("training", Query(cell.site, cell.head))
    facts, maps = answer.facts, answer.arrays.get("maps")
    marks: list[Mark] = []
    y = EDGE
    what = [f"run {facts['run']}"]
    if maps is not None and len(maps):
        shown = sorted({round(i) for i in np.linspace(0, len(maps) - 1, min(len(maps), MOST_CHECKPOINTS))})
        across = min(len(shown), 6)
        for n, i in enumerate(shown):
            x, top = EDGE + (n % across) * (THUMBNAIL + 10), y + (n // across) * (THUMBNAIL + LINE + 10)
            marks.append(Label(x, top + LINE / 2, f"step {facts['steps'][i]:,}", SMALL, fill=SOFT))
            weights = (maps[i].astype(float) / 255) ** 2
            marks.append(Pixels(x, top + LINE + 2, THUMBNAIL, THUMBNAIL, coloured(weights, 1.0, chosen.scale)))
            marks.append(Rectangle(x, top + LINE + 2, THUMBNAIL, THUMBNAIL, stroke=HAIR, line=0.75))
        y += -(-len(shown) // across) * (THUMBNAIL + LINE + 10) + 4
        what.append(
            f"{facts['label']}, head {facts['head']} at {len(shown)} of {len(maps)} checkpoints, query down, key across"
        )
    names = {"valid": "validation"}
    chart = LineChart([ChartLine(names.get(name, name), [p[0] for p in points], [p[1] for p in points])
                       for name, points in facts["curves"].items()], "step", "loss", wide=460.0)  # fmt: skip
    if not chart.series and y == EDGE:
        raise UserError("this run has neither a checkpoint nor a logged loss yet", where="picture", fix="wait for both")
    if chart.series:
        marks += chart.draw(EDGE, y)
        y += chart.height
    return framed(capture, max(chart.width, 6 * (THUMBNAIL + 10)), y - EDGE, marks, what)
