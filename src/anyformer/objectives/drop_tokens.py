"""Drop tokens without a sentinel; the decoder predicts the dropped ones (T5, 1910.10683, 3.3.2)."""

from __future__ import annotations

import numpy as np

from anyformer.errors import UserError
from anyformer.objectives.denoising import Denoising
from anyformer.objectives.token_facts import TokenFacts


class DropTokens(Denoising):
    """A share `rate` of the tokens, each as likely, is left out; those tokens are written, in their order."""

    rate: float = 0.15
    """Share of the tokens that are left out."""

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"rate {self.rate} is outside (0, 1)", where="DropTokens", fix="use 0.15")

    def longest(self, length: int) -> tuple[int, int]:
        lost = count_lost(length, self.rate)
        return length - lost, lost

    def rewrite(
        self, text: np.ndarray, facts: TokenFacts, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        lost = choose_tokens(len(text), self.rate, random)
        return text[~lost], text[lost]


def count_lost(length: int, rate: float) -> int:
    """How many tokens of a text are dropped: at least one if there are two, and never all."""
    return min(max(round(length * rate), 1), length - 1)


def choose_tokens(length: int, rate: float, random: np.random.Generator) -> np.ndarray:
    """A uniformly random mask (N,) of the chosen tokens."""
    chosen = np.zeros(length, bool)
    chosen[random.permutation(length)[: count_lost(length, rate)]] = True
    return chosen
