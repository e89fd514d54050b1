"""Heat maps: a matrix of numbers from 0 to 1 as coloured cells, with labels along both sides."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from anyformer.terminal.colour import grey, on, shade
from anyformer.terminal.words import visible

Matrix = Sequence[Sequence[float | None]]  # None: no cell there


def heat_map(
    matrix: Matrix,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    colour: bool = True,
    ascii_only: bool = False,
    marked: Sequence[tuple[int, int]] = (),
    label: int = 10,
) -> Text:
    """One line per row and two characters per cell, so that cells are about square; column labels are vertical.

    Without labels the map uses half blocks, two rows per line. `marked` cells have a pair of brackets.

    >>> print(heat_map([[1.0, 0.0], [0.5, 0.5]], ["a", "b"], ["a", "b"], colour=False))
      a b
    a ██
    b ▒▒▒▒
    """
    if rows is None or columns is None:
        return packed(matrix, colour=colour, ascii_only=ascii_only)
    left = [visible(word, ascii_only)[:label] for word in rows]
    top = [visible(word, ascii_only)[:label] for word in columns]
    margin = max(map(len, left), default=0)
    out = Text(no_wrap=True)
    for level in range(max(map(len, top), default=0), 0, -1):  # bottom-aligned: short labels start lower
        heads = (word[len(word) - level] if len(word) >= level else " " for word in top)
        out.append((" " * (margin + 1) + " ".join(heads)).rstrip() + "\n")
    for i, values in enumerate(matrix):
        line = Text(f"{left[i]:>{margin}} ")
        for j, value in enumerate(values):
            plain = "  " if colour else grey(value or 0.0, ascii_only) * 2
            line.append("[]" if (i, j) in marked else plain, on(value) if colour and value is not None else "")
        if not colour:
            line.rstrip()
        out.append_text(line).append("\n")
    out.right_crop(1)
    return out


def packed(matrix: Matrix, *, colour: bool, ascii_only: bool) -> Text:
    """Half blocks: the upper row is the foreground colour, the lower one the background."""
    out = Text(no_wrap=True)
    if not colour or ascii_only:
        out.append("\n".join("".join(grey(value or 0.0, ascii_only) * 2 for value in values) for values in matrix))
        return out
    for i in range(0, len(matrix), 2):
        upper, lower = matrix[i], matrix[i + 1] if i + 1 < len(matrix) else None
        for j, value in enumerate(upper):
            behind = "" if lower is None else " on rgb({},{},{})".format(*shade(lower[j] or 0.0))
            out.append("▀", "rgb({},{},{})".format(*shade(value or 0.0)) + behind)
        out.append("\n")
    out.right_crop(1)
    return out
