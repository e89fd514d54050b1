"""The figure of one head for one token, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyformer.inspection.answer import ViewAnswer
from anyformer.inspection.canvas import HAIR, SOFT, Drawing, Label, Mark, Pixels, Rectangle, Stroke, text_width
from anyformer.inspection.figure_parts import EDGE, Chosen, cell_of, framed, peak
from anyformer.inspection.grid import BLUE, LINE, SMALL, TYPE, cut, number_text
from anyformer.inspection.palette import signed_colours

if TYPE_CHECKING:
    from anyformer.inspection.capture_base import CaptureBase

STRIP = 84.0  # width of a vector
ROW = 18.0  # height of a row
BAR = 64.0  # width of a weight of 1
GAP = 12.0


@dataclass(frozen=True)
class DrawnColumn:
    """One step for every key: a number, a weight with its bar, or a vector with the colour range -top to `top`."""

    title: str
    values: np.ndarray  # (S,), of vectors (S,C)
    form: Literal["number", "weight", "vector"] = "number"
    top: float = 1.0

    @property
    def wide(self) -> float:
        if self.form == "number":
            return max(text_width(self.title, SMALL), 44.0)
        return STRIP if self.form == "vector" else BAR + 40

    def heading(self, x: float, y: float) -> Label:
        right = self.form == "number"
        return Label(x + self.wide if right else x, y, self.title, SMALL, "end" if right else "start", SOFT)

    def cell(self, row: int, x: float, y: float) -> list[Mark]:
        value = self.values[row]
        if self.form == "vector":
            return strip(x, y, value, self.top)
        if self.form == "number":
            return [Label(x + self.wide, y + ROW / 2, number_text(float(value)), SMALL, "end")]
        long = BAR * float(value)
        bar = Rectangle(x, y + 4, max(long, 0.5), ROW - 8, fill=BLUE)
        return [bar, Label(x + long + 5, y + ROW / 2, number_text(float(value)), SMALL)]


def steps_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """One row of a head's map as a table: from the scores to what the head adds."""
    answer = capture.answer("steps", cell_of(capture, chosen, ("self", "cross")))
    facts, arrays = answer.facts, answer.arrays
    first, stop = facts["first"], facts["stop"]
    columns = drawn_columns(answer)
    by_title = {column.title: column for column in columns}
    keys = [cut(name) for name in facts["keys"][first:stop]]
    asks = f"{'x' if facts['plain'] else 'q'} of {cut(facts['token'])}"
    left = max(text_width(name, TYPE) for name in [asks, *keys]) + 8
    places = [EDGE + left]
    for column in columns[:-1]:
        places.append(places[-1] + column.wide + GAP)
    right, last = places[-1] + STRIP, columns[-1]
    y = EDGE
    marks: list[Mark] = [Label(places[0] - 8, y + ROW / 2, asks, TYPE, "end")]
    marks += strip(places[0], y, arrays["q"], columns[0].top)
    y += ROW + 8
    marks += [column.heading(x, y + LINE / 2) for column, x in zip(columns, places, strict=True)]
    y += LINE + 4
    for row, name in enumerate(keys):
        marks.append(Label(places[0] - 8, y + ROW / 2, name, TYPE, "end"))
        for column, x in zip(columns, places, strict=True):
            marks += column.cell(row, x, y)
        y += ROW
    marks.append(Stroke(places[-3], y + 3, right, y + 3, SOFT))
    y += 6
    marks.append(Label(places[-1] - 8, y + ROW / 2, "z, their sum", TYPE, "end"))
    marks += strip(places[-1], y, arrays["z"], last.top)
    y += ROW
    tops = {by_title[title].title: by_title[title].top for title in by_title if by_title[title].form == "vector"}
    if facts["projected"]:
        tops["out"] = peak(arrays["out"], arrays["total"])
        for title, vector in (("out = z W_O", arrays["out"]), ("all heads + bias", arrays["total"])):
            marks.append(Label(places[1] + 14, y + ROW / 2, title, TYPE, "end"))
            marks += strip(places[1] + 22, y, vector, tops["out"], right - places[1] - 22)
            y += ROW
    return framed(capture, right - EDGE, y - EDGE, marks, steps_words(facts, arrays["weights"][first:stop], tops))


def drawn_columns(answer: ViewAnswer) -> list[DrawnColumn]:
    """The columns: key, the stages of its score, weight, value, and their product."""
    facts, arrays = answer.facts, answer.arrays
    at = slice(facts["first"], facts["stop"])
    held = slice(0, at.stop - at.start) if facts["partial"] else at
    keys, weights = arrays["k"][held], arrays["weights"][at]
    values = (arrays["v"] if "beside" not in arrays else arrays["v"] + arrays["beside"])[held]
    products = weights[:, None] * values
    key, value = ("x", "x of the key") if facts["plain"] else ("k", "v")
    return [
        DrawnColumn(key, keys, "vector", peak(keys, arrays["q"])),
        *(DrawnColumn(title, numbers[at]) for title, numbers in score_columns(answer)),
        DrawnColumn("softmax: weight", weights, "weight"),
        DrawnColumn(value, values, "vector", peak(values)),
        DrawnColumn(f"weight x {value[0]}", products, "vector", peak(products, arrays["z"])),
    ]


def score_columns(answer: ViewAnswer) -> list[tuple[str, np.ndarray]]:
    """The stages of q.k before the softmax, for every key; stages that this layer does not have are left out."""
    facts, arrays = answer.facts, answer.arrays
    scores = arrays["scores"].astype(float)
    columns = [("x·x" if facts["plain"] else "q·k", scores)]
    if facts["related"]:
        columns.append(("+ relative", columns[-1][1] + arrays["relative"]))
    if facts["scale"] != 1:
        how = f"/ sqrt({len(arrays['q'])})" if facts["root"] else f"x {number_text(facts['scale'])}"
        columns.append((how, columns[-1][1] * facts["scale"]))
    if facts["soft_cap"] is not None:
        cap = facts["soft_cap"]
        columns.append((f"cap {number_text(cap)}", cap * np.tanh(columns[-1][1] / cap)))
    if facts["biased"]:
        columns.append(("+ bias", columns[-1][1] + arrays["bias"]))
    if not arrays["visible"].all():
        columns.append(("mask", np.where(arrays["visible"] != 0, columns[-1][1], -np.inf)))
    return columns


def steps_words(facts: dict[str, Any], weights: np.ndarray, tops: dict[str, float]) -> Sequence[str]:
    """The caption's description of the figure."""
    words = [f"{facts['label']}, head {facts['head']}, token {facts['query']} “{cut(facts['token'])}” step by step"]
    more = len(facts["keys"]) - len(weights)
    if more:
        words.append(f"{more} more keys have {1 - float(weights.sum()):.3g} of the weight")
    ranges = ", ".join(f"{name} ±{number_text(top)}" for name, top in tops.items())
    words.append(f"vectors from blue (below 0) to orange: {ranges}")
    if facts["gap"] is not None:
        words.append(f"differs from the layer's own output by {facts['gap']:.1e}")
    return words


def strip(x: float, y: float, vector: np.ndarray, top: float, wide: float = STRIP) -> list[Mark]:
    """A vector as a row of coloured cells."""
    cells = Pixels(x, y + 3, wide, ROW - 6, signed_colours(vector[None], top))
    return [cells, Rectangle(x, y + 3, wide, ROW - 6, stroke=HAIR, line=0.75)]
