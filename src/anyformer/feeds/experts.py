"""Mixture of experts: a router sends each token to a few of many feed-forward networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.activation import ACTS, Act, split_pairs
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError, check_at_least
from anyformer.feeds.mlp import MLP
from anyformer.kernels.onednn import linear, sum_of_outer
from anyformer.slots import Feed, Losses


class Experts(Feed):
    """`count` experts like `MLP(width, act, gated, bias)`; each token is routed to its `top` experts.

    Their outputs are weighted by the router's probabilities: renormalised over the chosen ones (`renormalise`, as
    Mixtral), or over all experts (Switch). By default `renormalise` is true for two or more, since a single
    renormalised
    weight is always 1 and gives the router no gradient. No tokens are dropped; `balance` is the weight of the
    load-balancing loss count * sum_e (fraction of tokens of e) (mean probability of e), which is 1 at perfect balance.
    The loss is returned as `balance`.
    """

    count: int
    """Number of experts."""
    top: int = 2
    """Experts that each token goes through."""
    width: int | None = None
    """Channels inside an expert; 4 times the model's if not given."""
    act: Act = "gelu"
    """Activation function."""
    gated: bool = False
    """Whether an expert is gated (SwiGLU and the like)."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    renormalise: bool | None = None
    """Whether the weights of the chosen experts sum to 1; by default if there are two or more."""
    balance: float = 0.01
    """Weight of the load-balancing loss."""
    dropout: float = 0.0
    """Dropout probability."""

    about: ClassVar[About | None] = About(
        "y = sum_{e in top(p)} p_e MLP_e(x) / sum_{e in top(p)} p_e, p = softmax(x W_r)",
        "2101.03961, 2401.04088",
        "T (count D + top 8 D^2)",
    )
    counts_tokens: ClassVar[bool] = True
    exact: ClassVar[bool] = False  # the shape of an expert's matmul, and so its rounding, depends on other tokens

    def check(self) -> None:
        check_at_least("Experts", "count", self.count, 1, fix="use 8")
        if not 1 <= self.top <= self.count:
            raise UserError(f"top {self.top} is not between 1 and count {self.count}", where="Experts",
                            fix=f"use top {min(2, self.count)}")  # fmt: skip
        check_at_least("Experts", "balance", self.balance, 0, fix="use 0.01, or 0 for none")
        assert self.each  # its own settings are checked there

    @property
    def each(self) -> MLP:
        """The spec of one expert."""
        return MLP(width=self.width, act=self.act, gated=self.gated, bias=self.bias, dropout=self.dropout)

    @property
    def renormalised(self) -> bool:
        """Whether the weights of the chosen experts sum to 1."""
        return self.top > 1 if self.renormalise is None else self.renormalise

    def build(self, width: int) -> nn.Module:
        return ExpertsModule(self, width)


class ExpertsModule(nn.Module):
    """Tokens are sorted by expert, run through all experts in two grouped matmuls, and restored to their order."""

    def __init__(self, spec: Experts, width: int) -> None:
        super().__init__()
        self.spec, self.act = spec, ACTS[spec.act]
        self.router = LinearLayer(width, spec.count, bias=False)
        self.experts = nn.ModuleList(spec.each.build(width) for _ in range(spec.count))

    def forward(self, x: Tensor, context: Context | None = None) -> tuple[Tensor, Losses]:
        shares, weights, chosen = self.route(x)
        y = self.through(x.reshape(-1, x.shape[-1]), chosen.flatten()).view(*chosen.shape, -1)  # (B,T,top,D)
        y = (y * weights[..., None].to(y.dtype)).sum(-2)
        mask = None if context is None else context.mask
        return y, {"balance": self.spec.balance * unevenness(shares, chosen, mask)} if self.spec.balance else {}

    def tokens(self, x: Tensor, context: Context | None = None) -> Tensor:
        """The number of real tokens routed to each expert, (count,)."""
        chosen = self.route(x)[2]
        if context is not None and context.mask is not None:
            chosen = chosen[context.mask]
        return F.one_hot(chosen, self.spec.count).flatten(0, -2).sum(0)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Router probabilities (B,T,count) in float32 or better; weights and indices (B,T,top) of the chosen
        experts."""
        exact = torch.promote_types(x.dtype, torch.float32)
        shares = self.router(x).to(exact).softmax(-1)
        weights, chosen = shares.topk(self.spec.top, -1)
        return shares, weights / weights.sum(-1, keepdim=True) if self.spec.renormalised else weights, chosen

    def through(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Tokens (M,D), each through its chosen experts (M*top,): (M*top,D)."""
        order = chosen.argsort(stable=True)
        ends = F.one_hot(chosen, self.spec.count).sum(0).cumsum(0)  # (count,): where each expert's tokens end
        top = self.spec.top
        # Repeated, then permuted, so that the backward pass sums deterministically, unlike index_add.
        h = x[:, None].expand(-1, top, -1).reshape(-1, x.shape[-1])[order]
        h = self.layer("up", h, ends)
        if self.spec.gated:
            gate, value = split_pairs(h)
            h = self.act(gate) * value  # (M*top,inner)
        else:
            h = self.act(h)
        h = self.layer("down", F.dropout(h, self.spec.dropout, self.training), ends)
        back = torch.empty_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))
        return h[back]

    def layer(self, name: str, x: Tensor, ends: Tensor) -> Tensor:
        """One layer of every expert over its own tokens."""
        kind = x.device.type
        casts = kind != "meta" and torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if casts else x.dtype
        layers = [getattr(expert, name) for expert in self.experts]
        weights = [layer.weight.to(dtype) for layer in layers]
        biases = [layer.bias.to(dtype) for layer in layers] if self.spec.bias else []
        return grouped(x.to(dtype), weights, biases, ends)


def unevenness(shares: Tensor, chosen: Tensor, mask: Tensor | None) -> Tensor:
    """The load-balancing loss count * sum_e f_e P_e over real tokens (2101.03961, eq. 4): f_e is the fraction of
    choices
    of e, P_e its mean probability."""
    count = shares.shape[-1]
    real = torch.ones_like(shares[..., :1]) if mask is None else mask[..., None].to(shares.dtype)
    tokens = real.sum().clamp(min=1.0)
    sent = (F.one_hot(chosen, count).sum(-2) * real).flatten(0, -2).sum(0) / (tokens * chosen.shape[-1])
    return count * (sent * (shares * real).flatten(0, -2).sum(0) / tokens).sum()


# ---------------------------------------------------------------- products of groups

# Minimal rows of a matmul. With fewer, kernels for few rows round differently, and the last bits of a token's output
# would often depend on how many others chose its expert. With more this happens only on some machines (float64 on AMD),
# so nothing is guaranteed (`Experts.exact`).
FEWEST = 16


def grouped(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], ends: Tensor) -> Tensor:
    """Grouped matmul: rows x (M,D) in groups that end at `ends` (E,), each times its own weight (O,D): (M,O)."""
    # On `meta` the group sizes are unknown, too.
    return (grouped_whole if torch.compiler.is_compiling() or x.is_meta else group_by_group)(x, weights, biases, ends)


def group_by_group(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], ends: Tensor) -> Tensor:
    parts = []
    for e, rows in enumerate(groups(ends)):
        count = rows.stop - rows.start
        if count or torch.is_grad_enabled():  # an unused expert needs a zero gradient
            few = F.pad(x[rows], (0, 0, 0, max(0, FEWEST - count)))
            parts.append(linear(few, weights[e], biases[e] if biases else None)[:count])
    return torch.cat(parts)


def groups(ends: Tensor) -> list[slice]:
    """The rows of each group."""
    return [slice(start, stop) for start, stop in pairwise([0, *ends.tolist()])]


# Group sizes are data-dependent: for the compiler it is an opaque custom op. Calling it in eager mode would import the
# compiler, which takes seconds.


@torch.library.custom_op("anyformer::grouped", mutates_args=())
def grouped_whole(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], ends: Tensor) -> Tensor:
    return group_by_group(x, weights, biases, ends)


@grouped_whole.register_fake
def _(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights[0].shape[0])


@torch.library.custom_op("anyformer::grouped_backward", mutates_args=())
def grouped_backward(grad: Tensor, x: Tensor, weights: Sequence[Tensor], biased: bool, ends: Tensor) -> list[Tensor]:
    """Gradients of x, of every weight, and of every bias."""
    at_x = torch.zeros_like(x)
    at_weights = [torch.zeros_like(weight) for weight in weights]
    at_biases = [weight.new_zeros(weight.shape[0]) for weight in weights] if biased else []
    for e, rows in enumerate(groups(ends)):
        at_x[rows] = linear(grad[rows], weights[e].mT)
        at_weights[e] = sum_of_outer(grad[rows], x[rows])
        if biased:
            at_biases[e] = grad[rows].sum(0)
    return [at_x, *at_weights, *at_biases]


@grouped_backward.register_fake
def _(grad: Tensor, x: Tensor, weights: Sequence[Tensor], biased: bool, ends: Tensor) -> list[Tensor]:
    biases = [weight.new_empty(weight.shape[0]) for weight in weights] if biased else []
    return [torch.empty_like(x), *(torch.empty_like(weight) for weight in weights), *biases]


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, biases, ends = inputs
    ctx.save_for_backward(x, ends, *weights)
    ctx.biased = len(biases)


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor], None]:
    x, ends, *weights = ctx.saved_tensors
    at_x, *rest = grouped_backward(grad.contiguous(), x, weights, ctx.biased > 0, ends)
    return at_x, rest[: len(weights)], rest[len(weights) :], None


grouped_whole.register_autograd(backward, setup_context=keep)
