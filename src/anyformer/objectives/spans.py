"""Span corruption: spans become sentinels, the decoder predicts them (T5, 1910.10683)."""

from __future__ import annotations

import numpy as np

from anyformer.errors import UserError, check_range
from anyformer.objectives.denoising import Denoising
from anyformer.objectives.drop_tokens import count_lost
from anyformer.objectives.token_facts import TokenFacts


class Spans(Denoising):
    """A share `rate` of the tokens is lost in spans of `mean_length` on average, each of which becomes one sentinel.

    Read is the text with sentinels in the place of the spans, written are the spans, each behind its sentinel, and the
    end token. Spans and what stands between them are drawn as T5 does: every way to cut the lost tokens into that many
    spans is as likely, and so is every way to cut the rest; a text begins with what stays.
    """

    rate: float = 0.15
    """Share of the tokens that are lost."""
    mean_length: float = 3.0
    """Tokens of a lost span on average."""

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"rate {self.rate} is outside (0, 1)", where="Spans", fix="use 0.15")
        check_range("Spans", "mean_length", self.mean_length, 1, fix="use 3")

    def count(self, length: int) -> tuple[int, int]:
        """How many tokens of a text are masked, and in how many spans.

        >>> Spans().count(500)
        (75, 25)
        """
        if length < 2:
            return 0, 0
        lost = count_lost(length, self.rate)
        return lost, min(max(round(lost / self.mean_length), 1), length - lost)

    def longest(self, length: int) -> tuple[int, int]:
        lost, spans = self.count(length)
        return length - lost + spans, lost + spans

    def rewrite(
        self, text: np.ndarray, facts: TokenFacts, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        lost, spans = self.count(len(text))
        if spans > len(facts.sentinels):
            raise UserError(
                f"{spans} spans of a text need as many sentinels, and the tokenizer has {len(facts.sentinels)}",
                where="--task spans", fix=f"raise objective.mean_length to {-(-lost // max(1, len(facts.sentinels)))}, "
                "or let a tokenizer be trained",
            )  # fmt: skip
        if not spans:
            return text, text[:0]
        kept = random_lengths(len(text) - lost, spans, random)
        hidden = random_lengths(lost, spans, random)
        lengths = np.stack([kept, hidden], 1).reshape(-1)  # kept, hidden, kept, hidden, ...
        pieces = np.split(text, np.cumsum(lengths)[:-1])
        marks = [np.array([sentinel]) for sentinel in facts.sentinels[:spans]]
        read = [part for pair in zip(pieces[::2], marks, strict=True) for part in pair]
        written = [part for pair in zip(marks, pieces[1::2], strict=True) for part in pair]
        return np.concatenate(read), np.concatenate(written)


def random_lengths(total: int, parts: int, random: np.random.Generator) -> np.ndarray:
    """A uniformly random split of `total` into `parts` positive integers.

    >>> random_lengths(5, 5, np.random.default_rng(0)).tolist()
    [1, 1, 1, 1, 1]
    """
    cuts = np.sort(random.permutation(total - 1)[: parts - 1]) + 1
    return np.diff(cuts, prepend=0, append=total)
