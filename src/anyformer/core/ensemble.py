"""An ensemble in one network: members share every weight and differ by factors (2002.06715, for tables 2410.24210).

Member m of a linear layer computes s_m * W(r_m * x) + b_m, and each has a head of its own. Members are stacked along
the batch axis, one after another: only linear layers need to know about them.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import is_plain_linear
from anyformer.core.own_init import Starting, constant
from anyformer.errors import check_range
from anyformer.kernels.onednn import linear
from anyformer.spec import Spec, field


class Ensemble(Spec):
    """`members` networks in one, each trained by its own loss; their predictions are averaged.

    Classes are averaged as probabilities, regression outputs directly.
    """

    about: ClassVar[About | None] = About(
        "y_m = s_m * W (r_m * x) + b_m; p = mean_m softmax(y_m)", "2002.06715, 2410.24210", "members times a model"
    )

    members: int = field(default=8, kw_only=False)  # Ensemble(8)
    """Networks in one."""
    multi_label: bool = False
    """Whether each logit is an independent label, with a sigmoid instead of a softmax."""

    def check(self) -> None:
        check_range("Ensemble", "members", self.members, 2, fix="use 8, or leave the ensemble out")

    def build(self, width: int, *, numbers: bool) -> EnsembleModule:
        """The module that gives each member its own input signs over `width` channels; `numbers` = regression
        outputs."""
        return EnsembleModule(self, width, numbers)


class EnsembleModule(Starting):
    """Repeat the batch once per member, with random signs per member so that they start different."""

    def __init__(self, spec: Ensemble, width: int, numbers: bool) -> None:
        super().__init__()
        self.spec, self.numbers = spec, numbers
        # The name puts it in the embedding's parameter group: no weight decay, and not the optimizer of the block
        # matrices.
        self.embed = nn.Parameter(torch.ones(spec.members, 1, 1, width))
        self.starts["embed"] = fill_signs

    def spread(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Tokens (B,T,D) and their context for every member, (members * B, T, D)."""
        apart = x * self.embed.to(x.dtype)  # (members,B,T,D)
        return apart.flatten(0, 1), repeat_context(context, len(x), self.spec.members)

    def average(self, logits: Tensor) -> Tensor:
        """Average predictions (members * B, ...) over members: logits of the mean probability, or the mean output."""
        apart = logits.unflatten(0, (self.spec.members, -1))
        if self.numbers:
            return apart.mean(0)
        exact = apart if apart.dtype == torch.float64 else apart.float()
        if self.spec.multi_label:  # log-odds of the mean of sigmoids
            return log_mean(F.logsigmoid(exact)) - log_mean(F.logsigmoid(-exact))
        return log_mean(exact.log_softmax(-1))


class MemberLinear(Starting, nn.Linear):
    """A shared linear layer with input factors, output factors and bias per member.

    Factors are stored as their difference from 1: weight decay then pulls members together rather than to 0.
    """

    def __init__(self, base: nn.Linear, members: int) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make another weight
        self.in_features, self.out_features, self.members = base.in_features, base.out_features, members
        self.weight = base.weight
        self.into = nn.Parameter(torch.zeros(members, 1, base.in_features))
        self.outof = nn.Parameter(torch.zeros(members, 1, base.out_features))
        self.bias = None if base.bias is None else nn.Parameter(torch.zeros(members, 1, base.out_features))
        self.starts = {"into": constant(0.0), "outof": constant(0.0)}

    def forward(self, input: Tensor) -> Tensor:
        apart = input.reshape(self.members, -1, self.in_features)
        mixed = linear(apart * (1 + self.into.to(input.dtype)), self.weight)
        mixed = mixed * (1 + self.outof.to(mixed.dtype))
        mixed = mixed if self.bias is None else mixed + self.bias.to(mixed.dtype)
        return mixed.reshape(*input.shape[:-1], self.out_features)


class OwnLinear(nn.Linear):
    """A linear layer with separate weights per member, for heads."""

    def __init__(self, base: nn.Linear, members: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.members = base.in_features, base.out_features, members
        self.weight = nn.Parameter(torch.zeros(members, base.out_features, base.in_features))
        self.bias = None if base.bias is None else nn.Parameter(torch.zeros(members, 1, base.out_features))

    def forward(self, input: Tensor) -> Tensor:
        apart = input.reshape(self.members, -1, self.in_features)
        mixed = apart @ self.weight.mT if self.bias is None else torch.baddbmm(self.bias, apart, self.weight.mT)
        return mixed.reshape(*input.shape[:-1], self.out_features)


def split_linears(module: nn.Module, made: type[MemberLinear | OwnLinear], members: int) -> None:
    """Replace every linear layer below a module by an ensemble layer."""
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if is_plain_linear(child):
                setattr(owner, name, made(child, members))


def repeat_context(context: Context, rows: int, members: int) -> Context:
    """Repeat the per-row tensors once per member; tensors that broadcast over the batch stay as they are."""
    again: dict[str, Any] = {}
    for each in fields(context):
        value = getattr(context, each.name)
        if isinstance(value, Tensor) and value.shape[0] == rows:
            again[each.name] = value.repeat(members, *[1] * (value.dim() - 1))
    return replace(context, **again)


def log_mean(logs: Tensor) -> Tensor:
    """log of the mean over the first axis, computed from logs."""
    return logs.logsumexp(0) - math.log(len(logs))


def fill_signs(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """Random signs, 1 or -1 with equal probability."""
    return p.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
