"""Texts into arrays of token ids: encoded once, on all cores, in batches, and truncated if a row is too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.data.datasets.arrays import Arrays
from anyformer.data.tokenizers.backends import LibraryEngine
from anyformer.data.tokenizers.formats import FORMS
from anyformer.data.tokenizers.tokenizer import Tokenizer

AT_ONCE = 20_000  # rows encoded at once


@dataclass(frozen=True)
class Around:
    """The special tokens around a text, and around and between two."""

    front: list[int]
    back: list[int]
    first: list[int]  # before the first of two texts
    middle: list[int]
    last: list[int]
    second: int  # number of tokens of `middle` with the first text's token type


def around(tokenizer: Tokenizer) -> Around:
    """The tokenizer's special tokens around texts, found by encoding a letter."""
    letter = tokenizer.encode("a", special=False)
    whole, pair = tokenizer.encode("a"), tokenizer.encode("a", "a")
    at, size = place(whole, letter), len(letter)
    one = place(pair, letter)
    two = one + size + place(pair[one + size :], letter)
    middle = pair[one + size : two]
    belongs = len(middle)
    if isinstance(tokenizer.engine, LibraryEngine):
        kinds = tokenizer.core.encode("a", "a").type_ids
        belongs = sum(kind == 0 for kind in kinds[one + size : two])
    return Around(whole[:at], whole[at + size :], pair[:one], middle, pair[two + size :], belongs)


def place(ids: Sequence[int], part: Sequence[int]) -> int:
    """The start of the part in the ids."""
    return next(i for i in range(len(ids) + 1) if list(ids[i : i + len(part)]) == list(part))


def has_segments(tokenizer: Tokenizer) -> bool:
    """Whether models with this tokenizer separate two texts by token types."""
    rule = FORMS.get(tokenizer.form)
    named = tokenizer.settings.get("model_input_names")
    return bool(rule and rule.segments) or (isinstance(named, list) and "token_type_ids" in named)


class Flat:
    """Rows of different lengths concatenated in one array, and the start of each."""

    def __init__(self, arrays: Arrays, name: str, dtype: type) -> None:
        self.arrays, self.name, self.dtype = arrays, name, dtype
        self.values = arrays.growing(name, dtype)
        self.lengths: list[np.ndarray] = []

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        """Append rows."""
        self.lengths.append(np.fromiter((len(row) for row in rows), np.int64, len(rows)))
        total = int(self.lengths[-1].sum())
        self.values.add(np.fromiter((number for row in rows for number in row), self.dtype, total))

    def close(self) -> None:
        """Save two arrays: `name` and `name_starts` (N + 1)."""
        self.values.close()
        self.arrays.put(f"{self.name}_starts", np.cumsum(np.concatenate([np.zeros(1, np.int64), *self.lengths])))


def token_type(tokenizer: Tokenizer) -> type:
    """The smallest dtype for every id."""
    return np.uint16 if tokenizer.size <= 2**16 else np.uint32


def pieces(rows: int, size: int = AT_ONCE) -> Iterator[slice]:
    """Slices that cover all rows."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def fair(lengths: Sequence[int], room: int) -> list[int]:
    """The kept length of each part if the longest are truncated first.

    >>> fair([3, 10, 9], 15)
    [3, 6, 6]
    """
    kept = list(lengths)
    while sum(kept) > room:
        longest = max(kept)
        at = [i for i, length in enumerate(kept) if length == longest]
        below = max((length for length in kept if length < longest), default=0)
        surplus = sum(kept) - room
        step = min(longest - below, max(1, surplus // len(at)))
        if surplus < len(at):
            at, step = at[-surplus:], 1
        for i in at:
            kept[i] -= step
    return kept


class Framer:
    """Joins the parts of a row (one or more texts) with special tokens, to at most `length` tokens."""

    def __init__(self, tokenizer: Tokenizer, length: int, parts: int, *, joined: bool = False) -> None:
        self.marks = around(tokenizer)
        ends = (tokenizer.sep, tokenizer.eos, tokenizer.bos)
        self.between = [next((token for token in ends if token is not None), 0)]
        self.fill = next((t for t in (tokenizer.unk, tokenizer.pad, tokenizer.eos) if t is not None), 0)
        self.pair = parts == 2 and not joined
        own = self.marks.first + self.marks.middle + self.marks.last
        special = len(own) if self.pair else len(self.marks.front + self.marks.back) + parts - 1
        self.length = max(length, special + 1)
        self.room = self.length - special

    def __call__(self, parts: Sequence[Sequence[int]]) -> tuple[list[int], int, bool]:
        """The row's tokens, the start of its second text, and whether it was truncated."""
        lengths = [len(part) for part in parts]
        cut = sum(lengths) > self.room
        if cut:
            parts = [part[:keep] for part, keep in zip(parts, fair(lengths, self.room), strict=True)]
        marks = self.marks
        if self.pair:
            row = [*marks.first, *parts[0], *marks.middle, *parts[1], *marks.last]
            return row, len(marks.first) + len(parts[0]) + marks.second, cut
        inner = list(parts[0])
        for part in parts[1:]:
            inner += [*self.between, *part]
        row = [*marks.front, *inner, *marks.back]
        return row or [self.fill], len(row), cut  # a row needs at least one token


def encode_columns(tokenizer: Tokenizer, columns: Sequence[Sequence[str]]) -> Iterator[tuple[list[int], ...]]:
    """The ids of each row's texts, without special tokens."""
    made = [tokenizer.encode_batch(texts, special=False) for texts in columns]
    return zip(*made, strict=True)


def longest(rows: Iterable[int], *, least: int = 16, most: int = 512) -> int:
    """A length for these rows: the next power of two that fits the longest, up to `most`."""
    needed = max(rows, default=least)
    length = least
    while length < min(needed, most):
        length *= 2
    return min(length, most)


class WordEncoder:
    """Encodes the words of sentences; each distinct word is encoded once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.known: dict[str, list[int]] = {}
        # A tokenizer that includes spaces in its tokens needs one before a word; others add it themselves.
        apart = tokenizer.encode("a a", special=False)
        one, spaced = tokenizer.encode("a", special=False), tokenizer.encode(" a", special=False)
        self.blank = "" if apart == one + one and apart != one + spaced else " "

    def __call__(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The ids of each word of each sentence."""
        spelled = [[word if at == 0 else self.blank + word for at, word in enumerate(words)] for words in sentences]
        new = list(dict.fromkeys(text for texts in spelled for text in texts if text not in self.known))
        self.known.update(zip(new, self.tokenizer.encode_batch(new, special=False), strict=True))
        return [[self.known[text] for text in texts] for texts in spelled]
