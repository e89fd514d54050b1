"""Importance of each head: the loss increase from its ablation, or an estimate from gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyformer.core.head_names import HeadName, LayerName, every_head, heads_in, named_layers
from anyformer.errors import UserError, did_you_mean
from anyformer.inspection.ablate import LayerClock, ablate
from anyformer.inspection.measure import Loss, Measure, in_eval_mode, measure_on

METHODS = ("zero", "gradient")


@dataclass(frozen=True)
class HeadImportance:
    """`change` is the loss increase without each head; with method "gradient", an estimate of its magnitude.

    As text, a table from the most to the least important head.
    """

    what: str  # name of the loss
    whole: float  # loss of the whole network
    change: dict[HeadName, float]
    method: str = "zero"

    def __str__(self) -> str:
        rows = sorted(self.change.items(), key=lambda item: -item[1])
        width = max(len("whole model"), *(len(f"without {name}") for name in self.change))
        lines = [f"{'whole model':<{width}}  {self.what} {self.whole:.4f}"]
        estimated = " (estimate)" if self.method == "gradient" else ""
        return "\n".join(
            [*lines, *(f"{f'without {name}':<{width}}  {change:+.4f}{estimated}" for name, change in rows)]
        )

    def grid(self, part: str = "") -> Tensor:
        """Importance (layers, heads) of one part of the network; nan if a layer has fewer heads."""
        own = {name: value for name, value in self.change.items() if name.part == part}
        if not own:
            known = sorted({repr(name.part) for name in self.change})
            raise UserError(f"unknown part {part!r}", where="grid", fix="use one of " + ", ".join(known))
        layers, heads = (max(name.layer for name in own) + 1, max(name.head for name in own) + 1)
        found = torch.full((layers, heads), torch.nan)
        for name, value in own.items():
            found[name.layer, name.head] = value
        return found


def head_importance(
    model: Any,
    data: Any,
    *,
    method: Literal["zero", "gradient"] = "zero",
    batch_size: int = 32,
    max_rows: int = 256,
    loss: Loss | None = None,
) -> HeadImportance:
    """The loss increase on `data` from ablating each head, one at a time.

    `model` is a predictor or a network; `data` rows or files with targets for a model trained by anyformer, else texts,
    images, or the tensors of a call, or a list of these. "zero" runs the data once for each head. "gradient" needs one
    forward and one backward pass for all heads: the magnitude of the loss's gradient with respect to a factor on the
    head (1905.10650), which finds unimportant heads but does not quantify important ones.

    >>> from anyformer import preset
    >>> net = preset("gpt2-tiny").build(seed=0)
    >>> found = head_importance(net, torch.arange(8)[None])
    >>> found.grid().shape
    torch.Size([4, 4])
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}", where="method", fix=did_you_mean(str(method), METHODS))
    with in_eval_mode(model):
        measure = measure_on(model, data, batch_size=batch_size, max_rows=max_rows, loss=loss)
        heads = every_head(measure.network)
        if not heads:
            raise UserError("the network has no attention heads", where="head_importance", fix="give another model")
        whole = measure()
        change = by_gradient(measure) if method == "gradient" else by_zeroing(measure, heads, whole)
    return HeadImportance(measure.what, whole, change, method)


def by_zeroing(measure: Measure, heads: list[HeadName], whole: float) -> dict[HeadName, float]:
    """The loss without each head, minus the loss of the whole network."""
    found = {}
    for name in heads:
        with ablate(measure.network, heads=[name.short]):
            found[name] = measure() - whole
    return found


def by_gradient(measure: Measure) -> dict[HeadName, float]:
    """|d loss / d factor| of a factor on each head, per batch, as a mean over the targets."""
    network = measure.network
    factors: dict[LayerName, Tensor] = {}
    handles, clock = [], LayerClock()
    for name, layer, mixer in named_layers(network):
        if heads_in(mixer):
            factor = torch.ones(heads_in(mixer), device=next(network.parameters()).device, requires_grad=True)
            factors[name] = factor
            handles.append(mixer.out.register_forward_pre_hook(clock.only(layer, scaling(factor))))  # type: ignore[union-attr]
    handles += [block.register_forward_pre_hook(clock.enter, prepend=True) for block in blocks_of(network)]
    total = {name: torch.zeros_like(factor) for name, factor in factors.items()}
    try:
        for question in measure.questions:
            with torch.enable_grad():
                given = torch.autograd.grad(question.ask(network), list(factors.values()))
            for name, gradient in zip(factors, given, strict=True):
                total[name] += gradient.abs()
    finally:
        for handle in handles:
            handle.remove()
    return {
        HeadName(*name, head): value / measure.weight
        for name, values in total.items()
        for head, value in enumerate(values.tolist())
    }


def scaling(factor: Tensor) -> Any:
    """A hook that multiplies each head's output by its factor."""

    def hook(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        apart = given[0].unflatten(-1, (len(factor), -1))  # (B,T,H,C')
        return ((apart * factor.to(apart.dtype)[:, None]).flatten(-2), *given[1:])

    return hook


def blocks_of(network: nn.Module) -> list[nn.Module]:
    return list(dict.fromkeys(layer.block for _, layer, _ in named_layers(network)))
