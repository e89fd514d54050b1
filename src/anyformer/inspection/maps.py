"""Attention maps rebuilt from what the model itself computed, with the fast kernel left on.

The network is run as it is; temporary hooks note what went into each attention, and the maps are made afterwards from
the same description of the scores that the kernel was given. Nothing in any forward knows about it.
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
    """What enters every attention module of `model` while the block runs, by module path, in order of calls."""
    seen: dict[str, list[tuple[nn.Module, Inputs]]] = {}

    def note(path: str) -> Any:
        def hook(module: nn.Module, given: Inputs) -> None:
            x, context, state, tables = given[:4]  # all tokens, also where some alone are answered
            # The pass itself adds its keys to the state: the maps need it as it was before.
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

    A path has one entry a layer that uses it, so weights shared by several layers give several.
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

    `rows` picks queries, so that a long text costs only the rows looked at. With `state=` the tokens go on from what it
    holds, as in any pass: S counts the keys in the cache too, and the state has read the tokens afterwards.
    """
    seen = entered(model, inputs, options)
    return {path: [weighed(module, given, rows) for module, given in calls] for path, calls in seen.items()}


def entered(model: nn.Module, inputs: Inputs, options: dict[str, Any]) -> dict[str, list[tuple[nn.Module, Inputs]]]:
    """What entered every attention in one pass over `inputs`."""
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
    """The weights of one layer, from what entered it."""
    if isinstance(module, Weighing):
        x, context, state, tables = given
        return module.weights(x, context, state, tables, rows)
    p = module.prepare(*given)  # type: ignore[operator]
    return weights_of(p.q, p.k, p.scores, rows)


@torch.no_grad()
def explain_attention(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, Choice]:
    """Which kernel each attention runs on for these inputs, and why."""
    layers = prepared(model, *inputs, options=options)
    return {path: choose(calls[0].q, calls[0].k, calls[0].v, calls[0].scores) for path, calls in layers.items()}
