"""The steps of one query as a table for a terminal, with the numbering of either lecture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from anyformer.errors import UserError
from anyformer.terminal.words import visible

if TYPE_CHECKING:
    from anyformer.inspection.steps import HeadSteps

CHANNELS = 4  # shown of a vector, to bound the table's width
LONGEST = 14  # of a token


@dataclass(frozen=True)
class StepColumn:
    """One step of the table: its number in both lectures, and one value per key."""

    name: str
    epfl: int
    cornell: int
    title: str
    numbers: Tensor


def columns_of(steps: HeadSteps) -> list[StepColumn]:
    """The steps of this layer, in order; steps that it does not have are left out."""
    how = f"/ sqrt({len(steps.q)})" if steps.root else f"x {figure(steps.scale)}"
    both = ("x", "x") if steps.plain else ("q", "k")
    columns = [StepColumn("scores", 2, 2, f"{both[0]}.{both[1]}", steps.scores)]
    if not steps.related.equal(steps.scores):
        columns.append(StepColumn("related", 2, 2, "+ relative", steps.related))
    if steps.scale != 1.0:
        columns.append(StepColumn("scaled", 3, 2, how, steps.scaled))
    if steps.soft_cap is not None:
        columns.append(StepColumn("capped", 3, 2, f"cap {figure(steps.soft_cap)}", steps.capped))
    if not steps.biased.equal(steps.capped):
        columns.append(StepColumn("biased", 3, 2, "+ bias", steps.biased))
    if not bool(steps.visible.all()):
        columns.append(StepColumn("masked", 4, 3, "mask", steps.masked))
    columns.append(StepColumn("weights", 4, 3, "softmax", steps.weights))
    return columns


def steps_text(steps: HeadSteps, numbering: str | None = None) -> str:
    """The table; attention without Q, K and V is numbered as Cornell's five steps unless told otherwise."""
    from anyformer.inspection.steps import shown_around

    numbering = numbering or ("cornell" if steps.plain else "epfl")
    if numbering not in ("epfl", "cornell"):
        raise UserError(f"numbering {numbering!r} is unknown", where="steps", fix='use "epfl" or "cornell"')
    five = numbering == "cornell"
    times, last = (4, 5) if five else (5, 6)
    place, value = steps.query + steps.count_from, "x" if steps.plain else "v"
    lines = [f"{steps.label} · head {steps.head + steps.count_from} · token {place} {quoted(steps.token)}", ""]
    lines += ["step 1  prepare inputs" if five else "step 1  query, key and value vectors"]
    lines += [] if steps.x is None else [f"  x_{place} = {vector(steps.x)}"]
    lines += [] if steps.plain else [f"  q_{place} = {vector(steps.q)}"]

    columns = columns_of(steps)
    first, stop = shown_around(steps.weights)
    heads = ["", "key", *(column.title for column in columns), f"weight x {value}_j"]
    numbers = ["", "step", *(str(column.cornell if five else column.epfl) for column in columns), str(times)]
    rows = [
        [str(j + steps.count_from), visible(steps.keys[j])[:LONGEST],
         *(figure(float(column.numbers[j])) for column in columns), vector(steps.weighted[j])]
        for j in range(first, stop)
    ]  # fmt: skip
    lines += ["", *laid_out([numbers, heads, *rows])]
    if stop - first < len(steps.keys):
        inside = float(steps.weights[first:stop].sum())
        rest = len(steps.keys) - (stop - first)
        lines.append(f"  {rest} more keys, with {figure(1 - inside)} of the weight")
    projected = steps.projection is not None
    lines += ["", f"step {last}  sum of the weighted values" + (" and projection" if five and projected else "")]
    lines.append(f"  {'a' if five and not projected else 'z'}_{place} = {vector(steps.z)}")
    if projected:
        lines.append(f"  out = z W_O = {vector(steps.out)}")
        lines.append(f"  all heads + bias = {vector(steps.total)}")
    if steps.expected is not None:
        lines.append(f"  the layer itself = {vector(steps.expected)}")
        lines.append(f"  difference {steps.gap:.1e}")
    return "\n".join(lines)


def quoted(token: str) -> str:
    return f'"{visible(token)}"'


def figure(number: float) -> str:
    """Three significant digits, integers in full; masked keys are -inf.

    >>> figure(58.88972), figure(0.84967), figure(102.0), figure(0.0), figure(-math.inf), figure(0.00004)
    ('58.9', '0.850', '102', '0', '-inf', '4.0e-05')
    """
    size = abs(number)
    if not math.isfinite(number) or (number == round(number) and size < 1e5):
        return f"{number:.0f}"
    if size >= 1e5 or size < 1e-3:
        return f"{number:.1e}"
    return f"{number:.{max(0, 2 - math.floor(math.log10(size)))}f}"


def vector(numbers: Tensor) -> str:
    """The first channels, and the total number."""
    shown = " ".join(f"{figure(float(x)):>8}" for x in numbers[:CHANNELS])
    return f"[{shown}]" if len(numbers) <= CHANNELS else f"[{shown} ...] ({len(numbers)})"


def laid_out(rows: list[list[str]]) -> list[str]:
    """Cells aligned in columns: text left, numbers right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if i in (1, len(row) - 1) else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines
