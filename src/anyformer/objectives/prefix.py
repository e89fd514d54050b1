"""Prefix language modelling (1801.10198, 1910.10683)."""

from __future__ import annotations

import numpy as np
import torch

from anyformer.objectives.batch import Batch
from anyformer.objectives.denoising import Denoising, framed_rows
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED, BatchSource
from anyformer.objectives.token_facts import TokenFacts


class Prefix(Denoising):
    """A text is cut in two at a place drawn for each row, every place as likely; the second part is written.

    An encoder-decoder reads the first part with its encoder. A decoder by itself sees all of the first part at once,
    and the second from left to right; the loss is that of the second alone.
    """

    encoder: bool = False
    """Whether an encoder reads the first part; follows from the network."""

    def longest(self, length: int) -> tuple[int, int]:
        return max(1, length - 1), max(1, length - 1)

    def rewrite(
        self, text: np.ndarray, facts: TokenFacts, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        at = cut_place(len(text), random)
        return text[:at], text[at:]

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        if self.encoder:
            return super().corrupt(batch, draw, source)
        tokens = batch.inputs[0]  # (B, T)
        seen = [
            len(row.before) + cut_place(len(row.text), draw.generator(number))
            for row, number in zip(framed_rows(batch), batch.rows.tolist(), strict=True)
        ]
        prefix = torch.tensor(seen)  # (B,)
        there = batch.named.get("mask", torch.ones_like(tokens, dtype=torch.bool))[:, 1:]
        behind = torch.arange(1, tokens.shape[1]) >= prefix[:, None]  # (B, T-1) of the targets
        targets = torch.where(there & behind, tokens[:, 1:], IGNORED)
        # Padding is after the text, where no target attends to it.
        return Batch((tokens[:, :-1].contiguous(),), targets, batch.rows, {"prefix": prefix})


def cut_place(length: int, random: np.random.Generator) -> int:
    """Length of the prefix; neither part is empty if there are two tokens or more."""
    return int(random.integers(1, length)) if length > 1 else length
