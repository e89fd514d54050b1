"""How layers and heads are named: by the part of the network they are in, and numbers from 0.

    3.5            head 5 of layer 3
    encoder.3.5    the same of an encoder-decoder's encoder (decoder.3.5 of its decoder)
    cross.3.5      head 5 of the attention to the encoder in layer 3

In Python they are tuples: (3, 5), ("encoder", 3, 5), ("cross", 3, 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from anyformer.core.block import BlockModule
from anyformer.core.stack import StackModule
from anyformer.errors import UserError, did_you_mean
from anyformer.mixers.attention import AttentionModule
from anyformer.mixers.cross import CrossModule

CROSS = "cross"


class HeadName(NamedTuple):
    """`part` is "" if a network has one stack, else "encoder", "decoder", ..., or "cross"."""

    part: str
    layer: int
    head: int

    def __str__(self) -> str:
        return ".".join(str(word) for word in self if word != "")

    @property
    def layer_name(self) -> LayerName:
        return LayerName(self.part, self.layer)

    @property
    def short(self) -> tuple[Any, ...]:
        """The tuple as a user writes it in Python."""
        return tuple(word for word in self if word != "")


class LayerName(NamedTuple):
    """One mixer: a layer's own, or its cross-attention if part is "cross"."""

    part: str
    layer: int

    def __str__(self) -> str:
        return ".".join(str(word) for word in self if word != "")


class NamedLayer(NamedTuple):
    """One layer of a stack. `use` is which of its block's `uses` calls in a pass it is: layers may share a block."""

    stack: str
    number: int
    block: BlockModule
    path: str
    use: int
    uses: int


def network_of(model: Any, where: str) -> nn.Module:
    """The network itself, unwrapped from a predictor; anything else is rejected."""
    found = getattr(model, "model", model) if not isinstance(model, nn.Module) else model
    if not isinstance(found, nn.Module):
        raise UserError(
            f"{type(model).__name__} is not a network", where=where, fix="give a built model or a predictor"
        )
    return found


def layers_of(model: nn.Module) -> dict[str, list[NamedLayer]]:
    """Every layer in forward order, grouped by the part of the network it is in."""
    found: dict[str, list[NamedLayer]] = {}
    for path, stack in model.named_modules():
        if isinstance(stack, StackModule):
            name = path.partition("stack")[0].rstrip(".")
            layers = found.setdefault(name, [])
            for i, which in enumerate(stack.order):
                block = stack.blocks[which]
                assert isinstance(block, BlockModule)
                use, uses = stack.order[:i].count(which), stack.order.count(which)
                layers.append(NamedLayer(name, len(layers), block, f"{path}.blocks.{which}", use, uses))
    if not any(found.values()):
        raise UserError("the network has no layers", where="layers", fix="give a model with a stack of blocks")
    return found


def has_stacks(model: nn.Module) -> bool:
    """Whether the model has layers that can be named."""
    return any(isinstance(part, StackModule) and part.order for part in model.modules())


def part_names(model: nn.Module) -> list[str]:
    """Valid names of a layer's part: the stacks, and "cross" if any layer has cross-attention."""
    layers = layers_of(model)
    looking = any(layer.block.cross is not None for stack in layers.values() for layer in stack)
    return [*layers, *([CROSS] if looking else [])]


def named_layers(model: nn.Module) -> Iterator[tuple[LayerName, NamedLayer, nn.Module]]:
    """Every mixer of every layer with its name: self-attention before cross-attention."""
    for part, layers in layers_of(model).items():
        for layer in layers:
            yield LayerName(part, layer.number), layer, layer.block.mixer
            if layer.block.cross is not None:
                yield LayerName(CROSS, layer.number), layer, layer.block.cross


def find_layer(model: nn.Module, name: LayerName, where: str) -> tuple[NamedLayer, nn.Module]:
    """The layer and the mixer of that name."""
    for known, layer, mixer in named_layers(model):
        if known == name:
            return layer, mixer
    count = sum(known.part == name.part for known, _, _ in named_layers(model))
    if not count:
        raise unknown_part(model, name.part, where)
    raise UserError(f"layer {name} is out of range", where=where, fix=f"layers are numbered 0 to {count - 1}")


def heads_in(mixer: nn.Module) -> int:
    """Number of heads whose outputs are concatenated before the mixer's output projection; 0 if it has none."""
    return mixer.sizes.heads if isinstance(mixer, AttentionModule | CrossModule) else 0


def every_head(model: nn.Module) -> list[HeadName]:
    """All heads of a network, layer by layer."""
    return [HeadName(*name, head) for name, _, mixer in named_layers(model) for head in range(heads_in(mixer))]


def check_head(model: nn.Module, name: HeadName, where: str) -> None:
    """Reject the name of a head that does not exist."""
    _, mixer = find_layer(model, name.layer_name, where)
    count = heads_in(mixer)
    if not count:
        raise UserError(f"layer {name.layer_name} is {type(mixer).__name__.removesuffix('Module')}, which has no heads",
                        where=where, fix="name a layer with attention")  # fmt: skip
    if not 0 <= name.head < count:
        raise UserError(f"head {name} is out of range", where=where, fix=f"its layer has heads 0 to {count - 1}")


def as_name(given: Any, numbers: int, model: nn.Module, where: str) -> tuple[Any, ...]:
    """(part, number, ...) from user input: a number, a tuple of numbers, or a tuple that begins with a part."""
    words = tuple(given) if isinstance(given, tuple | list) else (given,)
    part = ""
    if words and isinstance(words[0], str):
        part, words = words[0], words[1:]
    if len(words) != numbers or any(isinstance(word, bool) or not isinstance(word, int) for word in words):
        example = ", ".join("352"[i % 3] for i in range(numbers))
        raise UserError(f"{given!r} names nothing", where=where, fix=f'write ({example}) or ("encoder", {example})')
    if part not in part_names(model):
        raise unknown_part(model, part, where)
    return (part, *words)


def as_heads(given: Iterable[Any], model: nn.Module, where: str = "heads") -> list[HeadName]:
    """Head names from user input, without duplicates."""
    names = [HeadName(*as_name(one, 2, model, where)) for one in given]
    for name in names:
        check_head(model, name, where)
    return list(dict.fromkeys(names))


def parse_heads(text: str, where: str) -> list[tuple[Any, ...]]:
    """Parse `3.1,5.0` or `encoder.3.1` into tuples."""
    found: list[tuple[Any, ...]] = []
    for word in text.split(","):
        *part, layer, head = ["", *word.strip().split(".")][-3:] if word.count(".") else ["", "", ""]
        if not (layer.isdecimal() and head.isdecimal()) or word.count(".") > 2:
            raise UserError(f"{word.strip()!r} is not a head", where=where,
                            fix="write layer.head, both from 0, such as 3.1,5.0 or encoder.3.1")  # fmt: skip
        named = [name for name in part if name]
        found.append((*named, int(layer), int(head)))
    return found


def unknown_part(model: nn.Module, part: str, where: str) -> UserError:
    known = [name for name in part_names(model) if name]
    if not known:
        return UserError(f"the network has no part {part!r}", where=where, fix="give the numbers alone")
    if not part:
        return UserError("it is not said which part of the network is meant", where=where,
                         fix="begin with " + " or ".join(repr(name) for name in known))  # fmt: skip
    return UserError(f"the network has no part {part!r}", where=where, fix=did_you_mean(part, known))
