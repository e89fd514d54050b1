"""The layers of a network from input to head, for layer-wise learning rates and gradual unfreezing (1801.06146)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EMBED, HEAD = "embed", "head"
STREAM = re.compile(r"^(first|second)\.")  # two networks side by side: layers of the same number count as one
BLOCK = re.compile(r"^(.*\bblocks\.\d+)\.")


@dataclass(frozen=True)
class Layer:
    """Parameters at the same distance from the head, by name."""

    name: str  # the path of a block, "embed" or "head"
    parameters: tuple[str, ...]


def layers_of(model: nn.Module) -> list[Layer]:
    """The layers of a network in forward order: embedding, blocks, head; every parameter is in exactly one.

    Of an encoder-decoder all blocks of the encoder come first.
    """
    names = [name for name, _ in model.named_parameters()]
    blocks = list(dict.fromkeys(block for name in names if (block := block_of(name)) is not None))
    members: dict[str, list[str]] = {name: [] for name in (EMBED, *blocks, HEAD)}
    for name in names:
        members[layer_name(name, blocks)].append(name)
    return [Layer(name, tuple(found)) for name, found in members.items() if found]


def block_of(name: str) -> str | None:
    """The path of the block that a parameter is in; a backbone inside an embedding has none.

    >>> block_of("encoder.stack.blocks.3.mixer.out.weight"), block_of("first.stack.blocks.0.mixer.out.weight")
    ('encoder.stack.blocks.3', 'stack.blocks.0')
    """
    found = BLOCK.match(STREAM.sub("", name))
    return None if found is None or EMBED in name.split(".") else found.group(1)


def layer_name(name: str, blocks: Sequence[str]) -> str:
    """The layer of a parameter; parameters of a stack outside its blocks belong to the nearest block."""
    block, parts = block_of(name), name.split(".")
    if block is not None:
        return block
    if EMBED in parts:
        return EMBED
    holder = STREAM.sub("", name)
    while "." in holder and HEAD not in parts:
        holder = holder.rpartition(".")[0]
        beside = [block for block in blocks if block.startswith(f"{holder}.")]
        if beside:  # what follows the blocks belongs to the last, everything else to the first that may use it
            return beside[-1 if {"final", "merge"} & set(parts) else 0]
    return HEAD


def layer_factors(model: nn.Module, share: float) -> dict[str, float]:
    """lr factor by parameter name: 1 in the last layer, multiplied by `share` for each layer below."""
    layers = layers_of(model)
    return {
        name: share ** (len(layers) - 1 - number) for number, layer in enumerate(layers) for name in layer.parameters
    }


@dataclass(frozen=True)
class LayerRate:
    """A line of the learning-rate table that is logged before the first step."""

    layer: str
    lr: tuple[float, ...]  # full learning rates: several where one layer has matrices for Muon and others for AdamW
    trained: int  # parameters
    frozen: int

    def __str__(self) -> str:
        rates = " ".join(f"{rate:.4g}" for rate in self.lr) or "-"
        frozen = f", {self.frozen:,} frozen" if self.frozen else ""
        return f"{self.layer:<24} lr {rates:<10} {self.trained:,} parameters{frozen}"


def layer_rates(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> list[LayerRate]:
    """The full learning rate of each layer, the head first."""
    rates: dict[int, float] = {
        id(p): group["full"] for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    }
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    lines = []
    for layer in reversed(layers_of(model)):
        mine = [parameters[name] for name in layer.parameters]
        trained = [p for p in mine if id(p) in rates]
        lr = tuple(sorted({rates[id(p)] for p in trained}, reverse=True))
        count = sum(p.numel() for p in trained)
        lines.append(LayerRate(layer.name, lr, count, sum(p.numel() for p in mine) - count))
    return lines
