"""Masked sequence-to-sequence pretraining (MASS, 1905.02450, and T5's variant of it)."""

from __future__ import annotations

import numpy as np

from anyformer.errors import UserError
from anyformer.objectives.denoising import Denoising
from anyformer.objectives.drop_tokens import choose_tokens, count_lost
from anyformer.objectives.token_facts import TokenFacts


class Mass(Denoising):
    """A share `rate` of the tokens, each as likely, is masked one by one; the whole text is written.

    This is what T5 (1910.10683, table 3) calls MASS-style. MASS itself masks one run of tokens, half of the text, and
    the decoder writes that run alone: `span=True, rate=0.5`.
    """

    rate: float = 0.15
    """Share of the tokens that are masked."""
    span: bool = False
    """Whether one run of tokens is masked, and it alone is written."""

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"rate {self.rate} is outside (0, 1)", where="Mass", fix="use 0.15")

    def longest(self, length: int) -> tuple[int, int]:
        return length, count_lost(length, self.rate) if self.span else length

    def rewrite(
        self, text: np.ndarray, facts: TokenFacts, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        if not self.span:
            return np.where(choose_tokens(len(text), self.rate, random), facts.gap_id, text), text
        size = count_lost(len(text), self.rate)
        first = int(random.integers(len(text) - size + 1))
        run = slice(first, first + size)
        read = text.copy()
        read[run] = facts.gap_id
        return read, text[run]
