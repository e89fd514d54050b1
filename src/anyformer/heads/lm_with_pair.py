"""The pretraining head of BERT and ALBERT: masked LM and next-sentence or sentence-order prediction."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.errors import UserError
from anyformer.heads.lm import LM
from anyformer.heads.pooled import Pooled
from anyformer.slots import Head, HeadOutput


class LMWithPair(Head):
    """Token logits by `words`, and two logits (B,2) per row by `pair` as `pooled`.

    The second of the two is for texts that do not belong together: not the next sentence (BERT), or in the wrong order
    (ALBERT).
    """

    about: ClassVar[About | None] = About("logits = words(x), p(apart) = softmax(pair(x_0))", "1810.04805", "T D V")

    words: LM = LM()
    """The language-model head."""
    pair: Pooled = Pooled(classes=2, dense=True, act="tanh")
    """The head that classifies the pair."""

    def check(self) -> None:
        if self.pair.classes != 2:
            raise UserError(f"a pair has two cases, not {self.pair.classes}", where="LMWithPair.pair", fix="classes=2")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return LMWithPairModule(self, width, vocabulary)


class LMWithPairModule(nn.Module):
    def __init__(self, spec: LMWithPair, width: int, vocabulary: tuple[int, int | None] | None) -> None:
        super().__init__()
        self.words = spec.words.build(width, vocabulary)
        self.pair = spec.pair.build(width, vocabulary)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        words, pair = self.words(hidden, context, table), self.pair(hidden, context, table)
        return HeadOutput(logits=words.logits, pooled=pair.logits)
