"""Deshuffling: from a text with shuffled tokens, the decoder predicts the original (T5, 1910.10683)."""

from __future__ import annotations

import numpy as np

from anyformer.objectives.denoising import Denoising
from anyformer.objectives.token_facts import TokenFacts


class Deshuffle(Denoising):
    """The tokens of a text in any order are read, the text itself is written."""

    def longest(self, length: int) -> tuple[int, int]:
        return length, length

    def rewrite(
        self, text: np.ndarray, facts: TokenFacts, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        return random.permutation(text), text
