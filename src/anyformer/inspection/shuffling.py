"""Permutation equivariance: without positions and mask, outputs of attention are permuted with its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.context import Context
from anyformer.core.model import ModelModule
from anyformer.core.stack import StackModule
from anyformer.embeds.patches import PatchesModule, cut, paste
from anyformer.errors import UserError
from anyformer.inspection.positions import MODULES
from anyformer.inspection.shadow import shadow
from anyformer.mixers.attention import AttentionModule
from anyformer.positions.grid import GridModule
from anyformer.positions.learned import LearnedModule
from anyformer.positions.sinusoid import SinusoidModule
from anyformer.positions.sinusoid_grid import SinusoidGridModule

ADDED = LearnedModule | GridModule | SinusoidModule | SinusoidGridModule


@dataclass(frozen=True)
class Shuffled:
    """Distance of the outputs for shuffled tokens from the shuffled outputs: largest change over largest value."""

    order: Tensor  # (T,): position t holds the token from order[t]
    as_is: float
    without_positions: float
    without_mask: float | None  # also without the causal mask; None if there is none
    by_token: Tensor  # (3 or 2, T): the change of each token, relative to the largest vector


@torch.no_grad()
def shuffle_tokens(model: nn.Module, inputs: tuple[Any, ...], *, seed: int = 0) -> Shuffled:
    """Compare a model on its tokens and on shuffled tokens: unchanged, without positions, and also without a mask."""
    if not isinstance(model, ModelModule):
        raise UserError(f"{type(model).__name__} has no single row of tokens", where="shuffle", fix="give its encoder")
    why = why_fixed(model)
    if why:
        raise UserError(why, where="shuffle", fix="use a model whose layers keep their tokens")
    first = 0
    if isinstance(model.embed, PatchesModule):
        rows, columns = (inputs[0].shape[2 + i] // model.embed.spec.cell[i] for i in range(2))
        first, count = model.embed.spec.leading + model.embed.spec.registers, rows * columns
    elif isinstance(inputs[0], Tensor) and inputs[0].dim() == 2 and not inputs[0].is_floating_point():
        count = inputs[0].shape[1]
    else:
        raise UserError("only texts and images of patches can be shuffled", where="shuffle", fix="give token ids")
    if count < 2:
        raise UserError("one token has no order", where="shuffle", fix="give two tokens or more")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    mixed = (shuffle_input(model, inputs[0], order), *inputs[1:])
    whole = torch.cat([torch.arange(first), first + order])
    copies = [shadow(model), without_positions(model)]
    causal = any(isinstance(module, AttentionModule) and module.causal for module in model.modules())
    if causal:
        copies.append(see_all(without_positions(model)))
    changes = torch.stack([change(copy, inputs, mixed, whole) for copy in copies])
    largest = changes.amax(1).tolist()
    return Shuffled(whole, largest[0], largest[1], largest[2] if causal else None, changes)


def why_fixed(model: ModelModule) -> str | None:
    """Why a model's tokens cannot be tracked through its layers, or None."""
    if not isinstance(model.stack, StackModule):
        return f"a {type(model.spec.stack).__name__} gives other tokens than it is given"
    return None


def reads_order(model: ModelModule) -> list[str]:
    """Mixers that depend on the order of the sequence regardless of positions."""
    return sorted({type(mixer).__name__ for mixer in model.spec.stack.mixers if not mixer.takes_rules})


def change(model: nn.Module, inputs: tuple[Any, ...], mixed: tuple[Any, ...], order: Tensor) -> Tensor:
    """Change (T,) of each token's vector from shuffling the tokens, relative to the largest value."""
    model.eval()
    before, after = (model.before_head(*given).hidden[0].float().cpu() for given in (inputs, mixed))  # type: ignore[operator]
    return (after - before[order]).abs().amax(-1) / before.abs().max().clamp(min=1e-12)


def shuffle_input(model: ModelModule, given: Tensor, order: Tensor) -> Tensor:
    """Token ids (B,T), or the patches of images (B,channels,H,W), permuted."""
    order = order.to(given.device)
    if not isinstance(model.embed, PatchesModule):
        return given[:, order]
    high, wide = model.embed.spec.cell
    return paste(cut(given, (high, wide))[:, order], (given.shape[2] // high, given.shape[3] // wide), (high, wide))


def without_positions(model: nn.Module) -> nn.Module:
    """A copy with shared weights in which all tokens are at position 0 and no position embedding is added."""
    copy = shadow(model)

    def nothing(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        return torch.zeros_like(out)

    def at_zero(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(stand_still(part) if isinstance(part, Context) else part for part in given)

    for module in copy.modules():
        if isinstance(module, ADDED):
            module.register_forward_hook(nothing)
        elif type(module) in MODULES or isinstance(module, AttentionModule):
            module.register_forward_pre_hook(at_zero)
    return copy


def stand_still(context: Context) -> Context:
    """The context with all positions 0 and an unchanged mask."""
    zero = torch.zeros_like
    return replace(context, positions=zero(context.positions), key_positions=zero(context.key_positions))


def see_all(copy: nn.Module) -> nn.Module:
    """Remove the causal mask of the given copy, in place."""
    for module in copy.modules():
        if isinstance(module, AttentionModule):
            module.causal = False
    return copy
