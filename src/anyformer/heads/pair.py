"""Comparison of two sequences in one row by their mean vectors (SBERT, 1908.10084)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.slots import Head, HeadOutput

Feature = Literal["first", "second", "difference", "product"]


class Pair(Head):
    """The mean u of the first sequence and v of the second, `features` of both, then `classes` logits (1: regression).

    `features` are u, v, |u - v| and u * v, concatenated; `classes=None` returns them directly. Tokens are assigned by
    `segments` (0 is the first) or, without them, by `documents`, which also mask the two from each other. With neither,
    all tokens belong to the first. A missing sequence counts as 0 and is left out of the product.
    """

    classes: int | None = None
    """Logits; the features themselves if not given."""
    features: tuple[Feature, ...] = ("first", "second", "difference")
    """Features of the two vectors."""
    dropout: float = 0.0
    """Dropout probability."""

    about: ClassVar[About | None] = About("W [u, v, |u - v|, u * v] + b, u and v the means", "1908.10084", "T D")

    def check(self) -> None:
        check_at_least("Pair", "classes", self.classes, 1, fix="use 1 for a number, 2 or more")
        if len(set(self.features)) != len(self.features):
            raise UserError("a feature comes twice", where="Pair.features", fix='use ("first", "second")')
        check_fraction("Pair", "dropout", self.dropout, fix="use 0.1")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return PairModule(self, width)


class PairModule(nn.Module):
    def __init__(self, spec: Pair, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = None if spec.classes is None else LinearLayer(len(spec.features) * width, spec.classes)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        first, second = apart(hidden, context)
        (u, has_u), (v, has_v) = mean(hidden, first), mean(hidden, second)  # (B,D), (B,1)
        product = torch.where(has_u & has_v, u * v, u + v)  # if one is missing, the other
        made = {"first": u, "second": v, "difference": (u - v).abs(), "product": product}
        vector = torch.cat([made[name] for name in self.spec.features], -1)  # (B, D times features)
        if self.out is None:
            return HeadOutput(pooled=vector)
        return HeadOutput(pooled=vector, logits=self.out(F.dropout(vector, self.spec.dropout, self.training)))


def apart(hidden: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """Which tokens (B,T) belong to the first sequence, and which to the second."""
    real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if context.mask is None else context.mask
    if context.segments is not None:
        second = context.segments != 0
    elif context.documents is not None:
        start = real.long().argmax(1, keepdim=True)  # the first real token begins the first sequence
        second = context.documents != context.documents.expand(real.shape).gather(1, start)
    else:
        second = torch.zeros_like(real)
    return real & ~second, real & second


def mean(hidden: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the chosen tokens, 0 for a row without any, and which rows have any (B,1)."""
    share = chosen.to(hidden.dtype)[..., None]
    return (hidden * share).sum(1) / share.sum(1).clamp(min=1), chosen.any(1, keepdim=True)
