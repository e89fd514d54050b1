"""Windows: running text as one long array of tokens, cut into rows of equal length for a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from anyformer.data.examples import Draw, Examples
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED


class Windows(Examples):
    """One part of a text in windows of `length` tokens; the target is the next token, shifted only here.

    Without a draw the windows are adjacent from the first token on, and the last one is padded: every token but the
    first is a target exactly once. With a draw all windows are full and start at a random offset per epoch, so that
    each epoch cuts the text elsewhere; up to a window at either end is then skipped or repeated.

    `marks` (M, 3) are positions with a known location in the text: token, document, character.

    >>> rows = Windows(np.arange(10), 4)
    >>> rows.batch([0, 2]).inputs[0].tolist(), rows.batch([0, 2]).targets.tolist()
    ([[0, 1, 2, 3], [8, 0, 0, 0]], [[1, 2, 3, 4], [9, -100, -100, -100]])
    """

    noun: ClassVar[str] = "windows"
    feeds_decoder: ClassVar[bool] = False  # whether a decoder generates part of a row, after a start token

    def __init__(
        self,
        tokens: np.ndarray,
        length: int,
        *,
        bytes: int = 0,
        vocab: int = 0,
        tokenizer: Tokenizer | None = None,
        marks: np.ndarray | None = None,
        names: Sequence[str] = (),
        start: int | None = None,
    ) -> None:
        if len(tokens) < 2 or length < 1:
            raise UserError(f"{len(tokens)} tokens make no window", where="text", fix="give a longer text")
        self.ids = np.asarray(tokens)  # (N,); a plain view of the memory map, which indexes faster
        self.length = length
        self.bytes = bytes  # UTF-8 bytes of the whole part
        self.vocab = vocab
        self.tokenizer = tokenizer
        self.marks = np.zeros((1, 3), np.int64) if marks is None else marks
        self.names = names
        self.start = start  # start token of an encoder-decoder's decoder
        fills = () if tokenizer is None else (tokenizer.pad, tokenizer.eos)
        self.fill = next((token for token in fills if token is not None), 0)

    def __len__(self) -> int:
        return (len(self.ids) - 2) // self.length + 1

    @property
    def tokens(self) -> int:
        """Number of tokens of the whole part; the first one is never a target."""
        return len(self.ids)

    @property
    def first_nats(self) -> float:
        """Loss of the first token, which has no context: a uniform distribution over the vocabulary."""
        return math.log(self.vocab) if self.vocab else 0.0

    def starts(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """The first token of each row's window (B,)."""
        numbers = np.asarray(rows, dtype=np.int64)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"rows go from 0 to {len(self) - 1}")
        if draw is None:
            return numbers * self.length
        # The generator of a row that no window has: the offset depends on the epoch alone.
        offset = int(draw.generator(len(self)).integers(self.length))
        return np.minimum(numbers * self.length + offset, max(0, len(self.ids) - 1 - self.length))

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        places = self.starts(rows, draw)[:, None] + np.arange(self.length + 1)  # (B, T+1)
        last = len(self.ids) - 1
        if places.size and places[:, -1].max() > last:
            beyond = places > last
            ids = self.ids[np.minimum(places, last)].astype(np.int64)
            ids[beyond] = self.fill
            inputs, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
            targets[beyond[:, 1:]] = IGNORED
            inputs[beyond[:, 1:]] = self.fill  # the last token has no successor, so it is only a target
        else:
            ids = self.ids[places].astype(np.int64)
            inputs, targets = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
        numbers = torch.from_numpy(np.array(rows, dtype=np.int64))
        return Batch((torch.from_numpy(inputs),), torch.from_numpy(targets), numbers)

    def place(self, row: int) -> str:
        """`book.txt, about character 120,345`."""
        start = int(self.starts([row])[0])
        if not self.names:
            return f"tokens {start:,} to {min(start + self.length, len(self.ids)):,}"
        mark = int(np.searchsorted(self.marks[:, 0], start, side="right")) - 1
        token, document, character = (int(value) for value in self.marks[mark])
        if mark + 1 < len(self.marks) and int(self.marks[mark + 1, 1]) == document:
            further, _, to = (int(value) for value in self.marks[mark + 1])
            character += (to - character) * (start - token) // max(1, further - token)
        else:
            character += round((start - token) * self.characters_a_token)
        return f"{self.names[document]}, about character {character + 1:,}"

    @property
    def characters_a_token(self) -> float:
        """Approximate; for positions after the last mark of a document."""
        return self.bytes / len(self.ids) if self.bytes else 1.0

    def shown(self, row: int, most: int = 200) -> str:
        """The beginning of the window's text."""
        start = int(self.starts([row])[0])
        ids = self.ids[start : start + min(self.length + 1, most)].tolist()
        if self.tokenizer is None:
            return " ".join(map(str, ids))[:most]
        return self.tokenizer.decode(ids, skip_special=False)[:most]
