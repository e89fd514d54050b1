"""A stack of blocks of one width."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyformer.about import About
from anyformer.core.block import Block, BlockModule, build_relative
from anyformer.core.building import trial
from anyformer.core.context import Context, TokenSubset, see_prefix
from anyformer.core.history import RecomputedInputs
from anyformer.core.state import LayerState
from anyformer.errors import UserError, check_range
from anyformer.slots import Body, Losses, Norm, Relative


class Stack(Body):
    """`depth` blocks; a tuple of blocks is tiled over the depth, so `block=(local, local, wide)` alternates.

    `depth=0` passes the embedding's tokens straight to the head (a convolutional network is such a model).

    `final` is the norm after the last block; by default the block's own norm where the output would otherwise be
    unnormalised (every place but post). `groups` is the number of distinct sets of weights over all layers (ALBERT:
    1); `share` says which weights they share. `recompute` is activation checkpointing.
    """

    about: ClassVar[About | None] = About(
        "x = block_n(... block_1(x)), then the final norm",
        "1706.03762",
        "depth times a block",
    )

    depth: int
    """Number of layers."""
    block: Block | tuple[Block, ...] | None = None
    """The block, or several that are tiled over the depth."""
    causal: bool | Literal["prefix_lm"] = False
    """Whether a token sees earlier tokens only; "prefix_lm" lets the tokens of a prompt see each other (prefix LM)."""
    final: Norm | None = None
    """Norm after the last block; if not given, the block's own where one is needed."""
    groups: int | None = None
    """Distinct sets of weights over all layers (ALBERT: 1); one per layer if not given."""
    share: Literal["all", "attention", "feed", "none"] = "all"
    """Which weights the layers of a group share."""
    recompute: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    def check(self) -> None:
        check_range("Stack", "width", self.width, 1, fix="use 256")
        check_range("Stack", "depth", self.depth, 0, fix="use 4")
        if self.depth and self.block is None:
            raise UserError(f"a stack of depth {self.depth} has no block", where="Stack", fix="give block=Block(...)")
        if self.groups is not None and not 1 <= self.groups <= self.depth:
            raise UserError(f"groups {self.groups} is not between 1 and depth {self.depth}", where="Stack",
                            fix="use groups 1 for one set of weights")  # fmt: skip
        for block in self.tiles:
            if self.causal and not block.mixer.causal_form:
                raise UserError(
                    f"{type(block.mixer).__name__} has no causal form", where="Stack.causal", fix="use causal=False"
                )
            if self.causal == "prefix_lm" and not block.mixer.takes_prefix:
                raise UserError(f"{type(block.mixer).__name__} has no bidirectional prefix", where="Stack.causal",
                                fix="use causal=True, or mixer=Attention(...) without a window")  # fmt: skip
            try_out(block, self.width, bool(self.causal))
        if self.groups is not None and self.share != "none":
            for group in range(self.groups):
                if len({block for i, block in enumerate(self.layers) if self.group_of[i] == group}) > 1:
                    raise UserError("layers that share weights have different blocks", where="Stack.groups",
                                    fix="use one block, or leave groups out")  # fmt: skip

    @property
    def tiles(self) -> tuple[Block, ...]:
        """The blocks that are tiled over the depth."""
        return self.block if isinstance(self.block, tuple) else () if self.block is None else (self.block,)

    @property
    def layers(self) -> tuple[Block, ...]:
        """The block of every layer."""
        return tuple(self.tiles[i % len(self.tiles)] for i in range(self.depth))

    @property
    def group_of(self) -> tuple[int, ...]:
        """The group of each layer: consecutive runs of as equal a length as possible."""
        groups = self.depth if self.groups is None else self.groups
        return tuple(i * groups // self.depth for i in range(self.depth))

    @property
    def final_norm(self) -> Norm | None:
        """The norm after the last block, or None."""
        if not self.depth:
            return self.final
        last = self.layers[-1]
        return self.final if self.final is not None else (None if last.place == "post" else last.norm)

    @property
    def supports_token_subset(self) -> bool:
        return self.depth > 0 and self.layers[-1].supports_token_subset

    def build(self, *, memory_width: int | None = None) -> StackModule:
        return StackModule(self, memory_width)


@lru_cache(maxsize=256)
def try_out(block: Block, width: int, causal: bool) -> None:
    """Build the block on `meta` so that sizes that do not fit fail with the spec, not at build time."""
    with trial(block):
        block.build(width, causal=causal)
        build_relative(block, width, causal)


class StackModule(nn.Module):
    """`blocks` holds distinct blocks only; `order` maps each layer to its block."""

    def __init__(self, spec: Stack, memory_width: int | None) -> None:
        super().__init__()
        self.spec = spec
        whole = spec.groups is not None and spec.share == "all"
        self.order = list(spec.group_of) if whole else list(range(spec.depth))
        first = dict(reversed(list(zip(self.order, spec.layers, strict=True))))  # the first layer of each group
        distinct = len(first)
        self.blocks = nn.ModuleList(
            block.build(
                spec.width,
                causal=bool(spec.causal),
                memory_width=memory_width,
                drop_path=growing(block.drop_path, i, distinct),
            )
            for i, block in ((group, first[group]) for group in range(distinct))
        )
        if spec.groups is not None and not whole and spec.share != "none":
            self.share_sublayers(spec.group_of, spec.share)
        self.final = None if spec.final_norm is None else spec.final_norm.build(spec.width)
        # One module per distinct relative spec that layers share; its tables are computed once a pass.
        shared = [block for block in spec.layers if block.relative.shared and block.mixer.takes_relative]
        kinds: list[Relative] = list(dict.fromkeys(block.relative for block in shared))
        owners = [next(block for block in shared if block.relative == kind) for kind in kinds]
        built = [build_relative(owner, spec.width, bool(spec.causal)) for owner in owners]
        self.relatives = nn.ModuleList(module if module is not None else NoTables() for module in built)
        self.table_of = [kinds.index(block.relative) if block.relative in kinds else None for block in spec.layers]

    def share_sublayers(self, group_of: tuple[int, ...], share: str) -> None:
        """Share the first layer's attention, or feed, within each group; norms are not shared."""
        for i, block in enumerate(self.blocks):
            first = self.blocks[group_of.index(group_of[i])]
            assert isinstance(block, BlockModule) and isinstance(first, BlockModule)
            if block is not first:
                for name in ("mixer", "cross") if share == "attention" else ("feed",):
                    block._modules.pop(name, None)  # the first owns it: registered twice, it would be stored twice
                    object.__setattr__(block, name, getattr(first, name))

    def forward(
        self, x: Tensor, context: Context | None = None, state: list[LayerState] | None = None,
        some: TokenSubset | None = None,
    ) -> tuple[Tensor, Losses]:  # fmt: skip
        """(B,T,D) to (B,T,D), or (B,R,D) for a subset of tokens; auxiliary losses are summed over layers by name."""
        context = known(context)
        total: Losses = {}
        for y, losses in self.walk(x, context, state, some):
            x = y
            for name, loss in losses.items():
                total[name] = total[name] + loss if name in total else loss
        return (x if self.final is None else self.final(x)), total

    def walk(
        self, x: Tensor, context: Context, state: list[LayerState] | None = None, some: TokenSubset | None = None
    ) -> Iterator[tuple[Tensor, Losses]]:
        """The residual stream after each layer, with its losses; the last layer returns only the subset `some`, if
        given."""
        if self.spec.causal == "prefix_lm":
            context = see_prefix(context, is_prompt=state is not None)
        tables = [relative(context, x.dtype) for relative in self.relatives]
        replays = [state is not None and isinstance(state[i].mixer, RecomputedInputs) for i in range(len(self.order))]
        over_all = self.tables_over_all(context, x.dtype) if any(replays) else tables
        for i, which in enumerate(self.order):
            at = self.table_of[i]
            block, shared = self.blocks[which], () if at is None else (over_all if replays[i] else tables)[at]
            layer = None if state is None else state[i]
            wanted = some if i == len(self.order) - 1 else None
            if self.spec.recompute and self.training and layer is None:
                x, losses = checkpoint(block, x, context, None, shared, wanted, use_reentrant=False)
            else:
                x, losses = block(x, context, layer, shared, wanted)
            yield x, losses

    def tables_over_all(self, context: Context, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
        """Relative-position tables over all keys, for mixers that recompute earlier tokens."""
        whole = context.over_all_keys()
        return [relative(whole, dtype) for relative in self.relatives]

    def every(self, x: Tensor, context: Context) -> list[Tensor]:
        """The head's input after each layer, the last one included (losses on every layer: DETR)."""
        return [y if self.final is None else self.final(y) for y, _ in self.walk(x, context)]

    def after(self, context: Context) -> Context:
        """Unchanged: the same tokens come out."""
        return context

    def state(self, batch: int, limit: int | None) -> list[LayerState]:
        """One decoding state per layer, also for layers that share weights."""
        blocks = [self.blocks[which] for which in self.order]
        return [block.state(batch, limit) for block in blocks if isinstance(block, BlockModule)]


class NoTables(nn.Module):
    """Placeholder for relative positions without tables."""

    def forward(self, context: Context, dtype: object) -> tuple[Tensor, ...]:
        return ()


def known(context: Context | None) -> Context:
    """Require a context: an embedding makes it, a stack called by itself has none."""
    if context is None:
        raise UserError("a stack by itself does not know its tokens", where="Stack",
                        fix="build Model(embed=..., stack=...), or pass context=")  # fmt: skip
    return context


def growing(rate: float, layer: int, depth: int) -> float:
    """Stochastic depth of one layer: linear from 0 at the first to `rate` at the last; `rate` if there is only one."""
    return rate if depth == 1 else rate * layer / (depth - 1)
