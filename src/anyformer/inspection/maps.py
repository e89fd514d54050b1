"""Attention maps recomputed from the model's own activations, with its fused kernels left on.

The network runs unchanged; temporary hooks record the inputs of each attention, and the maps are computed afterwards
from the same `Scores` that the kernel was given. No forward method has code for this.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.attend import Choice, choose, weights_of
from anyformer.core.attention_weights import Weighing
from anyformer.errors import UserError
from anyformer.mixers.attention import AttentionInputs, AttentionModule
from anyformer.mixers.cross import CrossModule

Inputs = tuple[Any, ...]


@contextmanager
def noted(model: nn.Module) -> Iterator[dict[str, list[tuple[nn.Module, Inputs]]]]:
    """Record the inputs of every attention module of `model` in a `with` block, by module path, in order of calls."""
    seen: dict[str, list[tuple[nn.Module, Inputs]]] = {}

    def note(path: str) -> Any:
        def hook(module: nn.Module, given: Inputs) -> None:
            x, context, state, tables = given[:4]  # all tokens, even if only some outputs are needed
            # The pass appends its keys to the state: the maps need a copy from before.
            seen.setdefault(path, []).append((module, (x, context, copy.deepcopy(state), tables)))

        return hook

    kinds = AttentionModule | CrossModule | Weighing
    found = {path: module for path, module in model.named_modules() if isinstance(module, kinds)}
    handles = [module.register_forward_pre_hook(note(path)) for path, module in found.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def prepared(model: nn.Module, *inputs: Any, options: dict[str, Any] | None = None) -> dict[str, list[AttentionInputs]]:
    """Queries, keys, values and scores of every attention in one pass over `inputs`, by module path.

    A module shared by several layers has one entry for each.
    """
    return {
        path: [module.prepare(*given) for module, given in calls]  # type: ignore[operator]
        for path, calls in entered(model, inputs, options or {}).items()
        if not isinstance(calls[0][0], Weighing)
    }


@torch.no_grad()
def attention_maps(
    model: nn.Module, *inputs: Any, rows: slice = slice(None), **options: Any
) -> dict[str, list[Tensor]]:
    """Weights (B,H,t,S) of every attention, by module path: `attention_maps(model, tokens, mask=mask)`.

    `rows` selects queries, so that a long text costs only these rows. With `state=` the tokens continue a decoding
    state, as in any pass: S includes the cached keys, and the state is advanced by the tokens.
    """
    seen = entered(model, inputs, options)
    return {path: [weighed(module, given, rows) for module, given in calls] for path, calls in seen.items()}


def entered(model: nn.Module, inputs: Inputs, options: dict[str, Any]) -> dict[str, list[tuple[nn.Module, Inputs]]]:
    """The inputs of every attention in one pass over `inputs`."""
    if not isinstance(model, nn.Module):
        raise UserError(f"{type(model).__name__} is not a network", where="attention maps",
                        fix="give a built model, such as predictor.model, and ids from its tokenizer")  # fmt: skip
    state = options.get("state")
    for module in model.modules() if state is not None and state.length else ():
        if isinstance(module, Weighing) and not module.keeps_keys:
            raise UserError(f"{type(module).__name__} remembers sums of earlier tokens, not their keys",
                            where="attention maps", fix="give the whole text in one pass, without a state")  # fmt: skip
    with noted(model) as seen:
        model(*inputs, **options)
    return seen


def weighed(module: nn.Module, given: Inputs, rows: slice) -> Tensor:
    """The attention weights of one layer, from its inputs."""
    if isinstance(module, Weighing):
        x, context, state, tables = given
        return module.weights(x, context, state, tables, rows)
    p = module.prepare(*given)  # type: ignore[operator]
    return weights_of(p.q, p.k, p.scores, rows)


@torch.no_grad()
def explain_attention(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, Choice]:
    """Which kernel each attention uses for these inputs, and why."""
    layers = prepared(model, *inputs, options=options)
    return {path: choose(calls[0].q, calls[0].k, calls[0].v, calls[0].scores) for path, calls in layers.items()}
