"""Which words are hidden here? Some tokens are masked, the model names them (BERT, 1810.04805; RoBERTa, 1907.11692)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED, BatchSource, Objective
from anyformer.objectives.token_facts import TokenFacts, facts_of
from anyformer.objectives.words import TeachableWords, row_means, word_loss


class Masked(TeachableWords, Objective):
    """A share `rate` of the tokens is chosen; of those `keep` stay, `random` become another, the rest the mask token.

    The loss is that of the chosen tokens alone. Every epoch hides others (RoBERTa), with `static` always the same;
    `whole_words` chooses all pieces of a word together.
    """

    rate: float = 0.15
    """Share of the tokens that are chosen."""
    random: float = 0.1
    """Share of the chosen tokens that become a random token."""
    keep: float = 0.1
    """Share of the chosen tokens that stay as they are."""
    whole_words: bool = False
    """Whether all pieces of a word are chosen together."""
    static: bool = False
    """Whether every epoch hides the same tokens (BERT); else others (RoBERTa)."""

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"rate {self.rate} is not a share", where="Masked", fix="use 0.15")
        if self.random < 0 or self.keep < 0 or self.random + self.keep > 1:
            raise UserError(f"random {self.random} and keep {self.keep} are not shares of one whole", where="Masked",
                            fix="use 0.1 and 0.1")  # fmt: skip

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        facts = facts_of(source)
        draw = replace(draw, epoch=0) if self.static else draw
        tokens = batch.inputs[0].numpy().copy()  # (B, T)
        targets = np.full_like(tokens, IGNORED)
        for row, (number, asked) in enumerate(zip(batch.rows.tolist(), batch.targets.numpy(), strict=True)):
            random = draw.generator(number)
            chosen = self.choose(tokens[row], asked, facts, random)
            targets[row, chosen] = tokens[row, chosen]
            tokens[row, chosen] = self.treat(tokens[row, chosen], facts, random)
        inputs = (torch.from_numpy(tokens), *batch.inputs[1:])
        return replace(batch, inputs=inputs, targets=torch.from_numpy(targets), most_targets=self.most(tokens.shape[1]))

    def choose(
        self, tokens: np.ndarray, asked: np.ndarray, facts: TokenFacts, random: np.random.Generator
    ) -> np.ndarray:
        """Where tokens are chosen, of those that are text; on average exactly `rate` of them, and at least one."""
        places = np.flatnonzero((asked != IGNORED) & facts.ordinary[tokens])
        wanted = self.rate * len(places)
        count = min(len(places), max(1, math.floor(wanted + random.random())))
        if not self.whole_words:
            return np.sort(random.permutation(places)[:count])
        words = np.cumsum(facts.begins_word[tokens[places]] | (np.diff(places, prepend=-2) > 1))  # (N,) word of a place
        chosen = np.zeros(len(places), bool)
        for word in random.permutation(np.unique(words)):
            pieces = words == word
            if (
                chosen.sum() + pieces.sum() <= count or not chosen.any()
            ):  # a word too long for what is left is passed over
                chosen |= pieces
            if chosen.sum() >= count:
                break
        return places[chosen]

    def treat(self, chosen: np.ndarray, facts: TokenFacts, random: np.random.Generator) -> np.ndarray:
        """What stands in the place of the chosen tokens (K,)."""
        lot = random.random(len(chosen))
        others = random.choice(facts.drawable, len(chosen))
        return np.where(lot < self.keep, chosen, np.where(lot < self.keep + self.random, others, facts.mask_id()))

    def most(self, length: int) -> int | None:
        """Targets of a row at most; a long word may go beyond any number."""
        return None if self.whole_words else max(1, math.floor(self.rate * length) + 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return word_loss(model, batch)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return row_means(output.logits, batch.targets)
