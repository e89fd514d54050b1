"""Two streams: sequences of different kind, width and depth, each in its own model, with co-attention between them.

first   a a a a a a C a C a      a  a layer of the stream's own
second              C b C b      C  a co-attention layer: both streams at once, each reading the other's input to it
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyformer.about import About
from anyformer.core.block import Block
from anyformer.core.building import materialise, trial
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.init import Init
from anyformer.core.model import Model, ModelModule, Output, check_rules
from anyformer.core.pytrees import as_tuple, register
from anyformer.core.stack import StackModule
from anyformer.errors import UserError
from anyformer.heads.pooled import Pooled
from anyformer.heads.pooling import pooled_width
from anyformer.slots import Head, Losses, Network

Masks = tuple[Mask | None, Mask | None]


@dataclass
class PairOutput(Output):
    """What two sequences give: `hidden` and `context` are the first's, `logits` and `pooled` of both where joined."""

    first: Output = field(kw_only=True)
    second: Output = field(kw_only=True)


register(PairOutput)


class Streams(Network):
    """Two models joined by `CoAttention` layers: the n-th such layer of one reads the other's tokens as they are before
    its own n-th (ViLBERT, 1908.02265).

    Called as `model(first, second)`; a stream that takes several tensors gets a tuple. `first_mask` and `second_mask`
    are padding (B,T), or (B,) to hide a stream from whole rows; `mask` is the pair of them, as a joint sequence has it.
    With a `head`, both models must have `Pooled` heads with vectors of one width, and the head reads those two as two
    tokens of segments 0 and 1: `Pair(classes=2, features=("product",))` multiplies them, as ViLBERT does.
    """

    about: ClassVar[About | None] = About(
        "x = block(x, memory = y), y = block(y, memory = x), in lockstep",
        "1908.02265",
        "both stacks",
    )

    first: Model
    """The model of the first input."""
    second: Model
    """The model of the second input."""
    head: Head | None = None
    """What turns hidden states into outputs; the hidden states are the output if not given."""
    init: Init = "bert"
    """How weights are initialised."""

    def check(self) -> None:
        counts = []
        for name in ("first", "second"):
            model: Model = getattr(self, name)
            counts.append(sum(block.has_cross_attention for block in model.plain_stack.layers))
            if model.stack.causal:
                raise UserError("streams that look at each other see their own future through the other",
                                where=f"Streams.{name}", fix="use Stack(causal=False)")  # fmt: skip
        if counts[0] != counts[1] or not counts[0]:
            raise UserError("{} layers of the first look at the second, {} the other way".format(*counts),
                            where="Streams", fix="give both as many blocks with CoAttention(heads=...)")  # fmt: skip
        if self.head is not None:
            with trial(self.head):
                self.head.build(common_width(self), None)

    def build(self, *, device: Any = None, dtype: torch.dtype | None = None, seed: int | None = None) -> StreamsModule:
        """Build the network with fresh weights, as `Model.build`."""
        return materialise(self, lambda: StreamsModule(self), self.init, device, dtype, seed)


def vector_width(model: Model, where: str) -> int:
    """Channels of the pooled vector of a model's head."""
    head, width = model.head, model.stack.out_width
    if not isinstance(head, Pooled):
        raise UserError("this model has no pooled vector", where=where, fix="give it head=Pooled(dense=...)")
    return width if head.dense is True else head.dense or pooled_width(width, head.pool)


def common_width(spec: Any) -> int:
    """The common width of both models' pooled vectors; different widths are rejected."""
    kind = type(spec).__name__
    widths = [vector_width(getattr(spec, name), f"{kind}.{name}") for name in ("first", "second")]
    if widths[0] != widths[1]:
        raise UserError("the vectors are {} and {} wide".format(*widths), where=kind,
                        fix=f"give both Pooled(dense={max(widths)})")  # fmt: skip
    return widths[0]


class StreamsModule(nn.Module):
    """Parameter paths: `first.…` and `second.…` as in any model, `head.…` for the joint head."""

    def __init__(self, spec: Streams) -> None:
        super().__init__()
        self.spec = spec
        self.first = ModelModule(spec.first, memory_width=spec.second.stack.width)
        self.second = ModelModule(spec.second, memory_width=spec.first.stack.width)
        self.head: Any = None if spec.head is None else spec.head.build(common_width(spec), None)

    def forward(
        self, first: Any, second: Any, *, first_mask: Mask | None = None, second_mask: Mask | None = None,
        mask: Masks | None = None,
    ) -> PairOutput:  # fmt: skip
        """Run both sequences; `logits` are the joint head's or, without one, the first stream's."""
        models, given = (self.first, self.second), (as_tuple(first), as_tuple(second))
        masks = both_masks(first_mask, second_mask, mask)
        contexts = [begin(model, x, seen) for model, x, seen in zip(models, given, masks, strict=True)]
        tokens = [model.embed(*x, context=c) for model, x, c in zip(models, given, contexts, strict=True)]
        if tokens[0].shape[0] != tokens[1].shape[0]:
            raise UserError(f"{tokens[0].shape[0]} rows meet {tokens[1].shape[0]}", fix="give both as many rows")
        tokens, losses = self.exchange(tokens, contexts)
        one, two = (answer(model, x, c) for model, x, c in zip(models, tokens, contexts, strict=True))
        made = self.joined(one, two)
        return PairOutput(
            one.hidden, logits=made.logits, pooled=made.pooled, losses=losses, context=one.context,
            first=one, second=two,
        )  # fmt: skip

    def exchange(self, tokens: list[Tensor], contexts: list[Context]) -> tuple[list[Tensor], Losses]:
        """Run each stream's own layers up to the next co-attention layer, then both through that one, and so on."""
        stacks: list[StackModule] = [self.first.stack, self.second.stack]
        plans = [cut(stack.spec.layers) for stack in stacks]
        tables = [[make(c, x.dtype) for make in s.relatives] for s, x, c in zip(stacks, tokens, contexts, strict=True)]
        losses: Losses = {}

        def through(side: int, layer: int, context: Context) -> Tensor:
            y, more = one_layer(stacks[side], layer, tokens[side], context, tables[side])
            for name, loss in more.items():
                losses[name] = losses[name] + loss if name in losses else loss
            return y

        for step in range(len(plans[0].alone)):
            for side in (0, 1):
                for layer in plans[side].alone[step]:
                    tokens[side] = through(side, layer, contexts[side])
            if step < len(plans[0].meet):
                looking = [beside(contexts[i], tokens[1 - i], contexts[1 - i]) for i in (0, 1)]
                tokens = [through(i, plans[i].meet[step], looking[i]) for i in (0, 1)]
        return [x if s.final is None else s.final(x) for s, x in zip(stacks, tokens, strict=True)], losses

    def joined(self, one: Output, two: Output) -> Output:
        """The joint head's output; a stream masked for a row is masked for the head too."""
        if self.head is None:
            return one
        assert one.pooled is not None and two.pooled is not None
        both = torch.stack([one.pooled, two.pooled], 1)  # (B,2,D)
        batch = both.shape[0]
        masks = [None if out.context is None else out.context.mask for out in (one, two)]
        there = None
        if masks[0] is not None or masks[1] is not None:
            every = torch.ones(batch, dtype=torch.bool, device=both.device)
            there = torch.stack([every if mask is None else mask.any(1) for mask in masks], 1)  # (B,2)
        sides = torch.arange(2, device=both.device).expand(batch, -1)
        made = self.head(both, lay_out(batch, 2, both.device, mask=there, segments=sides), None)
        return Output(both, logits=made.logits, pooled=made.pooled)


class StreamPlan(NamedTuple):
    """Layer numbers of a stream: the runs of its own layers, and the co-attention layers between them."""

    alone: list[list[int]]
    meet: list[int]


def cut(layers: tuple[Block, ...]) -> StreamPlan:
    """Split a stream's layers at its co-attention layers."""
    meet = [i for i, block in enumerate(layers) if block.has_cross_attention]
    return StreamPlan([list(range(a + 1, b)) for a, b in pairwise([-1, *meet, len(layers)])], meet)


def one_layer(
    stack: StackModule, layer: int, x: Tensor, context: Context, tables: list[tuple[Tensor, ...]]
) -> tuple[Tensor, Losses]:
    """Run one layer of a stack by its number, as the stack itself would."""
    at = stack.table_of[layer]
    block, shared = stack.blocks[stack.order[layer]], () if at is None else tables[at]
    if stack.spec.recompute and stack.training:
        return checkpoint(block, x, context, None, shared, use_reentrant=False)
    return block(x, context, None, shared)


def beside(context: Context, tokens: Tensor, other: Context) -> Context:
    """A stream's context with the other stream's tokens as its memory."""
    return replace(context, memory=tokens, memory_mask=other.mask, memory_added=other.added)


def both_masks(first: Mask | None, second: Mask | None, pair: Masks | None) -> Masks:
    """The masks of both streams, given separately or as a pair."""
    if pair is None:
        return first, second
    if not isinstance(pair, tuple) or len(pair) != 2 or first is not None or second is not None:
        raise UserError("the mask of two sequences is a pair of masks", where="mask",
                        fix="give mask=(one, other), or first_mask= and second_mask=")  # fmt: skip
    return pair


def begin(model: ModelModule, given: tuple[Any, ...], mask: Mask | None) -> Context:
    """The context of one sequence; a mask (B,) hides the whole sequence in some rows."""
    if isinstance(mask, Tensor) and mask.dim() == 1:
        length = model.embed.layout(*given).index.shape[1]
        mask = mask[:, None].expand(-1, length).contiguous()
    context = model.embed.layout(*given, mask=mask)
    check_rules(model.spec, context)
    return context


def answer(model: ModelModule, hidden: Tensor, context: Context) -> Output:
    """The output of a stream's own head."""
    out = Output(hidden, context=context)
    if model.head is not None:
        made = model.head(hidden, context, model.table())
        out.logits, out.pooled = made.logits, made.pooled
    return out
