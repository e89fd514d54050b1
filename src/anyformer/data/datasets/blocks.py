"""Blocks: running text cut into rows of equal length for the objectives that hide a part of it and ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Draw
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.training import BOUNDARY
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED
from anyformer.objectives.token_facts import TokenFacts

SENTINEL = "<extra_id_{}>"  # as T5 writes them


class Blocks(Windows):
    """One part of a text in blocks of `length` tokens, with the tokenizer's begin and end tokens around each.

    A block is the same text in every epoch: what changes is what an objective hides of it (`Objective.corrupt`). The
    ids are both the input and the targets, nothing is shifted; begin, end and padding are not targets. With a draw the
    last block reaches back so that it is full; without one it is padded, and every token comes exactly once.

    >>> rows = Blocks(np.arange(10), 4)
    >>> rows.batch([0, 2]).inputs[0].tolist(), rows.batch([0, 2]).targets.tolist()
    ([[0, 1, 2, 3], [8, 9, 0, 0]], [[0, 1, 2, 3], [8, 9, -100, -100]])
    """

    noun = "blocks"

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and behind a text."""
        return ([], []) if self.tokenizer is None else frame_of(self.tokenizer)

    @property
    def room(self) -> int:
        """Tokens of the text in a block."""
        before, behind = self.frame
        return max(1, self.length - len(before) - len(behind))

    @cached_property
    def facts(self) -> TokenFacts:
        """What objectives know of the tokens."""
        return token_facts(self.tokenizer, self.vocab or int(self.ids.max()) + 1, self.fill, self.start)

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.room + 1

    def starts(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> np.ndarray:
        numbers = np.asarray(rows, dtype=np.int64)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"rows go from 0 to {len(self) - 1}")
        begin = numbers * self.room
        return begin if draw is None else np.minimum(begin, max(0, len(self.ids) - self.room))

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        text = self.starts(rows, draw)[:, None] + np.arange(self.room)  # (B, room)
        there = text < len(self.ids)
        ids = self.ids[np.minimum(text, len(self.ids) - 1)].astype(np.int64)
        before, behind = self.frame
        tokens = np.full((len(ids), len(before) + self.room + len(behind)), self.fill, np.int64)  # (B, T)
        targets, mask = np.full_like(tokens, IGNORED), np.zeros(tokens.shape, bool)
        for row, count in enumerate(there.sum(1).tolist()):  # the end stands behind the last token, before the padding
            stop = len(before) + count
            tokens[row, :stop] = [*before, *ids[row, :count]]
            targets[row, len(before) : stop] = ids[row, :count]
            tokens[row, stop : stop + len(behind)] = behind
            mask[row, : stop + len(behind)] = True
        named = {} if mask.all() else {"mask": torch.from_numpy(mask)}
        numbers = torch.from_numpy(np.array(rows, dtype=np.int64))
        return Batch((torch.from_numpy(tokens),), torch.from_numpy(targets), numbers, named)


class SourceBlocks(Blocks):
    """Blocks that an encoder-decoder learns from: an objective makes of each what is read and what is written."""

    feeds_decoder = True


def frame_of(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and behind a text.

    A tokenizer that was trained here for a model that reads has such tokens but puts none: then they are put here.
    """
    plain, framed = (tokenizer.encode("a", special=special) for special in (False, True))
    if framed != plain and plain:
        at = next((i for i in range(len(framed)) if framed[i : i + len(plain)] == plain), None)
        if at is not None:
            return framed[:at], framed[at + len(plain) :]
    if tokenizer.cls is not None and tokenizer.sep is not None:
        return [tokenizer.cls], [tokenizer.sep]
    return [], []


def token_facts(tokenizer: Tokenizer | None, size: int, fill: int, start: int | None = None) -> TokenFacts:
    """What objectives must know of a tokenizer's tokens; `start` is what a decoder begins with."""
    if tokenizer is None:
        return TokenFacts(np.ones(size, bool), np.ones(size, bool), pad=fill, start=start)
    ordinary = ordinary_tokens(tokenizer, size)
    begins, closes = word_edges(tokenizer, size)
    return TokenFacts(
        ordinary, begins | ~ordinary, closes | ~ordinary, mask=tokenizer.mask, pad=fill, start=start,
        eos=tokenizer.eos, cls=tokenizer.cls, sep=tokenizer.sep, sentinels=sentinels_of(tokenizer),
    )  # fmt: skip


def ordinary_tokens(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """Which ids stand for a piece of text (V,): those with a token that is not special."""
    words = tokenizer
    special = {words.bos, words.eos, words.unk, words.sep, words.pad, words.cls, words.mask, *sentinels_of(words)}
    special |= {number for number, token in words.engine.added().items() if token.special}
    known = range(words.size)
    return np.array([n in known and n not in special and words.engine.token(n) is not None for n in range(size)], bool)


def word_edges(tokenizer: Tokenizer, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which ids begin a word whatever is before them (V,), and which end one whatever is behind (V,).

    WordPiece marks what continues a word by ##. Elsewhere a word is letters and digits in a row: a piece that begins
    with one continues what ended in one, and a blank, a line end or a sign stands between. A byte of a character
    beyond ASCII is taken for a letter: it is one, in most texts, and a character is never cut.
    """
    begins, closes = np.zeros(size, bool), np.zeros(size, bool)
    tokens = {number: tokenizer.engine.token(number) or "" for number in range(tokenizer.size)}
    if any(token.startswith("##") for token in tokens.values()):
        begins[[number for number, token in tokens.items() if not token.startswith("##")]] = True
        return begins, closes
    for number, spelled in enumerate(tokenizer.spelling.tokens):
        spelled = tokens[number].replace(BOUNDARY, " ").encode() if spelled is None else spelled
        begins[number] = not is_letter(spelled[:1])
        closes[number] = not is_letter(spelled[-1:])
    return begins, closes


def is_letter(byte: bytes) -> bool:
    """Whether a byte is a letter, a digit or a part of a longer character."""
    return byte.isalnum() or byte >= b"\x80"


def sentinels_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of T5's sentinels in their order, as far as the tokenizer has them."""
    found: list[int] = []
    while (number := tokenizer.engine.id_of(SENTINEL.format(len(found)))) is not None:
        found.append(number)
    return tuple(found)
