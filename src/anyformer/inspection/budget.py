"""Memory estimate of a look from shapes alone, before the pass; above the budget it is an error with alternatives.

A look keeps the residual stream, the outputs of each mixer and feed, the inputs of each mixer, and the logits: these
must fit the budget. Maps are computed from them on demand; a map larger than the budget is an error then, but can be
read in rows, in tiles or pooled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.amounts import decimal_bytes
from anyformer.core.block import BlockModule
from anyformer.core.model import ModelModule
from anyformer.core.stack import StackModule
from anyformer.errors import NoRoom, UserError
from anyformer.heads.lm import LM
from anyformer.inspection.replay import stack_of

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
SIDE = 256  # cells per side of a pooled overview
FLOAT = 4  # bytes of a map's element
NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
Layers = str | Iterable[int]  # "all", or layer numbers from 0
SIDES = ("encoder", "decoder", "first", "second")
OTHER_SIDE = {"decoder": "encoder", "first": "second", "second": "first"}


def bytes_of(text: str | int | float) -> int:
    """A budget in bytes: `256MB`, `1.5 GiB`, or a number of bytes.

    >>> bytes_of("256MB"), bytes_of("1.5 GiB"), bytes_of(4096)
    (256000000, 1610612736, 4096)
    """
    match = NUMBER.fullmatch(str(text))
    unit = UNITS.get((match[2] or "B").upper()) if match else None
    if match is None or unit is None:
        raise UserError(
            f"{text!r} is not an amount of memory", where="budget", fix='use a number and a unit, as "256MB"'
        )
    size = round(float(match[1]) * unit)
    if size < 1:
        raise UserError(f"{text!r} leaves no room", where="budget", fix='use "256MB"')
    return size


@dataclass(frozen=True)
class LayerShape:
    """The sizes of one mixer of one layer that determine its memory."""

    stack: str
    layer: int
    queries: int
    keys: int
    width: int
    heads: int
    feeds: int  # 1 where the block's feed is counted with this mixer


@dataclass(frozen=True)
class Price:
    """Bytes of a look. `kept` is held as long as the capture; maps are computed on demand."""

    residuals: int  # the residual stream before the first block and after each
    branches: int  # the outputs of each mixer and feed
    sites: int  # the inputs of each mixer whose maps are wanted
    logits: int
    map: int  # the largest map of one site, all heads, float32
    overviews: int  # pooled overviews of all heads, one byte a cell
    layers: tuple[LayerShape, ...]
    batch: int = 1

    @property
    def kept(self) -> int:
        return self.residuals + self.branches + self.sites + self.logits

    def table(self) -> list[str]:
        """The price as a table, one line per part."""
        parts = [
            ("residual stream", self.residuals), ("outputs of mixers and feeds", self.branches),
            (f"inputs of {len(self.layers)} mixers", self.sites), ("logits", self.logits), ("together", self.kept),
            ("a map of all heads, if asked for", self.map), ("overviews of all heads", self.overviews),
        ]  # fmt: skip
        return [f"{name:<34}{decimal_bytes(size):>10}" for name, size in parts]


def price(model: nn.Module, batch: int, tokens: int | Mapping[str, int], *, layers: Layers = "all") -> Price:
    """The price of a look at a batch of `tokens` tokens; for an encoder-decoder by stack: `{"encoder": 9, ...}`.

    Layers that reduce the number of tokens (a pyramid) are priced as if they did not.
    """
    parameter = next(model.parameters(), None)
    each = batch * (torch.float32 if parameter is None else parameter.dtype).itemsize
    shapes = tuple(layer_shapes(model, tokens))
    chosen = None if isinstance(layers, str) else set(layers)
    wanted = tuple(shape for shape in shapes if chosen is None or shape.layer in chosen)
    blocks = {(shape.stack, shape.layer): shape.queries * shape.width for shape in shapes}
    starts = {shape.stack: shape.queries * shape.width for shape in shapes}
    answering = max((shape.queries for shape in shapes if shape.stack != "encoder"), default=0)
    return Price(
        residuals=each * (sum(blocks.values()) + sum(starts.values())),
        branches=each * sum((1 + shape.feeds) * shape.queries * shape.width for shape in shapes),
        sites=each * sum(shape.queries * shape.width for shape in wanted),
        logits=each * answering * outputs_of(model),
        map=max((shape.heads * shape.queries * shape.keys * FLOAT for shape in wanted), default=0),
        overviews=sum(shape.heads * min(shape.queries, SIDE) * min(shape.keys, SIDE) for shape in wanted),
        layers=wanted, batch=batch,
    )  # fmt: skip


def price_call(model: nn.Module, args: Sequence[Any], options: Mapping[str, Any], layers: Layers = "all") -> Price:
    """The price of a look at one call of a model, before the call."""
    batch, tokens = tokens_of(model, args, options)
    return price(model, batch, tokens, layers=layers)


def layer_shapes(model: nn.Module, tokens: int | Mapping[str, int]) -> Iterator[LayerShape]:
    """Every mixer that a pass would call."""
    for path, module in model.named_modules():
        if not isinstance(module, StackModule):
            continue
        stack = stack_of(path)
        longest = tokens if isinstance(tokens, int) else max(tokens.values(), default=0)
        here = tokens if isinstance(tokens, int) else tokens.get(stack, longest)
        source = longest if isinstance(tokens, int) else tokens.get(OTHER_SIDE.get(stack, stack), longest)
        for layer, which in enumerate(module.order):
            block = module.blocks[which]
            assert isinstance(block, BlockModule)
            feeds = int(block.feed is not None)
            yield LayerShape(stack, layer, here, here, module.spec.width, heads_of(block.mixer.spec), feeds)
            if block.cross is not None:
                yield LayerShape(stack, layer, here, source, module.spec.width, heads_of(block.cross.spec), 0)


def heads_of(mixer: Any) -> int:
    """Heads of a mixer's spec; 1 for convolutions and recurrences, which have a single map."""
    return getattr(mixer, "heads", 1) or 1


def outputs_of(model: nn.Module) -> int:
    """Vocabulary size of a language model; 0 for other heads, whose outputs are small."""
    spec = getattr(model, "spec", None)
    if not isinstance(getattr(spec, "head", None), LM):
        return 0
    for part in (spec, getattr(spec, "encoder", None), getattr(spec, "decoder", None)):
        vocabulary = getattr(getattr(part, "embed", None), "vocabulary", None)
        if vocabulary is not None:
            return int(vocabulary[0])
    return 0


def tokens_of(model: nn.Module, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Batch size and tokens by stack of a call, from the embedding's layout alone.

    For a network without our embeddings, such as a convolutional one, the number of tokens is not known in advance.
    """
    sides = [name for name in SIDES if isinstance(getattr(model, name, None), ModelModule)]
    if not sides:
        return laid_out(model, as_tuple(tuple(args)), options.get("mask"), "")
    batch, tokens = laid_out(getattr(model, sides[0]), as_tuple(args[0]), options.get("source_mask"), sides[0])
    given = args[1] if len(args) > 1 else None
    if given is None:  # a decoder of learned queries takes the encoder's output, of which only the shape is known
        given = torch.empty(batch, tokens[sides[0]], 1, device="meta")
    return batch, tokens | laid_out(getattr(model, sides[1]), as_tuple(given), None, sides[1])[1]


def as_tuple(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def laid_out(model: Any, inputs: tuple[Any, ...], mask: Any, name: str) -> tuple[int, dict[str, int]]:
    """Rows of an input, and its number of tokens."""
    embed = getattr(model, "embed", None)
    if embed is None:
        return 1, {}
    context = embed.layout(*inputs, mask=mask)
    return first_tensor(inputs).shape[0], {name: context.index.shape[1]}


def first_tensor(given: Any) -> Tensor:
    """The first tensor of nested inputs."""
    waiting = [given]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, Tensor):
            return one
        waiting = [*one, *waiting] if isinstance(one, tuple | list) else waiting
    raise UserError("the input holds no tensor", where="look", fix="give token ids (1, T), or pixels")


def check(cost: Price, budget: str | int | float) -> Price:
    """The price, if it is within the budget; else an error with the table and what would fit."""
    limit = bytes_of(budget)
    if cost.kept <= limit:
        return cost
    ways = smaller(cost, limit)
    raise NoRoom(
        f"this look needs {decimal_bytes(cost.kept)}, the budget is {decimal_bytes(limit)}", where="budget",
        fix=ways[0], details=[*cost.table(), *(f"or {way}" for way in ways[1:])],
    )  # fmt: skip


def smaller(cost: Price, limit: int) -> list[str]:
    """Alternatives that fit; the last one is a larger budget."""
    ways = []
    layers = fitting_layers(cost, limit)
    if layers:
        ways.append(f"use layers={layers}")
    if cost.batch > 1 and cost.kept // cost.batch <= limit:
        ways.append(f"give {limit * cost.batch // cost.kept} rows")
    longest = max((shape.queries for shape in cost.layers), default=0)
    if tokens := longest * limit // cost.kept:  # everything kept is linear in the tokens
        ways.append(f"give at most {tokens:,} tokens")
    return [*ways, f'use budget="{-(-cost.kept // 10**6)}MB"']


def fitting_layers(cost: Price, limit: int) -> list[int]:
    """The last layers that fit, for `layers=`."""
    numbers = sorted({shape.layer for shape in cost.layers})
    inputs = sum(shape.queries * shape.width for shape in cost.layers)
    for first in range(1, len(numbers)):
        left = sum(shape.queries * shape.width for shape in cost.layers if shape.layer in numbers[first:])
        if cost.kept - cost.sites + cost.sites * left // inputs <= limit:
            return numbers[first:]
    return []


def check_map(heads: int, queries: int, keys: int, limit: int) -> None:
    """Raise an error for a map that is larger than the budget, with smaller alternatives."""
    size = heads * queries * keys * FLOAT
    if size <= limit:
        return
    rows = limit // (heads * keys * FLOAT)
    fix = f"ask for rows=slice(0, {rows})" if rows else "ask for a tile"
    raise NoRoom(
        f"{heads} heads of {queries:,} x {keys:,} weights are {decimal_bytes(size)}, "
        f"the budget is {decimal_bytes(limit)}",
        where="budget", fix=f"{fix}, or use inspection.overview: overview, tile, strongest_keys",
    )  # fmt: skip
