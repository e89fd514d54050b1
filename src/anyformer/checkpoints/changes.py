"""Changing a trained model: fewer key/value heads, another length, another kind of position, fewer layers.

Each change gives a new spec, a new network with all weights that still fit, and notes: what changed, whether outputs
stay the same, and whether fine-tuning is advised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.checkpoints.surgery import resize_images
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.patches import Patches
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError, did_you_mean
from anyformer.kernels.quantise import check_whole
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.positions import Alibi, Buckets, DynamicScaling, Learned, LinearScaling, NoRelative, Rope, Shaw, Sinusoid
from anyformer.slots import HeadSizes, Network, Position, Relative

Weights = dict[str, Tensor]
TUNE = "answers change; fine-tuning is advised"
NOTHING = "nothing changed"


@dataclass
class Changed:
    """The model after a change."""

    spec: Any
    model: nn.Module
    notes: list[str] = field(default_factory=list)


def rebuilt(model: nn.Module, spec: Network, weights: Weights, notes: list[str]) -> Changed:
    """A network of the new spec with these weights; parameters they do not cover are newly initialised and noted."""
    first = next(model.parameters())
    new = spec.build(seed=0, device=first.device, dtype=first.dtype).eval()
    fresh = []
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            if name in weights and weights[name].shape == parameter.shape:
                parameter.copy_(weights[name])
            else:
                fresh.append(name)
    if fresh:
        notes = [
            *notes,
            f"{len(fresh)} tensors start untrained: {', '.join(fresh[:4])}" + (" ..." if fresh[4:] else ""),
        ]
    return Changed(spec, new, notes)


def weights_of(model: nn.Module) -> Weights:
    check_whole(model, "change", "change")
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def stacks(spec: Network) -> dict[str, Stack]:
    """The stacks of a model by their path."""
    if isinstance(spec, Seq2Seq):
        return {"encoder.stack": spec.encoder.plain_stack, "decoder.stack": spec.decoder.plain_stack}
    if isinstance(spec, Model):
        return {"stack": spec.plain_stack}
    raise UserError(f"{type(spec).__name__} cannot be changed", fix="give a Model or Seq2Seq")


def with_stack(spec: Any, path: str, stack: Stack) -> Any:
    if path == "stack":
        return spec.replace(stack=stack)
    side = path.split(".")[0]
    return spec.replace(**{side: getattr(spec, side).replace(stack=stack)})


# ---------------------------------------------------------------- key/value heads


def fewer_kv_heads(spec: Network, model: nn.Module, kv_heads: int) -> Changed:
    """Convert to grouped-query attention: the key and value heads of a group are averaged (2305.13245).

    In an encoder-decoder only the decoder changes, as in the paper: the encoder has no KV cache to shrink.
    """
    path = "decoder.stack" if isinstance(spec, Seq2Seq) else "stack"
    stack, weights = stacks(spec)[path], weights_of(model)
    before: set[int] = set()
    for i, block in enumerate(stack.layers):
        for name, part in (("mixer", block.mixer), ("cross", block.cross)):
            if isinstance(part, Attention | Cross):
                sizes = sizes_of(part, stack.width)
                before.add(sizes.groups)
                pool_heads(weights, f"{path}.blocks.{i}.{name}", sizes, kv_heads)
    if not before:
        raise UserError("no layer has key/value heads", where="--kv-heads", fix="leave it out")
    if before == {kv_heads}:
        return Changed(spec, model, [f"{path}: {kv_heads} key/value heads already; {NOTHING}"])
    blocks = tuple(regroup(block, kv_heads) for block in stack.tiles)
    new = with_stack(spec, path, stack.replace(block=blocks if isinstance(stack.block, tuple) else blocks[0]))
    had = " and ".join(str(groups) for groups in sorted(before))
    return rebuilt(model, new, weights, [f"{path}: {had} key/value heads averaged into {kv_heads}; {TUNE}"])


def sizes_of(part: Attention | Cross, width: int) -> HeadSizes:
    same = Attention(heads=part.heads, kv_heads=part.kv_heads, key_size=part.key_size, value_size=part.value_size)
    return same.sizes(width)


def regroup(block: Any, kv_heads: int) -> Any:
    changes = {"mixer": block.mixer, "cross": block.cross}
    for name, part in changes.items():
        if isinstance(part, Attention | Cross):
            changes[name] = part.replace(kv_heads=None if kv_heads == part.heads else kv_heads)
    return block.replace(**changes)


def pool_heads(weights: Weights, path: str, sizes: HeadSizes, kv_heads: int) -> None:
    """Rewrite the projections of one attention for fewer key/value heads."""
    if sizes.groups % kv_heads:
        good = [n for n in range(1, sizes.groups + 1) if sizes.groups % n == 0]
        raise UserError(f"{sizes.groups} key/value heads cannot be averaged into {kv_heads}", where="--kv-heads",
                        fix=f"use one of {', '.join(map(str, good))}")  # fmt: skip
    queries = sizes.per_group * sizes.channels
    for kind in ("weight", "bias"):
        fused, apart = f"{path}.qkv.{kind}", f"{path}.kv.{kind}"
        if fused in weights:
            rows = weights[fused].unflatten(0, (sizes.groups, -1))  # (G, rows, ...)
            q, kv = rows[:, :queries], rows[:, queries:]
            pooled = kv.unflatten(0, (kv_heads, -1)).mean(1)
            together = q.unflatten(0, (kv_heads, -1)).flatten(1, 2)
            weights[fused] = torch.cat([together, pooled], 1).flatten(0, 1)
        elif apart in weights:
            rows = weights[apart].unflatten(0, (sizes.groups, -1))
            weights[apart] = rows.unflatten(0, (kv_heads, -1)).mean(1).flatten(0, 1)


# ---------------------------------------------------------------- layers


def fewer_layers(spec: Network, model: nn.Module, keep: Sequence[int]) -> Changed:
    """Keep the given layers, in that order, as a student's initialisation (DistilBERT takes every second one)."""
    weights, notes, new = weights_of(model), [], spec
    for path, stack in stacks(spec).items():
        if not keep or min(keep) < 0 or max(keep) >= stack.depth:
            raise UserError(
                f"layers {list(keep)} are not all among 0 to {stack.depth - 1}",
                where="--keep-layers",
                fix="name existing layers",
            )
        if stack.groups is not None:
            raise UserError(
                "layers that share weights cannot be picked apart", where="--keep-layers", fix="lower the depth instead"
            )
        kept: Weights = {}
        for at, layer in enumerate(keep):
            start = f"{path}.blocks.{layer}."
            kept |= {
                f"{path}.blocks.{at}.{name.removeprefix(start)}": w
                for name, w in weights.items()
                if name.startswith(start)
            }
        weights = {name: w for name, w in weights.items() if not name.startswith(f"{path}.blocks.")} | kept
        blocks = tuple(stack.layers[layer] for layer in keep)
        same = len(set(blocks)) == 1
        new = with_stack(new, path, stack.replace(depth=len(keep), block=blocks[0] if same else blocks))
        same_layers = list(keep) == list(range(stack.depth))
        kept_layers = f"layers {', '.join(map(str, keep))} of {stack.depth} kept"
        notes.append(f"{path}: {kept_layers}; {NOTHING if same_layers else TUNE}")
    return rebuilt(model, new, weights, notes)


# ---------------------------------------------------------------- length


def longer(spec: Network, model: nn.Module, length: int, trained: int | None = None) -> Changed:
    """The same model for texts of `length` tokens; `trained` is its training length, if known."""
    if length < 1:
        raise UserError(f"a length of {length} is below 1", where="--max-length", fix="give a number of tokens")
    weights, notes, new = weights_of(model), [], spec
    for path, embed in text_embeds(spec).items():
        position = embed.position
        if not isinstance(position, Learned):
            continue
        if position.length == length:
            notes.append(f"{path}: {length} learned positions already; {NOTHING}")
            continue
        name = f"{path}.position.table.weight"
        table, skipped = weights[name], position.offset
        weights[name] = torch.cat([table[:skipped], stretched(table[skipped:], length)])
        new = with_embed(new, path, embed.replace(position=position.replace(length=length)))
        if length < position.length:
            same = f"answers to texts of up to {length} tokens stay the same"
            notes.append(f"{path}: learned positions cut from {position.length} to {length}; {same}")
        else:
            notes.append(f"{path}: learned positions interpolated from {position.length} to {length}; {TUNE}")
    for path, stack in stacks(spec).items():
        ropes = dict.fromkeys(block.relative for block in stack.tiles if isinstance(block.relative, Rope))
        made = {rope: stretch_rope(rope, length, trained) for rope in ropes}
        notes += dict.fromkeys(f"{path}: {said}" for _, said in made.values())
        tiles = tuple(
            block.replace(relative=made[block.relative][0]) if isinstance(block.relative, Rope) else block
            for block in stack.tiles
        )
        if tiles != stack.tiles:
            new = with_stack(
                new, path, stacks(new)[path].replace(block=tiles if isinstance(stack.block, tuple) else tiles[0])
            )
    notes = notes or [f"its positions have no limit; {NOTHING}"]
    return Changed(spec, model, notes) if new == spec else rebuilt(model, new, weights, notes)


def stretched(table: Tensor, length: int) -> Tensor:
    """Cut off or linearly interpolate rows to `length`."""
    if length <= table.shape[0]:
        return table[:length]
    return F.interpolate(table.float().T[None], size=length, mode="linear", align_corners=True)[0].T.to(table.dtype)


def stretch_rope(rope: Rope, length: int, trained: int | None) -> tuple[Rope, str]:
    """Rotary positions for `length` tokens (position interpolation, 2306.15595), with a note."""
    if trained is None:
        unknown = "the length it was trained on is not known, and answers beyond that may be poor"
        return rope, f"rotary positions have no limit; {NOTHING}; {unknown}"
    if length <= trained:
        return rope, f"rotary positions have no limit and were trained on {trained} tokens; {NOTHING}"
    if isinstance(rope.scaling, DynamicScaling):
        return rope, f"rotary positions stretch by themselves beyond {rope.scaling.original} tokens; {NOTHING}"
    if rope.scaling is not None and not isinstance(rope.scaling, LinearScaling):
        raise UserError(f"rotary positions are stretched already, by {type(rope.scaling).__name__}",
                        where="--max-length", fix=f"give at most {trained}")  # fmt: skip
    stretch = length / trained
    before = 1.0 if rope.scaling is None else rope.scaling.factor
    longer = rope.replace(scaling=LinearScaling(factor=before * stretch))
    return longer, f"rotary positions divided by {stretch:g}, for {length} tokens instead of {trained}; {TUNE}"


def text_embeds(spec: Network) -> dict[str, Tokens]:
    """The embeddings of text by their path."""
    if isinstance(spec, Seq2Seq):
        found = {"encoder.embed": spec.encoder.embed, "decoder.embed": spec.decoder.embed}
    else:
        found = {"embed": spec.embed} if isinstance(spec, Model) else {}
    return {path: embed for path, embed in found.items() if isinstance(embed, Tokens)}


def with_embed(spec: Any, path: str, embed: Tokens) -> Any:
    if path == "embed":
        return spec.replace(embed=embed)
    side = path.split(".")[0]
    return spec.replace(**{side: getattr(spec, side).replace(embed=embed)})


# ---------------------------------------------------------------- image size


def other_image_size(spec: Network, model: nn.Module, size: int | tuple[int, int]) -> Changed:
    """The same model for images of another size; its grid of positions is resampled bicubically."""
    new, made = resize_images(spec, model, size)
    before = {path: part for path, part in spec.walk() if isinstance(part, Patches)}
    notes = []
    for path, part in new.walk():
        if isinstance(part, Patches):
            (height, width), (rows, columns), (were_rows, were_columns) = part.pixels, part.grid, before[path].grid
            if new is spec:
                notes.append(f"{path}: images of {height} x {width} already; {NOTHING}")
                continue
            how = "positions resampled" if part.position is not None else "no positions to resample"
            notes.append(
                f"{path}: {how}, from {were_rows} x {were_columns} to {rows} x {columns} patches; answers to images of "
                f"{height} x {width} stay the same, to those of other sizes they change; fine-tuning is advised"
            )
    return Changed(new, made, notes)


# ---------------------------------------------------------------- kind of position

ABSOLUTE: dict[str, Callable[[int], Position]] = {"learned": lambda n: Learned(n), "sinusoid": lambda n: Sinusoid()}
RELATIVE: dict[str, Callable[[], Relative]] = {"rope": Rope, "alibi": Alibi, "buckets": Buckets, "shaw": Shaw}


def other_position(spec: Network, model: nn.Module, kind: str, length: int = 1024) -> Changed:
    """The same model with another kind of position; what the old kind had learned is lost, so it must be trained."""
    if kind not in (*ABSOLUTE, *RELATIVE, "none"):
        raise UserError(
            f"unknown position {kind!r}",
            where="--position",
            fix=did_you_mean(kind, [*ABSOLUTE, *RELATIVE, "none"]),
        )
    weights, new = weights_of(model), spec
    for path, embed in text_embeds(spec).items():
        position = ABSOLUTE[kind](embed.limit or length) if kind in ABSOLUTE else None
        new = with_embed(new, path, embed.replace(position=kept_or(embed.position, position)))
    for path, stack in stacks(spec).items():
        relative = RELATIVE[kind]() if kind in RELATIVE else NoRelative()
        tiles = tuple(block.replace(relative=kept_or(block.relative, relative)) for block in stack.tiles)
        new = with_stack(
            new, path, stacks(new)[path].replace(block=tiles if isinstance(stack.block, tuple) else tiles[0])
        )
    if new == spec:
        return Changed(spec, model, [f"positions are {kind} already; {NOTHING}"])
    lost = sorted(
        name
        for name in weights
        if re.search(r"(position|relatives?)\.", name) and name not in dict(new.build(device="meta").named_parameters())
    )
    notes = [f"positions changed from {positions_of(spec)} to {kind}; answers change; the model must be trained again"]
    notes += [f"{len(lost)} tensors lost: {', '.join(lost[:4])}{' ...' if lost[4:] else ''}"] if lost else []
    return rebuilt(model, new, weights, notes)


def kept_or(before: Any, after: Any) -> Any:
    """The existing part if it is of the requested kind, to keep its settings and weights; else the new one."""
    return before if type(before) is type(after) else after


def positions_of(spec: Network) -> str:
    """The names of a model's kinds of position."""
    parts: list[Any] = [embed.position for embed in text_embeds(spec).values()]
    parts += [block.relative for stack in stacks(spec).values() for block in stack.tiles]
    named = [type(part).__name__.lower() for part in parts if part is not None and not isinstance(part, NoRelative)]
    return " and ".join(dict.fromkeys(named)) or "none"
