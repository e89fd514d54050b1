"""Forecast of every channel of a series from its concatenated tokens (2211.14730, 3.1), optionally plus a linear map
of the window itself (2205.13504)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, constant
from anyformer.embeds.series import SeriesContext, fill_missing
from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.slots import Head, HeadOutput


class Forecast(Head):
    """`horizon` numbers per channel from its `patches` concatenated tokens; all channels share the weights.

    The logits are (B, horizon * channels), step by step, in the units of the window: the scaling by `Series` is undone.
    For other tokens, each document is a channel of at most `patches` tokens.

    With `window`, the output is added to a linear map of the window: the last value plus a weighted sum of the
    differences to it. Its weights have no gradients: they are fitted by least squares before the first step
    (`ForecastTask.fit_weights`), so that the network learns the residual of the linear forecast.
    """

    about: ClassVar[About | None] = About(
        "y = [h_1; ...; h_N] W + b, times deviation plus mean of the window, or its linear map",
        "2211.14730",
        "V T D horizon",
    )
    horizon: int
    """Steps to forecast."""
    patches: int
    """Tokens per channel."""
    dropout: float = 0.0
    """Dropout probability."""
    window: int | None = None
    """Window length of the additional linear map; no such map if not given."""

    def check(self) -> None:
        for name in ("horizon", "patches", "window"):
            value = getattr(self, name)
            check_at_least("Forecast", name, value, 1, fix="use 1 or more")
        check_fraction("Forecast", "dropout", self.dropout, fix="use 0.1")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return ForecastModule(self, width)


class LinearMap(Starting):
    """Linear forecast: the last value plus a weighted sum of the differences to it."""

    def __init__(self, window: int, horizon: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(horizon, window), requires_grad=False)
        self.starts["weight"] = constant(0.0)  # the last value, repeated

    def forward(self, window: Tensor) -> Tensor:
        """(B, window, V) to (B, horizon, V); nan is a missing value."""
        past = fill_missing(window).to(self.weight.dtype)
        last = past[:, -1:]
        return last + self.weight @ (past - last)


class ZeroLinear(LinearLayer, Starting):
    """A linear layer initialised to 0, so that it has no effect at first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.starts |= {"weight": constant(0.0), "bias": constant(0.0)}


class ForecastModule(nn.Module):
    def __init__(self, spec: Forecast, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.linear = None if spec.window is None else LinearMap(spec.window, spec.horizon)
        self.out = (LinearLayer if self.linear is None else ZeroLinear)(spec.patches * width, spec.horizon)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        x = F.dropout(self.beside(hidden, context), self.spec.dropout, self.training)
        y = self.out(x).mT  # (B,horizon,V)
        centre = spread = None
        if isinstance(context, SeriesContext):
            centre, spread = context.centre, context.spread
        if self.linear is not None:
            centre = self.linear(self.window_of(context))
        if spread is not None:
            y = y * spread.to(y.dtype)
        if centre is not None:
            y = y + centre.to(y.dtype)
        return HeadOutput(logits=y.flatten(1))

    def window_of(self, context: Context) -> Tensor:
        """The input window (B, window, V), with its length checked."""
        if not isinstance(context, SeriesContext) or context.window is None:
            raise UserError("there is no window of a series", where="Forecast.window", fix="leave it out")
        if context.window.shape[1] != self.spec.window:
            raise UserError(f"windows have {context.window.shape[1]} steps, not {self.spec.window}",
                            where="Forecast.window", fix=f"use {context.window.shape[1]}")  # fmt: skip
        return context.window

    def beside(self, hidden: Tensor, context: Context) -> Tensor:
        """(rows,T,D) to (B, channels, patches * D); padding counts as 0."""
        width, patches, channels = hidden.shape[2], self.spec.patches, 1
        if isinstance(context, SeriesContext):  # missing patches keep their place
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
