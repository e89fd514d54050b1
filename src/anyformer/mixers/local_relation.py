"""Local relation layer: local aggregation with weights from the composability of pixel pairs (1904.11491)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attention_weights import Weighing
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, constant, normal
from anyformer.errors import UserError, check_at_least
from anyformer.mixers.grid_cells import layout_of, shares
from anyformer.slots import Mixer, Relative

Fit = Literal["squared", "absolute", "product"]


class LocalRelation(Mixer):
    """Weights over `window` x `window` neighbours, one set for every `share` channels.

    Queries and keys are scalars per set, compared by `fit`: -(q - k)^2, -|q - k| or q k. A small network of the
    relative position (linear, ReLU, linear) is added, and the softmax is over existing neighbours. Leading tokens
    attend
    to all tokens and are visible to all.
    """

    window: int = 7
    """Cells of a side of the neighbourhood."""
    share: int = 8
    """Channels that share one set of weights."""
    fit: Fit = "squared"
    """How a query and a key are compared."""

    takes_added: ClassVar[bool] = True
    needs_grid: ClassVar[bool] = True
    causal_form: ClassVar[bool] = False
    about: ClassVar[About | None] = About(
        "y_i = sum_{j in k x k around i} softmax_j(-(q_i - k_j)^2 + W2 relu(W1 (place_j - place_i) + b)) v_j, "
        "one set of weights for m channels", "1904.11491", "T D^2 (2 + 2/m) + T k^2 D",
    )  # fmt: skip

    def check(self) -> None:
        check_window("LocalRelation", self.window, self.share)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return LocalRelationModule(self, width)


def check_window(where: str, window: int, share: int) -> None:
    """Check that the window is odd and the group size positive."""
    if window < 1 or window % 2 == 0:
        raise UserError(f"window {window} has no middle", where=where, fix=f"use {max(1, window + 1)}")
    check_at_least(where, "share", share, 1, fix="use 8")


def compose(q: Tensor, k: Tensor, fit: Fit) -> Tensor:
    """Elementwise score of a query and a key."""
    if fit == "product":
        return q * k
    return -(q - k).square() if fit == "squared" else -(q - k).abs()


class Geometry(Starting):
    """The geometric prior: W2 relu(W1 offset + b) of a neighbour's relative position, for each set of weights."""

    def __init__(self, window: int, sets: int) -> None:
        super().__init__()
        self.window = window
        self.inner = nn.Parameter(torch.zeros(sets, 2))
        self.bias = nn.Parameter(torch.zeros(sets))
        self.outer = nn.Parameter(torch.zeros(sets, sets))
        self.starts = {"inner": normal(1.0), "bias": constant(0.0), "outer": normal(sets**-0.5)}

    def forward(self) -> Tensor:
        """(k^2, sets), neighbours row by row; offsets are scaled to 1 at the window's edge."""
        reach = max(1, self.window // 2)
        steps = torch.arange(self.window, device=self.inner.device) - self.window // 2
        places = torch.cartesian_prod(steps, steps).reshape(-1, 2).to(self.inner.dtype) / reach
        return F.linear(F.relu(F.linear(places, self.inner, self.bias)), self.outer)


class Relation(nn.Module):
    """The layer on feature maps: (B,D,H,W) to (B,D,H/stride,W/stride), with queries at every `stride`-th place."""

    def __init__(self, channels: int, window: int, share: int, *, fit: Fit = "squared", stride: int = 1) -> None:
        super().__init__()
        self.window, self.share, self.fit, self.stride = window, share, fit, stride
        self.sets = -(-channels // share)  # the last set may have fewer channels
        self.q = LinearLayer(channels, self.sets)
        self.k = LinearLayer(channels, self.sets)
        self.v = LinearLayer(channels, channels, bias=False)
        self.geometry = Geometry(window, self.sets)

    def forward(self, maps: Tensor) -> Tensor:
        x = maps.permute(0, 2, 3, 1)  # (B,H,W,D)
        q = self.q(x[:, :: self.stride, :: self.stride])
        return self.gather(q, self.k(x), self.v(x)).permute(0, 3, 1, 2)

    def gather(
        self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None = None, led: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Queries (B,h,w,G), keys (B,H,W,G) and values (B,H,W,D) to (B,h,w,D); `real` (B,H,W) is the padding mask.

        `led` are keys (B,L,G), values (B,L,D) and padding mask (B or 1, L) of leading tokens, visible to all.
        """
        exact, side = torch.promote_types(q.dtype, torch.float32), self.window
        there = torch.ones(1, *k.shape[1:3], dtype=torch.bool, device=k.device) if real is None else real
        prior = self.geometry().to(exact).mT.unflatten(1, (side, side))  # (G,k,k)
        logits = compose(q.to(exact)[..., None, None], self.windows(k.to(exact)), self.fit) + prior  # (B,h,w,G,k,k)
        logits = logits.masked_fill(~self.windows(there[..., None]), -torch.inf).flatten(4)
        if led is not None:
            first = compose(q.to(exact)[..., None], led[0].to(exact).mT[:, None, None], self.fit)  # (B,h,w,G,L)
            logits = torch.cat([logits, first.masked_fill(~led[2][:, None, None, None], -torch.inf)], -1)
        if real is not None:
            dead = (logits == -torch.inf).all(-1, keepdim=True)
            weights = logits.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
        else:
            weights = logits.softmax(-1)
        weights = weights.to(v.dtype).movedim(-1, 0).contiguous()  # (k^2+L,B,h,w,G)
        total = NeighbourSum.apply(weights[: side**2], self.room(self.grouped(v)), side, self.stride)  # (B,h,w,G,m)
        if led is not None:
            total = total + torch.einsum("lbhwg,blgm->bhwgm", weights[side**2 :], self.grouped(led[1]))
        return total.flatten(3)[..., : v.shape[-1]]

    def room(self, x: Tensor) -> Tensor:
        """Zero-pad a map (B,H,W,...) by half a window."""
        reach = self.window // 2
        return F.pad(x, (0, 0) * (x.dim() - 3) + (reach, reach, reach, reach))

    def windows(self, x: Tensor) -> Tensor:
        """(B,H,W,...) to a view (B,h,w,...,k,k) of the neighbours around every query."""
        return self.room(x).unfold(1, self.window, self.stride).unfold(2, self.window, self.stride)

    def grouped(self, v: Tensor) -> Tensor:
        """(...,D) to (...,G,m), the channels of each set of weights."""
        spare = self.sets * self.share - v.shape[-1]
        return (F.pad(v, (0, spare)) if spare else v).unflatten(-1, (self.sets, self.share))


class NeighbourSum(torch.autograd.Function):
    """sum_i weights_i values_i over the k^2 neighbours i of every query, one neighbour after the other.

    All neighbours' values at once would be k^2 maps, and autograd would store another map for each of them.
    Weights (k^2,B,h,w,G), padded values (B,H,W,G,m), to (B,h,w,G,m).
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, side: int, stride: int) -> Tensor:
        ctx.save_for_backward(weights, values)
        ctx.side, ctx.stride = side, stride
        total = values.new_zeros(*weights.shape[1:], values.shape[-1])
        for i in range(side**2):
            total.addcmul_(weights[i, ..., None], values[near(i, side, stride, weights)])
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights, values = ctx.saved_tensors
        to_weights, to_values = [], torch.zeros_like(values)
        for i in range(ctx.side**2):
            at = near(i, ctx.side, ctx.stride, weights)
            to_weights.append((slope * values[at]).sum(-1))
            to_values[at].addcmul_(weights[i, ..., None], slope)
        return torch.stack(to_weights), to_values, None, None


def near(number: int, side: int, stride: int, weights: Tensor) -> tuple[slice, ...]:
    """The slices of a padded map with every query's neighbour of this number."""
    starts, sizes = divmod(number, side), weights.shape[2:4]
    down, along = (slice(at, at + (size - 1) * stride + 1, stride) for at, size in zip(starts, sizes, strict=True))
    return slice(None), down, along


class LocalRelationModule(Weighing):
    def __init__(self, spec: LocalRelation, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.relation = Relation(width, spec.window, spec.share, fit=spec.fit)
        self.out = LinearLayer(width, width)

    def forward(self, x: Tensor, context: Context, state: None, tables: tuple[Tensor, ...]) -> Tensor:
        layout, relation = layout_of(context), self.relation
        q, k, v = self.project(x, context)
        led, first = None, None
        if layout.leading:
            known = torch.ones_like(context.index, dtype=torch.bool) if context.mask is None else context.mask
            led = k[:, : layout.leading], v[:, : layout.leading], known[:, : layout.leading]
            weights = self.weights(x, context, None, tables, slice(0, layout.leading)).to(v.dtype)  # (B,G,L,T)
            first = torch.einsum("bglt,btgm->blgm", weights, relation.grouped(v)).flatten(2)[..., : v.shape[-1]]
        real = None if context.mask is None else layout.cells(context.mask)
        y = relation.gather(layout.cells(q), layout.cells(k), layout.cells(v), real, led).flatten(1, 2)
        return self.out(y if first is None else torch.cat([first, y], 1))

    def project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        placed = x if context.added is None else x + context.added
        return self.relation.q(placed), self.relation.k(placed), self.relation.v(x)

    def weights(self, x: Tensor, context: Context, state: None, tables: tuple[Tensor, ...], rows: slice) -> Tensor:
        """Weights (B,G,t,T) over all tokens."""
        exact, layout = torch.promote_types(x.dtype, torch.float32), layout_of(context)
        q, k, _ = (part.to(exact).mT for part in self.project(x, context))  # (B,G,T)
        logits = compose(q[:, :, rows, None], k[:, :, None], self.spec.fit)  # (B,G,t,T)
        row, column, cell = layout.places(x.device)
        side, reach = self.spec.window, self.spec.window // 2
        down, along = row - row[rows, None], column - column[rows, None]
        both = cell[rows, None] & cell
        close = both & (down.abs() <= reach) & (along.abs() <= reach)
        number = ((down + reach) * side + along + reach).masked_fill(~close, 0)
        prior = self.relation.geometry().to(exact)[number].permute(2, 0, 1)  # (G,t,T)
        return shares(logits + prior.masked_fill(~both, 0.0), close | ~both, context)
