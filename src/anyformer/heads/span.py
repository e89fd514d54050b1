"""Span prediction: where an answer starts and ends in the text."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.errors import check_fraction
from anyformer.slots import Head, HeadOutput


class Span(Head):
    """Two logits per token, start and end: (B,T,2)."""

    about: ClassVar[About | None] = About("start_t = w_s . x_t, end_t = w_e . x_t", "1810.04805", "T D")

    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        check_fraction("Span", "dropout", self.dropout, fix="use 0.1")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return SpanModule(self, width)


class SpanModule(nn.Module):
    def __init__(self, spec: Span, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = LinearLayer(width, 2)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        return HeadOutput(logits=self.out(F.dropout(hidden, self.spec.dropout, self.training)))
