"""Masked language modelling (BERT, 1810.04805; RoBERTa, 1907.11692)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED, BatchSource, Objective, full
from anyformer.objectives.text_pairs import PairKind, make_pairs
from anyformer.objectives.token_facts import TokenFacts, facts_of
from anyformer.objectives.words import TeachableWords, row_means, score_words, word_loss


class Masked(TeachableWords, Objective):
    """A share `rate` of the tokens is chosen; of those `keep` stay, `random` become another, the rest the mask token.

    The loss is that of the chosen tokens alone. Every epoch hides others (RoBERTa), with `static` always the same;
    `whole_words` chooses all pieces of a word together. With `pairs` a row is two texts, and whether they belong
    together is asked too: its cross-entropy is added to the loss of each word of the row.
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
    pairs: Literal["none"] | PairKind = "none"
    """Two texts in a row: "next" asks if the second follows (BERT), "order" if both are swapped (ALBERT)."""

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"rate {self.rate} is outside (0, 1)", where="Masked", fix="use 0.15")
        if self.random < 0 or self.keep < 0 or self.random + self.keep > 1:
            raise UserError(f"random {self.random} and keep {self.keep} are not shares of one whole", where="Masked",
                            fix="use 0.1 and 0.1")  # fmt: skip

    # ------------------------------------------------------------ what is hidden

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        facts = facts_of(source)
        draw = replace(draw, epoch=0) if self.static else draw
        if self.pairs != "none":
            batch = make_pairs(batch, self.pairs, draw, source, facts)
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
        """Positions of the chosen ordinary tokens: on average exactly `rate` of them, and at least one."""
        places = np.flatnonzero((asked != IGNORED) & facts.ordinary[tokens])
        wanted = self.rate * len(places)
        count = min(len(places), max(1, math.floor(wanted + random.random())))
        if self.whole_words:
            chosen = choose_words(facts.word_numbers(tokens)[places], count, random)
            if len(chosen):
                return places[chosen]
        return np.sort(random.permutation(places)[:count])

    def treat(self, chosen: np.ndarray, facts: TokenFacts, random: np.random.Generator) -> np.ndarray:
        """Replacements of the chosen tokens (K,): kept, random or mask, in exactly these proportions on average."""
        count, lot = len(chosen), random.permutation(len(chosen))
        shift = random.random()  # one random shift for both borders, so that rounding is unbiased
        stay, become = (math.floor(share * count + shift) for share in (self.keep, self.keep + self.random))
        others = random.choice(facts.drawable, count)
        return np.where(lot < stay, chosen, np.where(lot < become, others, facts.mask_id()))

    def most(self, length: int) -> int:
        """Most targets of a row."""
        return max(1, math.floor(self.rate * length) + 1)

    # ------------------------------------------------------------ the loss

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if batch.pair is None:
            return word_loss(model, batch)
        network: Any = model
        out = network.before_head(*batch.inputs, **batch.named)
        words = score_words(out, network.head.words, network.table(), batch)
        pairs = network.head.pair(out.hidden, out.context, None).logits  # (B, 2)
        # The pair loss is added per masked token of its row, so that micro-batches add up to the whole batch.
        return words + (pair_losses(pairs, batch.pair) * (batch.targets != IGNORED).sum(1)).sum()

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        """Without the pair loss, so that models with and without pairs are comparable."""
        return row_means(output.logits, batch.targets)


def pair_losses(logits: Tensor, pair: Tensor) -> Tensor:
    """The cross-entropy of each row's pair (B,), of logits (B,2)."""
    return F.cross_entropy(full(logits), pair, reduction="none")


def choose_words(words: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Tokens of random whole words, at most `count`; `words` (N,) is the word number of each token.

    A word too long for the rest of the budget is skipped; the result is empty if every word is too long.
    """
    sizes = np.bincount(words)
    taken, left = np.zeros(len(sizes), bool), count
    for word in random.permutation(np.flatnonzero(sizes)).tolist():
        if sizes[word] <= left:
            taken[word] = True
            left -= int(sizes[word])
            if not left:
                break
    return np.flatnonzero(taken[words])
