"""TokenFacts: what masking objectives need to know of a vocabulary, independent of the tokenizer's code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyformer.errors import UserError
from anyformer.objectives.objective import BatchSource


@dataclass(frozen=True)
class TokenFacts:
    """Ids of special tokens, and properties of every id. `sentinels` replace masked spans, in order (T5)."""

    ordinary: np.ndarray  # (V,) True: not a special token; may be masked or replace another
    begins_word: np.ndarray  # (V,) True: always the first piece of a word
    closes_word: np.ndarray | None = None  # (V,) True: the next token begins a word; None: for no piece
    mask: int | None = None
    pad: int = 0
    start: int | None = None  # decoder start token of an encoder-decoder
    eos: int | None = None
    cls: int | None = None
    sep: int | None = None
    sentinels: tuple[int, ...] = ()

    @cached_property
    def drawable(self) -> np.ndarray:
        """Ordinary ids, from which random tokens are drawn."""
        return np.flatnonzero(self.ordinary)

    @property
    def start_id(self) -> int:
        """The decoder start token; T5 has none and uses the padding token."""
        return self.pad if self.start is None else self.start

    @property
    def gap_id(self) -> int:
        """The id that replaces a masked token in the encoder's input; T5 has no mask token and uses a sentinel."""
        if self.mask is None and self.sentinels:
            return self.sentinels[0]
        return self.mask_id()

    def mask_id(self) -> int:
        """The mask token; an error if there is none."""
        if self.mask is None:
            raise UserError("the tokenizer has no mask token", where="--task masked",
                            fix="let one be trained, or give a folder whose tokenizer has one")  # fmt: skip
        return self.mask

    def word_numbers(self, tokens: np.ndarray) -> np.ndarray:
        """The word number of each token of a text (N,), ascending from 0."""
        begins = self.begins_word[tokens]
        if self.closes_word is not None:
            begins = begins | np.concatenate([[True], self.closes_word[tokens[:-1]]])
        return np.cumsum(begins) - begins[:1].sum()


def facts_of(source: BatchSource) -> TokenFacts:
    """The token facts of a source of text."""
    found = getattr(source, "facts", None)
    if not isinstance(found, TokenFacts):
        raise UserError(f"{type(source).__name__} is not blocks of text", fix="prepare the text for a pretraining task")
    return found
