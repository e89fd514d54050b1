"""Make text from data safe for terminals and logs: control characters are escaped, the rest stays readable."""

from __future__ import annotations

import unicodedata

# Control characters (C0, C1, escape sequences), format characters (bidirectional overrides, invisible tags), lone
# surrogates, and the separators that end a line or a paragraph.
ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Two format characters belong to ordinary words: Persian, Hindi and joined emoji are written with them.
JOINERS = frozenset("\u200c\u200d")


def printable(text: str) -> str:
    r"""The text on one line; characters that would control a terminal or forge a log line are escaped.

    >>> printable("a\x1b[31mred\nnext")
    'a\\x1b[31mred\\nnext'
    """
    if text.isascii() and text.isprintable():  # most text, most of the time
        return text
    return "".join(_escape(c) if is_active(c) else c for c in text)


def is_active(character: str) -> bool:
    """Whether a terminal or a line reader would interpret the character instead of showing it."""
    return character not in JOINERS and unicodedata.category(character) in ESCAPED_CATEGORIES


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
