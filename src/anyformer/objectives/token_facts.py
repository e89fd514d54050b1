"""TokenFacts: what an objective that hides words must know of a vocabulary, and nothing of the tokenizer's code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyformer.errors import UserError
from anyformer.objectives.objective import BatchSource


@dataclass(frozen=True)
class TokenFacts:
    """Ids of special tokens, and facts of every id. `sentinels` stand for hidden spans, in their order (T5)."""

    ordinary: np.ndarray  # (V,) True: a piece of text, which may be hidden or put in the place of another
    begins_word: np.ndarray  # (V,) True: the first piece of a word, whatever is before it
    closes_word: np.ndarray | None = None  # (V,) True: whatever is behind it begins a word; None: no piece does
    mask: int | None = None
    pad: int = 0
    start: int | None = None  # what the decoder of an encoder-decoder begins with
    eos: int | None = None
    cls: int | None = None
    sep: int | None = None
    sentinels: tuple[int, ...] = ()

    @cached_property
    def drawable(self) -> np.ndarray:
        """The ids that stand for text, from which a random one is drawn."""
        return np.flatnonzero(self.ordinary)

    @property
    def start_id(self) -> int:
        """What a decoder begins with; T5 has no token for it and takes the padding."""
        return self.pad if self.start is None else self.start

    @property
    def gap_id(self) -> int:
        """The id that stands for one hidden token in what an encoder reads; T5 has no mask and takes a sentinel."""
        if self.mask is None and self.sentinels:
            return self.sentinels[0]
        return self.mask_id()

    def mask_id(self) -> int:
        """The id that stands for what is hidden."""
        if self.mask is None:
            raise UserError("the tokenizer has no mask token", where="--task masked",
                            fix="let one be trained, or give a folder whose tokenizer has one")  # fmt: skip
        return self.mask

    def word_numbers(self, tokens: np.ndarray) -> np.ndarray:
        """The number of the word that each token of a text (N,) is a piece of, from 0 on and rising."""
        begins = self.begins_word[tokens]
        if self.closes_word is not None:
            begins = begins | np.concatenate([[True], self.closes_word[tokens[:-1]]])
        return np.cumsum(begins) - begins[:1].sum()


def facts_of(source: BatchSource) -> TokenFacts:
    """What is known of the tokens of a source of text."""
    found = getattr(source, "facts", None)
    if not isinstance(found, TokenFacts):
        raise UserError(f"{type(source).__name__} is not blocks of text", fix="prepare the text for a pretraining task")
    return found
