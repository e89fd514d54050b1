"""Token Jacobians: which tokens a sublayer's outputs depend on. Attention mixes tokens, the feed-forward does not.

A mixer's Jacobian has a nonzero block for every pair of tokens that it mixes: all of them or, if causal, those on and
below the diagonal. A feed acts on each token alone, so all its off-diagonal blocks are exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyformer.core.head_names import CROSS, LayerName, as_name, find_layer, layers_of, named_layers, network_of
from anyformer.errors import UserError, did_you_mean
from anyformer.inspection.ablate import LayerClock, ablate
from anyformer.inspection.given import given_to
from anyformer.inspection.measure import Loss, in_eval_mode, measure_on

PARTS = ("mixer", "feed")
MOST = 2**16  # most outputs; each is one backward pass


def token_jacobian(model: Any, inputs: Any, layer: Any, part: Literal["mixer", "feed"] = "mixer") -> Tensor:
    """|dy_i / dx_j| (T,T) of one layer's mixer or feed, the Frobenius norm of each D x D block; row i is output i.

    y and x are output and input of the mixer or feed itself, without the norm and residual around it. `layer` is a
    number from 0, or ("encoder", 3); `inputs` are as for `look`, of one row.

    >>> from anyformer import preset
    >>> net = preset("gpt2-tiny").build(seed=0)
    >>> found = token_jacobian(net, torch.arange(4)[None], 0, "feed")
    >>> bool((found - found.diagonal().diag() == 0).all()), bool((found.diagonal() > 0).all())
    (True, True)
    """
    if part not in PARTS:
        raise UserError(f"a layer has no part {part!r}", where="part", fix=did_you_mean(str(part), PARTS))
    network = network_of(model, "token_jacobian")
    name = LayerName(*as_name(layer, 1, network, "layer"))
    given = given_to(model if network is not model else None, network, inputs, None)
    with in_eval_mode(model):
        module, entered = what_entered(network, name, part, given)
        return block_norms(module, entered)


def what_entered(network: nn.Module, name: LayerName, part: str, given: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """The mixer or feed of a layer, and its inputs."""
    found, mixer = find_layer(network, name, "layer")
    module = mixer if part == "mixer" else found.block.feed
    if module is None or (part == "feed" and name.part == CROSS):
        raise UserError(f"layer {name} has no feed", where="layer", fix='use "mixer"')
    seen: list[tuple[Any, ...]] = []
    clock = LayerClock()
    handles = [
        found.block.register_forward_pre_hook(clock.enter, prepend=True),
        module.register_forward_pre_hook(clock.only(found, lambda _, entered: seen.append(entered))),
    ]
    try:
        with torch.no_grad():
            network(*given.args, **given.options)
    finally:
        for handle in handles:
            handle.remove()
    x = seen[0][0]
    if x.shape[0] != 1:
        raise UserError(f"{x.shape[0]} rows are given", where="inputs", fix="give one")
    if x.shape[1] * x.shape[2] > MOST:
        raise UserError(f"{x.shape[1]} tokens of {x.shape[2]} channels are {x.shape[1] * x.shape[2]:,} backward passes",
                        where="inputs", fix=f"give at most {MOST // x.shape[2]} tokens")  # fmt: skip
    return module, seen[0]


def block_norms(module: nn.Module, entered: tuple[Any, ...]) -> Tensor:
    """The norm of each block of the Jacobian, with one backward pass per output."""
    x = entered[0].detach().clone().requires_grad_()
    with torch.enable_grad():
        made = module(x, *entered[1:])
        y: Tensor = made[0] if isinstance(made, tuple) else made  # (1,T,D)
    squares = torch.zeros(y.shape[1], x.shape[1], dtype=torch.float64)
    for token in range(y.shape[1]):
        for channel in range(y.shape[2]):
            (slope,) = torch.autograd.grad(y[0, token, channel], x, retain_graph=True)
            squares[token] += slope[0].double().square().sum(-1).cpu()
    return squares.sqrt().float()


# ---------------------------------------------------------------- all feeds, or all mixers


@dataclass(frozen=True)
class BranchLosses:
    """The loss of a whole model, without all its feeds, and without all its mixers; as text, a table."""

    what: str
    whole: float
    without_feeds: float
    without_mixers: float

    def __str__(self) -> str:
        rows = {"whole model": self.whole, "without feeds": self.without_feeds, "without mixers": self.without_mixers}
        lines = [f"{name:<14}  {self.what} {value:.4f}  {value - self.whole:+.4f}" for name, value in rows.items()]
        return "\n".join([lines[0].rsplit("  ", 1)[0], *lines[1:]])


def branch_losses(
    model: Any, data: Any, *, batch_size: int = 32, max_rows: int = 256, loss: Loss | None = None
) -> BranchLosses:
    """The loss without all feeds, and without all mixers, measured as in `head_importance`."""
    with in_eval_mode(model):
        measure = measure_on(model, data, batch_size=batch_size, max_rows=max_rows, loss=loss)
        network = measure.network
        feeds = [(name, layer.number) for name, stack in layers_of(network).items()
                 for layer in stack if layer.block.feed is not None]  # fmt: skip
        mixers = [(name.part, name.layer) for name, _, _ in named_layers(network)]
        whole = measure()
        with ablate(network, feeds=feeds):
            without_feeds = measure()
        with ablate(network, mixers=mixers):
            without_mixers = measure()
    return BranchLosses(measure.what, whole, without_feeds, without_mixers)
