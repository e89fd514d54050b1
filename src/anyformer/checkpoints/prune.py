"""Head pruning: a smaller network whose outputs equal those of the original with these heads ablated.

Layers may lose different heads, so the new spec has one block per layer. Heads that share keys and values are removed
as
whole groups, or equally many from each group. A layer keeps at least one head: without any it would be a constant, for
which there is no mixer; `fewer_layers` removes whole layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.checkpoints.changes import Changed, Weights, rebuilt, sizes_of, stacks, weights_of, with_stack
from anyformer.core.head_names import CROSS, HeadName, as_heads, network_of
from anyformer.core.stack import Stack
from anyformer.errors import UserError
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.positions.some_heads import SomeHeads
from anyformer.slots import HeadSizes, Relative

FEW = 12  # heads listed in a note


def prune(model: Any, heads: Iterable[Any]) -> Any:
    """The model without some heads: a smaller network, or for a predictor a predictor with one.

    Heads are named as for `ablate`: (layer, head) from 0, ("encoder", 3, 5), ("cross", 3, 5). Outputs equal those of
    the model with the same heads ablated. The model itself is not modified.

    >>> from anyformer import preset
    >>> net = preset("gpt2-tiny").build(seed=0)
    >>> smaller = prune(net, [(0, 1)])
    >>> smaller.spec.stack.block[0].mixer.heads, smaller.spec.stack.block[1].mixer.heads
    (3, 4)
    """
    network: Any = network_of(model, "prune")
    made = fewer_heads(network.spec, network, heads)
    if isinstance(model, nn.Module):
        return made.model
    return replace(model, opened=replace(model.opened, spec=made.spec, model=made.model))


def fewer_heads(spec: Any, model: nn.Module, heads: Iterable[Any]) -> Changed:
    """The same, returning the notes as the other model changes do."""
    names = as_heads(heads, model, "heads")
    if not names:
        return Changed(spec, model, ["no head is named; nothing changed"])
    weights, new, before = weights_of(model), spec, count_weights(model)
    for path, plan in planned(spec, model, names).items():
        old = stacks(new)[path]
        for cut in plan.cuts:
            cut_weights(weights, f"{path}.blocks.{cut.layer}.{cut.name}", cut)
        move_tables(weights, path, old, plan.stack)
        new = with_stack(new, path, plan.stack)
    made = rebuilt(model, new, weights, [])
    assert not made.notes, made.notes  # every weight fits
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, parameter in made.model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    saved = before - count_weights(made.model)
    shown = ", ".join(str(name) for name in names[:FEW]) + (" ..." if names[FEW:] else "")
    made.notes.append(
        f"{len(names)} head{'s' * (len(names) > 1)} removed ({shown}), {saved:,} parameters fewer; "
        "answers are those of the model without them; fine-tuning is advised"
    )
    return made


def count_weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class HeadCut(NamedTuple):
    """The pruning of one attention layer."""

    layer: int
    name: str  # "mixer" or "cross"
    kept: list[int]  # heads
    groups: list[int]  # key/value heads still used
    sizes: HeadSizes  # before pruning


class StackPlan(NamedTuple):
    """The pruned stack, and the weights to cut for it."""

    stack: Stack
    cuts: list[HeadCut]


def planned(spec: Any, model: nn.Module, names: list[HeadName]) -> dict[str, StackPlan]:
    """The plan of every stack that loses heads, by its path; impossible requests are rejected with the reason."""
    if getattr(model, "members", None) is not None:
        raise UserError("members of an ensemble share their heads' weights", where="heads", fix="prune one model")
    found = {}
    for path, stack in stacks(spec).items():
        gone = by_layer(names, path.removesuffix("stack").rstrip("."), stack)
        if gone:
            found[path] = without_heads(stack, gone)
    return found


Gone = dict[tuple[int, str], set[int]]  # (layer, "mixer" or "cross") to its heads


def by_layer(names: list[HeadName], part: str, stack: Stack) -> Gone:
    """The heads to remove from one stack, by layer."""
    gone: Gone = defaultdict(set)
    for name in names:
        crossing = name.part == CROSS
        if name.part == part or (crossing and stack.has_cross_attention):
            gone[name.layer, "cross" if crossing else "mixer"].add(name.head)
    if gone and stack.groups is not None:
        raise UserError("layers that share weights cannot lose different heads", where="heads",
                        fix="leave these heads in, or build the stack without groups")  # fmt: skip
    return dict(gone)


def without_heads(stack: Stack, gone: Gone) -> StackPlan:
    """The stack without those heads."""
    blocks = list(stack.layers)
    cuts: list[HeadCut] = []
    for (layer, name), heads in sorted(gone.items()):
        block = blocks[layer]
        part: Any = getattr(block, name)
        if not isinstance(part, Attention | Cross):
            raise UserError(f"heads of {type(part).__name__} cannot be removed", where=f"layer {layer}",
                            fix="name heads of Attention or Cross")  # fmt: skip
        sizes = sizes_of(part, stack.width)
        kept = [head for head in range(sizes.heads) if head not in heads]
        groups = groups_left(kept, sizes, f"layer {layer}")
        smaller = part.replace(
            heads=len(kept), key_size=sizes.channels, value_size=sizes.value_channels,
            kv_heads=None if len(groups) == len(kept) else len(groups),
        )  # fmt: skip
        relative = fewer_positions(block.relative, kept, sizes) if name == "mixer" else block.relative
        blocks[layer] = block.replace(**{name: smaller, "relative": relative})
        cuts.append(HeadCut(layer, name, kept, groups, sizes))
    return StackPlan(stack.replace(block=tuple(blocks)), cuts)


def groups_left(kept: list[int], sizes: HeadSizes, where: str) -> list[int]:
    """The key/value heads still used; each must serve the same number of heads."""
    if not kept:
        raise UserError("it would have no head left", where=where,
                        fix="keep one, or drop the layer with fewer_layers (convert --keep-layers)")  # fmt: skip
    served: dict[int, int] = defaultdict(int)
    for head in kept:
        served[head // sizes.per_group] += 1
    if len(set(served.values())) > 1:
        each = ", ".join(f"{group}: {served.get(group, 0)}" for group in range(sizes.groups))
        raise UserError(
            f"its heads share keys and values by {sizes.per_group}, and groups would be left uneven ({each})",
            where=where, fix="remove whole groups, or as many heads from each",
        )  # fmt: skip
    return sorted(served)


def fewer_positions(relative: Relative, kept: list[int], sizes: HeadSizes) -> Relative:
    """Relative positions for the remaining heads."""
    if not relative.has_bias:
        return relative
    if isinstance(relative, SomeHeads):  # pruned before
        return relative.replace(heads=tuple(relative.heads[head] for head in kept))
    return SomeHeads(relative=relative, heads=tuple(kept), of=sizes.heads)


def cut_weights(weights: Weights, path: str, cut: HeadCut) -> None:
    """Cut the projections of one attention layer to the remaining heads."""
    kept, groups, sizes = cut.kept, cut.groups, cut.sizes
    of_group = [[head % sizes.per_group for head in kept if head // sizes.per_group == group] for group in groups]
    inner = torch.tensor(of_group)  # (G', H'/G'): which of its group's heads
    outer = torch.tensor(groups)
    for kind in ("weight", "bias"):
        if (name := f"{path}.qkv.{kind}") in weights:
            rows = weights[name].unflatten(0, (sizes.groups, -1))[outer]  # (G', rows, ...)
            q, kv = rows.split([sizes.per_group * sizes.channels, sizes.channels + sizes.value_channels], 1)
            weights[name] = torch.cat([take_heads(q, inner, sizes.channels), kv], 1).flatten(0, 1)
        if (name := f"{path}.q.{kind}") in weights:
            weights[name] = weights[name].unflatten(0, (sizes.heads, -1))[torch.tensor(kept)].flatten(0, 1)
        if (name := f"{path}.kv.{kind}") in weights:
            weights[name] = weights[name].unflatten(0, (sizes.groups, -1))[outer].flatten(0, 1)
    name = f"{path}.out.weight"
    weights[name] = weights[name].unflatten(1, (sizes.heads, -1))[:, torch.tensor(kept)].flatten(1)


def take_heads(q: Tensor, inner: Tensor, channels: int) -> Tensor:
    """Select the query rows of some heads of each group: (G', H/G*C, ...) to (G', H'/G'*C, ...)."""
    apart = q.unflatten(1, (-1, channels))  # (G', H/G, C, ...)
    rows = torch.arange(len(inner))[:, None]
    return apart[rows, inner].flatten(1, 2)


def move_tables(weights: Weights, path: str, old: Stack, new: Stack) -> None:
    """Rename shared relative-position tables to their numbers in the new stack."""
    before, after = shared_kinds(old), shared_kinds(new)
    found: Weights = {}
    for layer, block in enumerate(new.layers):
        was = old.layers[layer]
        if block.relative in after and was.relative in before:
            start = f"{path}.relatives.{before.index(was.relative)}."
            to = f"{path}.relatives.{after.index(block.relative)}."
            found |= {to + name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}
    for name in [name for name in weights if name.startswith(f"{path}.relatives.")]:
        del weights[name]
    weights |= found


def shared_kinds(stack: Stack) -> list[Relative]:
    """The relative positions of a stack in the order of its modules, as `StackModule` builds them."""
    shared = [block.relative for block in stack.layers if block.relative.shared and block.mixer.takes_relative]
    return list(dict.fromkeys(shared))
