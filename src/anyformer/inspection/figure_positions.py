"""The figure of positions: a map of the model's kind, and a curve beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.inspection.answer import Query
from anyformer.inspection.canvas import Drawing
from anyformer.inspection.figure_parts import (
    EDGE,
    Chosen,
    framed,
    panels_beside,
    peak,
)
from anyformer.inspection.grid import (
    LINE,
    ChartLine,
    LineChart,
    Matrix,
)

if TYPE_CHECKING:
    from anyformer.inspection.capture_base import CaptureBase


def positions_figure(capture: CaptureBase, chosen: Chosen) -> Drawing:
    """The model's kind of positions, or sinusoids if it has none: a map, and a curve beside it."""
    answer = capture.answer("positions", Query())
    facts, arrays = answer.facts, answer.arrays
    matrix, chart = POSITIONS[facts["kind"]](facts, arrays)
    drawn, wide, high = panels_beside([matrix])
    marks = [*drawn, *chart.draw(EDGE + wide + 24, EDGE + max(0.0, matrix.above - LINE - 8))]
    whose = "of this model" if facts["own"] else "with usual settings: this model has no positions of its own"
    what = [f"{facts['name']} {whose}", f"left: {matrix.title}", f"right: {chart.up}"]
    return framed(capture, wide + 24 + chart.width, max(high, matrix.above + chart.height), marks, what)


def square(values: np.ndarray, title: str, rows: str, columns: str, top: float | None = None, first: int = 0) -> Matrix:
    """A map of signed numbers with numbered rows and columns."""
    names = [[str(i + start) for i in range(count)] for count, start in zip(values.shape, (first, 0), strict=True)]
    every = [range(0, count, max(1, count // 4)) for count in values.shape]
    high, wide = (min(260.0 / count, 30.0) for count in values.shape)
    return Matrix(
        values, names[0], names[1], peak(values) if top is None else top, "linear", row_axis=rows, column_axis=columns,
        cell=(wide, high), ticks=(every[0], every[1]), signed=True, title=title,
    )  # fmt: skip


def lines(
    values: np.ndarray, across: str, up: str, names: Sequence[str] = ("",), xs: Sequence[float] | None = None
) -> LineChart:
    """The rows of an array as lines."""
    places = list(range(values.shape[-1])) if xs is None else list(xs)
    rows = np.atleast_2d(values)
    return LineChart(
        [ChartLine(name, places, row.tolist()) for name, row in zip(names, rows, strict=False)], across, up
    )


def sinusoid_parts(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[Matrix, LineChart]:
    return (square(arrays["table"], "sinusoids", "position", "channel", 1.0),
            lines(arrays["distance"], "distance", "dot product of two positions, mean"))  # fmt: skip


def learned_parts(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[Matrix, LineChart]:
    return (square(arrays["similarity"], "cosine of learned positions", "position", "position", 1.0),
            lines(arrays["distance"], "distance", "cosine of two positions, mean"))  # fmt: skip


def rope_parts(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[Matrix, LineChart]:
    return (square(arrays["cos"], "cosine of the angle that a pair of channels turns by", "position", "pair", 1.0),
            lines(arrays["distance"], "m - n", "score of two equal vectors"))  # fmt: skip


def alibi_parts(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[Matrix, LineChart]:
    names = [f"head {head}" for head in range(facts["shown"])]
    return (square(arrays["bias"][0], "what head 0 adds to a score", "query", "key"),
            lines(arrays["distance"][: facts["shown"]], "distance", "added to the score", names))  # fmt: skip


def bucket_parts(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[Matrix, LineChart]:
    matrix = square(arrays["matrix"].astype(float), "bucket of every pair", "query", "key")
    if "bias" in arrays:
        bias = arrays["bias"][:8]
        return matrix, lines(
            bias, "key - query", "learned bias", [f"head {h}" for h in range(len(bias))], arrays["offsets"].tolist()
        )
    return matrix, lines(arrays["buckets"].astype(float), "key - query", "bucket", xs=arrays["offsets"].tolist())


def shaw_parts(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[Matrix, LineChart]:
    return (square(arrays["keys"], "learned vector of each distance", "distance", "channel", first=-facts["k"]),
            lines(arrays["norms"], "key - query", "length of the vector", xs=arrays["offsets"].tolist()))  # fmt: skip


POSITIONS = {"sinusoid": sinusoid_parts, "learned": learned_parts, "rope": rope_parts, "alibi": alibi_parts,
             "buckets": bucket_parts, "shaw": shaw_parts}  # fmt: skip
