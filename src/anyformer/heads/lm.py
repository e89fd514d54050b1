"""The language-model head: logits over the vocabulary."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.activation import ACTS, Act
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.loss import linear_cross_entropy
from anyformer.errors import UserError, check_at_least
from anyformer.kernels.int8 import Int8, Int8Table, product
from anyformer.slots import Head, HeadOutput, Norm


class LM(Head):
    """Logits = hidden . table + bias; `tied` uses the embedding's table, which is stored and counted once.

    `transform` puts a dense layer with an activation and `norm` before it (BERT). `scale` multiplies the hidden state
    (T5 ties with width ** -0.5), `soft_cap` c turns logits l into c tanh(l / c).
    """

    about: ClassVar[About | None] = About("logits = x E^T, E the embedding's rows", "1608.05859", "T D V")

    tied: bool = True
    """Whether the embedding's table is used for the logits (weight tying)."""
    transform: Act | None = None
    """Activation of a dense layer before the logits (BERT); no such layer if not given."""
    norm: Norm | None = None
    """Norm after that dense layer."""
    bias: bool = False
    """Whether the logits have a bias."""
    scale: float | None = None
    """Factor on the hidden state (T5: width ** -0.5); 1 if not given."""
    soft_cap: float | None = None
    """c in c tanh(logits / c); no cap if not given."""
    vocab: int | None = None
    """Vocabulary size of an untied head."""

    def check(self) -> None:
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise UserError(f"soft_cap {self.soft_cap} is not positive", where="LM", fix="use 30 or leave it out")
        check_at_least("LM", "vocab", self.vocab, 1, fix="give the number of token ids")
        if self.tied and self.vocab is not None:
            raise UserError(
                "a tied head takes its vocabulary from the embedding", where="LM.vocab", fix="leave vocab out"
            )

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        if vocabulary is None and (self.tied or self.vocab is None):
            raise UserError(
                "the embedding has no vocabulary to score", where="head", fix="use LM(tied=False, vocab=...)"
            )
        vocab, inner = (self.vocab, None) if vocabulary is None else vocabulary
        if self.tied and inner is not None and self.transform is None and inner != width:
            raise UserError(f"a table of {inner} channels cannot score {width}-wide tokens", where="head",
                            fix='use LM(transform="gelu"), which leads from one to the other')  # fmt: skip
        assert vocab is not None or self.vocab is not None
        return LMModule(self, width, self.vocab or vocab or 0, inner)


class LMModule(nn.Module):
    def __init__(self, spec: LM, width: int, vocab: int, inner: int | None) -> None:
        super().__init__()
        self.spec = spec
        narrow = width if inner is None or spec.transform is None else inner
        self.dense = LinearLayer(width, narrow) if spec.transform is not None else None
        self.norm = None if spec.norm is None else spec.norm.build(narrow)
        self.weight: nn.Parameter | Int8Table | None = None if spec.tied else nn.Parameter(torch.zeros(vocab, narrow))
        self.bias = nn.Parameter(torch.zeros(vocab)) if spec.bias else None

    def forward(self, hidden: Tensor, context: Context, table: Tensor | Int8 | None) -> HeadOutput:
        logits = product(self.before(hidden), self.stored(table), self.bias)  # (B,T,V)
        cap = self.spec.soft_cap
        return HeadOutput(logits=logits if cap is None else cap * torch.tanh(logits / cap))

    def before(self, hidden: Tensor) -> Tensor:
        """The hidden states before the output projection."""
        if self.dense is not None and self.spec.transform is not None:
            hidden = ACTS[self.spec.transform](self.dense(hidden))
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden if self.spec.scale is None else hidden * self.spec.scale

    def stored(self, table: Tensor | Int8 | None) -> Tensor | Int8:
        """The output projection's weights, its own or the embedding's, as stored (perhaps int8)."""
        rows = table if self.weight is None else self.weight
        if rows is None:
            raise UserError("a tied head was given no table", fix="call it through its Model")
        return rows.weight if isinstance(rows, Int8Table) else rows

    def rows(self, table: Tensor | Int8 | None) -> Tensor:
        """The same, dequantised for a loss."""
        rows = self.stored(table)
        return rows.wide(rows.dtype) if isinstance(rows, Int8) else rows

    def loss(self, hidden: Tensor, targets: Tensor, table: Tensor | None, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy over targets (B,T) that are not -100, without materialising the (B,T,V) logits."""
        return linear_cross_entropy(
            self.before(hidden), self.rows(table), targets, bias=self.bias, soft_cap=self.spec.soft_cap,
            smoothing=smoothing,
        )  # fmt: skip
