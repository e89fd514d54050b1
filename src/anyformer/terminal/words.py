"""Text from a model, made safe and readable for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rich.text import Text

from anyformer.terminal.colour import on


def clean(text: str) -> str:
    """The text without control characters: a model in training may generate any byte.

    >>> clean("a\\tb\\x1b[31mc\\r\\n")
    'a    b·[31mc·\\n'
    """
    spread = text.replace("\t", "    ")
    return "".join(c if c == "\n" or (c.isprintable() and narrow(c)) else "·" for c in spread)


def narrow(character: str) -> bool:
    """Whether a character is exactly one cell wide and does not combine, so that columns stay aligned."""
    return not unicodedata.combining(character) and unicodedata.east_asian_width(character) not in "WF"


def visible(word: str, ascii_only: bool = False) -> str:
    """A token as a label: spaces and line ends made visible.

    >>> visible(" self"), visible("\\n    ")
    ('·self', '⏎····')
    """
    space, end = ("_", "$") if ascii_only else ("·", "⏎")
    return "".join(end if c == "\n" else space if c == " " else c for c in clean(word).replace("\t", "    "))


def shaded(words: Sequence[tuple[str, float | None]], *, colour: bool = True) -> Text:
    """Words with their number as background colour; None: no colour.

    Without colours each line is followed by a second one: the number's tenths under the first letter of each word.
    """
    out = Text()
    if colour:
        for word, value in words:
            for i, piece in enumerate(clean(word).split("\n")):
                if i:
                    out.append("\n")
                out.append(piece, "bold" if value is None else on(value))
        return out
    lines: list[tuple[str, str]] = [("", "")]
    for word, value in words:
        tenth = "" if value is None else str(min(9, int(10 * value)))
        for i, piece in enumerate(clean(word).split("\n")):
            if i:
                lines.append(("", ""))
            text, below = lines[-1]
            mark = tenth if piece else ""
            lines[-1] = (text + piece, below + (mark + " " * len(piece))[: len(piece)])
            tenth = "" if piece else tenth
    for text, below in lines:
        out.append(text.rstrip() + "\n")
        if below.strip():
            out.append(below.rstrip() + "\n", "dim")
    out.right_crop(1)
    return out
