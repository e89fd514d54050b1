"""The next steps of every channel of a series, from all of its tokens side by side (2211.14730, 3.1)."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines
from anyformer.embeds.series import SeriesContext
from anyformer.errors import UserError
from anyformer.slots import Head, HeadOutput


class Forecast(Head):
    """`horizon` numbers a channel, from its `patches` tokens laid side by side; all channels share the weights.

    The logits are (B, horizon * channels), step by step, in the units of the window: what `Series` took off is put
    back. Over other tokens, each document is a channel of at most `patches` tokens.
    """

    about: ClassVar[About | None] = About(
        "y = [h_1; ...; h_N] W + b, times deviation plus mean of the window", "2211.14730", "V T D horizon"
    )
    horizon: int
    """Steps to forecast."""
    patches: int
    """Tokens of a channel."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        for name in ("horizon", "patches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)} is below 1", where="Forecast", fix="use 1 or more")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout {self.dropout} is not a share below 1", where="Forecast", fix="use 0.1")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return ForecastModule(self, width)


class ForecastModule(nn.Module):
    def __init__(self, spec: Forecast, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = nn.Linear(spec.patches * width, spec.horizon)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        x = F.dropout(self.beside(hidden, context), self.spec.dropout, self.training)
        y = self.out(x).mT  # (B,horizon,V)
        if isinstance(context, SeriesContext) and context.centre is not None and context.spread is not None:
            y = y * context.spread.to(y.dtype) + context.centre.to(y.dtype)
        return HeadOutput(logits=y.flatten(1))

    def beside(self, hidden: Tensor, context: Context) -> Tensor:
        """(rows,T,D) to (B, channels, patches * D); padding counts as 0."""
        width, patches, channels = hidden.shape[2], self.spec.patches, 1
        if isinstance(context, SeriesContext):  # a hole keeps its place
            seen = hidden if context.mask is None else hidden * context.mask[..., None]
            x, channels = seen.reshape(-1, context.patches, width), context.channels  # (B * V, N, D)
            longest = context.patches
        else:
            lines = DocumentLines.of(context)
            x = hidden if lines is None else lines.apart(hidden)  # (B * documents, T, D)
            longest = x.shape[1] if lines is None else int(lines.lengths.max())
            channels = x.shape[0] // hidden.shape[0]
        if longest > patches:
            raise UserError(f"{longest} tokens do not fit {patches}", where="Forecast.patches", fix=f"use {longest}")
        x = F.pad(x[:, :patches], (0, 0, 0, max(0, patches - x.shape[1])))
        return x.reshape(-1, channels, patches * width)
