"""Replaced-token detection: one logit per token (ELECTRA's discriminator, 2003.10555)."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from anyformer.about import About
from anyformer.core.activation import Act
from anyformer.errors import check_fraction
from anyformer.heads.tokens import TokenHead, TokenHeadModule
from anyformer.slots import Head


class Replaced(Head):
    """A dense layer with activation `act`, then one logit per token, (B,T,1): above 0 means replaced."""

    act: Act = "gelu"
    """Activation function."""
    dropout: float = 0.0
    """Dropout probability."""

    about: ClassVar[About | None] = About("p(replaced) = sigmoid(w . act(W h + b) + c)", "2003.10555", "T D^2")

    def check(self) -> None:
        check_fraction("Replaced", "dropout", self.dropout, fix="use 0.1")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return TokenHeadModule(TokenHead(classes=1, dense=True, act=self.act, dropout=self.dropout), width)
