"""Blocks: running text cut into rows of equal length, for pretraining objectives that hide parts of it."""

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

SENTINEL = "<extra_id_{}>"  # as in T5


class Blocks(Windows):
    """One part of a text in blocks of `length` tokens, each between the tokenizer's special tokens.

    A block is the same text in every epoch: only what an objective hides of it changes (`Objective.corrupt`). The ids
    are both inputs and targets, without a shift; special tokens and padding are not targets. With a draw the last block
    overlaps the previous one so that it is full; without one it is padded, and every token occurs exactly once.

    >>> rows = Blocks(np.arange(10), 4)
    >>> rows.batch([0, 2]).inputs[0].tolist(), rows.batch([0, 2]).targets.tolist()
    ([[0, 1, 2, 3], [8, 9, 0, 0]], [[0, 1, 2, 3], [8, 9, -100, -100]])
    """

    noun = "blocks"

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text."""
        return ([], []) if self.tokenizer is None else frame_of(self.tokenizer)

    @property
    def room(self) -> int:
        """Text tokens per block."""
        before, behind = self.frame
        return max(1, self.length - len(before) - len(behind))

    @cached_property
    def facts(self) -> TokenFacts:
        """Facts on the tokens for objectives."""
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
        for row, count in enumerate(there.sum(1).tolist()):  # the end token is after the last token, before the padding
            stop = len(before) + count
            tokens[row, :stop] = [*before, *ids[row, :count]]
            targets[row, len(before) : stop] = ids[row, :count]
            tokens[row, stop : stop + len(behind)] = behind
            mask[row, : stop + len(behind)] = True
        named = {} if mask.all() else {"mask": torch.from_numpy(mask)}
        numbers = torch.from_numpy(np.array(rows, dtype=np.int64))
        return Batch((torch.from_numpy(tokens),), torch.from_numpy(targets), numbers, named)


class SourceBlocks(Blocks):
    """Blocks for encoder-decoders: an objective makes an input and a target of each."""

    feeds_decoder = True


def frame_of(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer adds before and after a text.

    A tokenizer trained here for an encoder has such tokens but does not add them: then they are added here.
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
    """Facts on a tokenizer's tokens for objectives; `start` is the decoder's start token."""
    if tokenizer is None:
        return TokenFacts(np.ones(size, bool), np.ones(size, bool), pad=fill, start=start)
    ordinary = ordinary_tokens(tokenizer, size)
    begins, closes = word_edges(tokenizer, size)
    return TokenFacts(
        ordinary, begins | ~ordinary, closes | ~ordinary, mask=tokenizer.mask, pad=fill, start=start,
        eos=tokenizer.eos, cls=tokenizer.cls, sep=tokenizer.sep, sentinels=sentinels_of(tokenizer),
    )  # fmt: skip


def ordinary_tokens(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """Mask of ids (V,) that stand for text: those with a token that is not special."""
    words = tokenizer
    special = {words.bos, words.eos, words.unk, words.sep, words.pad, words.cls, words.mask, *sentinels_of(words)}
    special |= {number for number, token in words.engine.added().items() if token.special}
    known = range(words.size)
    return np.array([n in known and n not in special and words.engine.token(n) is not None for n in range(size)], bool)


def word_edges(tokenizer: Tokenizer, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks of ids that begin a word in any context (V,), and that end one (V,).

    WordPiece marks the continuation of a word by ##. With other tokenizers a word is a run of letters and digits: a
    token that begins with one continues a word that ended in one; spaces, line ends and punctuation separate words. A
    byte of a non-ASCII character counts as a letter: in most texts it is one, and characters are never cut.
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
    """Whether a byte is a letter, a digit or part of a multi-byte character."""
    return byte.isalnum() or byte >= b"\x80"


def sentinels_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of T5's sentinels in order, as far as the tokenizer has them."""
    found: list[int] = []
    while (number := tokenizer.engine.id_of(SENTINEL.format(len(found)))) is not None:
        found.append(number)
    return tuple(found)
