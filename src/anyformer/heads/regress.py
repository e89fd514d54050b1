"""Regression on the whole sequence."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from anyformer.about import About
from anyformer.core.activation import Act
from anyformer.errors import check_at_least, check_fraction
from anyformer.heads.pooled import Pooled, PooledModule
from anyformer.heads.pooling import READS_SOME, Pool
from anyformer.slots import Head, Norm


class Regress(Head):
    """Pool, then `outputs` numbers; otherwise as `Pooled`."""

    about: ClassVar[About | None] = About("y = W pool(x) + b", "2106.11959", "T D")

    outputs: int = 1
    """Numbers to predict."""
    pool: Pool = "first"
    """How the tokens become one vector."""
    norm: Norm | None = None
    """Norm of the pooled vector."""
    dense: bool = False
    """Whether a dense layer follows."""
    act: Act | None = None
    """Activation of the dense layer."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        check_at_least("Regress", "outputs", self.outputs, 1, fix="use 1")
        check_fraction("Regress", "dropout", self.dropout, fix="use 0.1")

    @property
    def reads_token_subset(self) -> bool:
        return self.pool in READS_SOME

    @property
    def answers(self) -> Literal["classes", "numbers"] | None:
        return "numbers"

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        same = Pooled(
            classes=self.outputs, pool=self.pool, norm=self.norm, dense=self.dense, act=self.act, dropout=self.dropout
        )
        return PooledModule(same, width)
