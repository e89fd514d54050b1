"""Token classification: tags, residues, replaced tokens."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.activation import ACTS, Act
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.errors import check_at_least, check_fraction
from anyformer.slots import Head, HeadOutput


class TokenHead(Head):
    """`classes` logits per token, after a dense layer with activation `act` if `dense`."""

    about: ClassVar[About | None] = About("logits_t = W x_t + b", "1810.04805", "T D classes")

    classes: int
    """Number of classes."""
    dense: bool = False
    """Whether a dense layer comes before the logits."""
    act: Act | None = None
    """Activation of the dense layer."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        check_at_least("TokenHead", "classes", self.classes, 1, fix="give the number of labels")
        check_fraction("TokenHead", "dropout", self.dropout, fix="use 0.1")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return TokenHeadModule(self, width)


class TokenHeadModule(nn.Module):
    def __init__(self, spec: TokenHead, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.dense = LinearLayer(width, width) if spec.dense else None
        self.out = LinearLayer(width, spec.classes)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        x = hidden if self.dense is None else self.dense(hidden)
        x = x if self.spec.act is None else ACTS[self.spec.act](x)
        return HeadOutput(logits=self.out(F.dropout(x, self.spec.dropout, self.training)))  # (B,T,classes)
