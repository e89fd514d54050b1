"""Number formats of columns: thousands separators, a decimal comma, a currency or percent sign.

A format is an example number, followed by the sign if there is one: `1.234,5 €`. It is recognised once per column,
saved with what was fitted, and used to parse every cell of new rows.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.columns.convert import (
    NUMBER,
    allowed_misfits,
    clean_words,
    is_words,
    numbers,
    numbers_in,
    pieces,
    stands_for_none,
)

if TYPE_CHECKING:
    import pyarrow as pa

MARKS = {  # number formats, with their thousands and decimal separators; the first that fits is used
    "1,234.5": (",", "."), "1.234,5": (".", ","), "1 234.5": (" ", "."), "1 234,5": (" ", ","), "1'234.5": ("'", "."),
}  # fmt: skip
POINTS = "1.234,5"  # points separate thousands
LENGTH = len("1,234.5")  # length of every example
SIGNS = frozenset(
    "% ‰ $ US$ A$ C$ R$ € £ ¥ ₹ ₽ ₩ ₺ ₪ zł kr Kč Rs USD EUR GBP CHF JPY INR CNY RUB CAD AUD BRL SEK NOK DKK PLN".split()
)
NOT_SIGN = re.compile(r"[\d\s.,'\u2019+()\-]+")
THOUSANDS = r"^[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d{1,3})$"
MOST_CHANCE = 10  # distinct numbers with a point that may have three digits after it by chance
SAMPLE = 1000  # distinct cells that decide whether the whole column is checked


def numbers_written(column: Any, form: str) -> np.ndarray:
    """The cells as float64, nan if missing or not in this format; "" is the format of programs."""
    if not is_number_form(form) or not is_words(column.type):
        return numbers(column)
    parts = [numbers_in_form(clean_words(piece), form) for piece in pieces(column)]
    return np.concatenate(parts) if parts else np.zeros(0)


def is_number_form(form: str) -> bool:
    """Whether a format is one of numbers; `iso` is one of dates."""
    return form[:LENGTH] in MARKS


def numbers_in_form(words: pa.Array, form: str) -> np.ndarray:
    """Cleaned texts as float64, nan if not in this format."""
    import pyarrow as pa
    import pyarrow.compute as pc

    (thousands, decimal), sign = MARKS[form[:LENGTH]], form[LENGTH:].strip()
    for odd, plain in (("\u00a0", " "), ("\u202f", " "), ("\u2019", "'"), ("\u2212", "-")):
        words = pc.replace_substring(words, odd, plain)
    if sign:
        words = pc.replace_substring(words, sign, "", max_replacements=1)
    words = pc.replace_substring_regex(pc.utf8_trim_whitespace(words), r"^\((.*)\)$", r"-\1")  # (5) is -5 in accounting
    words = pc.replace_substring_regex(words, r"^([+-])\s+", r"\1")
    whole = rf"(?:[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+|\d+)"
    fits = pc.match_substring_regex(words, rf"^[+-]?{whole}(?:{re.escape(decimal)}\d+)?$")
    words = pc.if_else(fits, words, pa.scalar(None, words.type))
    return numbers_in(pc.replace_substring(pc.replace_substring(words, thousands, ""), decimal, "."))


def number_form(column: Any) -> str | None:
    """The number format of a column of words; None if they are not numbers, "" for the format of programs.

    A few cells may not fit, as in any column; a column of two currencies is not numeric.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_words(column.type):
        return None
    found = [pc.unique(clean_words(piece)).drop_null() for piece in pieces(column)]
    words = pc.unique(pa.chunked_array(found, found[0].type)) if found else pa.array([], pa.string())
    words = words.filter(pc.invert(stands_for_none(words)))
    sample = words.slice(0, SAMPLE)
    signs = Counter(sign_of(word) for word in sample.to_pylist())
    signs.pop("", None)
    sign = signs.most_common(1)[0][0] if signs else ""
    sign = sign if sign in SIGNS and 2 * signs[sign] >= len(sample) else ""
    if not len(words):
        return None
    forms = [f"{example} {sign}".strip() for example in MARKS]
    read = {form: np.isfinite(numbers_in_form(sample, form)).sum() for form in forms}
    if not sign:
        read = {"": np.isfinite(numbers_in(sample)).sum()} | read
    best = max(read, key=lambda form: int(read[form]))  # the first of equals
    if best == "" and has_thousands(column):
        best = POINTS
    if read[best] < len(sample) - allowed_misfits(len(sample)):
        return None
    good = np.isfinite(numbers_in_form(words, best) if best else numbers_in(words)).sum()
    return best if len(words) - good <= allowed_misfits(len(words)) else None


def has_thousands(column: Any, *, whole: bool = False) -> bool:
    """Whether numbers that a program could have written have thousands separators: 950 beside 1.243 and 12.500.

    Each point has three digits after it and no lone 0 before it, and some numbers below a thousand have none: a program
    that writes 1.243 for a decimal writes 12.500 as 12.5, or 950 as 950.000. `whole` means that the file is known to
    use decimal commas, so that all of them may have a point.
    """
    import pyarrow.compute as pc

    if not is_words(column.type):
        return False
    found = [clean_words(piece).drop_null() for piece in pieces(column)]
    first = pc.unique(found[0]).slice(0, SAMPLE) if found else None
    if first is None or not pc.any(pc.match_substring(first, ".")).as_py():
        return False
    for words in (first, *found):
        words = words.filter(pc.invert(stands_for_none(words)))
        if not pc.all(pc.match_substring_regex(words, THOUSANDS), min_count=0).as_py():
            return False
    dotted = pc.match_substring(first, ".")
    plain = int(pc.sum(pc.invert(dotted)).as_py())
    return whole or (int(pc.sum(dotted).as_py()) >= MOST_CHANCE and plain >= 2)


def sign_of(word: str) -> str:
    """The part of a cell that is neither digits nor separators."""
    return NOT_SIGN.sub("", word)


def number_of_text(text: str, form: str) -> float | None:
    """The number that a text spells in a format, or None."""
    import pyarrow as pa

    text = text.strip()
    if not form:
        return float(text) if re.fullmatch(NUMBER, text, re.ASCII) else None
    (value,) = numbers_in_form(pa.array([text], pa.string()), form).tolist()
    return None if np.isnan(value) else value
