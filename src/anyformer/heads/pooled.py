"""Classification of the whole sequence, or its pooled vector."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.activation import ACTS, Act
from anyformer.core.context import Context, TokenSubset
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.heads.pooling import READS_SOME, Pool, pool, pooled_width, tokens_read
from anyformer.slots import Head, HeadOutput, Norm


class Pooled(Head):
    """Pool, then optional norm, dense layer and activation, then `classes` logits (None: the vector itself).

    BERT's pooler is `Pooled(dense=True, act="tanh")`. `dropout` acts before the logits, `input_dropout` before the
    dense layer (RoBERTa has both). A number instead of `dense=True` is the dense layer's width; `bias` is that of the
    last layer. `pool="token"` takes the first token with the id `token`, or with the highest id by default (CLIP's
    end-of-text token). Multi-label classification uses the same logits.
    """

    about: ClassVar[About | None] = About(
        "logits = W pool(x) + b, pool = first, mean, max, last, concat", "1810.04805", "T D"
    )

    classes: int | None = None
    """Logits; the pooled vector itself if not given."""
    pool: Pool = "first"
    """How the tokens become one vector."""
    norm: Norm | None = None
    """Norm of the pooled vector."""
    token: int | None = None
    """Id of the token that is pooled with pool="token"; the highest id if not given."""
    dense: bool | int = False
    """Whether a dense layer follows, or its width."""
    act: Act | None = None
    """Activation of the dense layer."""
    bias: bool = True
    """Whether the last layer has a bias."""
    dropout: float = 0.0
    """Dropout probability before the logits."""
    input_dropout: float = 0.0
    """Dropout probability before the dense layer."""

    def check(self) -> None:
        check_at_least("Pooled", "classes", self.classes, 1, fix="give 2 or more, or None for the vector")
        if not isinstance(self.dense, bool) and self.dense < 1:
            raise UserError(f"dense {self.dense} is below 1", where="Pooled", fix="use True for the model's width")
        if self.token is not None and self.pool != "token":
            raise UserError(f"pool {self.pool!r} looks for no token", where="Pooled.token", fix='use pool="token"')
        for name in ("dropout", "input_dropout"):
            check_fraction("Pooled", name, getattr(self, name), fix="use 0.1")

    @property
    def reads_token_subset(self) -> bool:
        return self.pool in READS_SOME and self.classes is not None  # else all hidden states are returned, too

    @property
    def answers(self) -> Literal["classes", "numbers"] | None:
        return "classes"

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return PooledModule(self, width)


class PooledModule(nn.Module):
    def __init__(self, spec: Pooled, width: int) -> None:
        super().__init__()
        self.spec = spec
        wide = pooled_width(width, spec.pool)
        self.norm = None if spec.norm is None else spec.norm.build(wide)
        inner = width if spec.dense is True else spec.dense or wide
        self.dense = LinearLayer(wide, inner, bias=spec.bias or spec.classes is not None) if spec.dense else None
        self.out = None if spec.classes is None else LinearLayer(inner, spec.classes, bias=spec.bias)

    def tokens_read(self, context: Context) -> TokenSubset:
        """The tokens that are pooled."""
        return tokens_read(context, self.spec.pool, self.spec.token)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        vector = pool(hidden, context, self.spec.pool, self.spec.token)
        vector = vector if self.norm is None else self.norm(vector)
        vector = F.dropout(vector, self.spec.input_dropout, self.training)
        vector = vector if self.dense is None else self.dense(vector)
        vector = vector if self.spec.act is None else ACTS[self.spec.act](vector)
        if self.out is None:
            return HeadOutput(pooled=vector)
        return HeadOutput(
            pooled=vector, logits=self.out(F.dropout(vector, self.spec.dropout, self.training))
        )  # (B,classes)
