"""A pyramid of stages: each merges 2 x 2 cells of the grid below it into one, and is wider (2103.14030)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.block import Block, BlockModule
from anyformer.core.context import Context, lay_out
from anyformer.core.linear import LinearLayer
from anyformer.core.residual import Residual
from anyformer.core.stack import Stack, StackModule, growing, known
from anyformer.errors import UserError, check_at_least, check_range
from anyformer.norms.layer import LayerNorm
from anyformer.slots import Body, Losses, Norm
from anyformer.spec import Spec, field


class Stage(Spec):
    """`depth` blocks at one resolution; a tuple of blocks is tiled over them. `width` defaults to twice the last
    stage's."""

    depth: int
    """Number of layers at this resolution."""
    block: Block | tuple[Block, ...]
    """The block, or several that are tiled over the depth."""
    width: int | None = None
    """Channels of this stage; twice those of the previous one if not given."""

    def check(self) -> None:
        check_range("Stage", "depth", self.depth, 1, fix="use 2")
        check_range("Stage", "width", self.width, 1, fix="use 64")


class Pyramid(Body):
    """Stages over a grid that is halved between them: 2 x 2 cells concatenated, `norm`, one linear layer.

    An odd number of rows or columns is zero-padded. All tokens are cells: a class token would have no place in a
    coarser grid. `final` is the norm after the last block; by default that block's own where the output would
    otherwise be unnormalised. `drop_path` of the blocks grows over all stages.

    >>> from anyformer import Attention, Block, Pyramid, Stage
    >>> block = Block(mixer=Attention(heads=4))
    >>> Pyramid(width=32, stages=(Stage(depth=2, block=block), Stage(depth=4, block=block))).out_width
    64
    """

    about: ClassVar[About | None] = About(
        "stage s: x = block(x), ..., then x = W norm(4 neighbours of x): half the rows and columns, another width",
        "2103.14030",
        "sum over stages",
    )

    stages: tuple[Stage, ...]
    """Blocks at each resolution."""
    norm: Norm = field(default_factory=LayerNorm)
    """Norm before the linear layer that merges 2 x 2 cells."""
    final: Norm | None = None
    """Norm after the last block; if not given, that block's own where one is needed."""
    recompute: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    def check(self) -> None:
        check_at_least("Pyramid", "width", self.width, 1, fix="use 96")
        if self.stages[0].width not in (None, self.width):
            raise UserError(f"the first stage is {self.stages[0].width} wide, the embedding {self.width}",
                            where="Pyramid.stages", fix="leave the first stage's width out")  # fmt: skip
        for stack in self.stacks:
            stack.check()

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        found = [self.width]
        for stage in self.stages[1:]:
            found.append(2 * found[-1] if stage.width is None else stage.width)
        return tuple(found)

    @property
    def out_width(self) -> int:
        return self.widths[-1]

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Each stage as a stack of its own."""
        return tuple(
            Stack(width=width, depth=stage.depth, block=stage.block, recompute=self.recompute)
            for stage, width in zip(self.stages, self.widths, strict=True)
        )

    @property
    def layers(self) -> tuple[Block, ...]:
        return tuple(block for stack in self.stacks for block in stack.layers)

    @property
    def final_norm(self) -> Norm | None:
        """The norm after the last block, or None."""
        return self.final if self.final is not None else self.stacks[-1].final_norm

    def build(self, *, memory_width: int | None = None) -> PyramidModule:
        return PyramidModule(self, memory_width)


class PyramidModule(nn.Module):
    def __init__(self, spec: Pyramid, memory_width: int | None) -> None:
        super().__init__()
        self.spec = spec
        nexts = (*spec.widths[1:], None)
        self.stages = nn.ModuleList(
            StageModule(stack, memory_width, spec.norm, wider) for stack, wider in zip(spec.stacks, nexts, strict=True)
        )
        self.final = None if spec.final_norm is None else spec.final_norm.build(spec.out_width)
        blocks = [module for module in self.modules() if isinstance(module, BlockModule)]
        for i, block in enumerate(blocks):
            for child in block.children():
                if isinstance(child, Residual):
                    child.drop_path = growing(block.spec.drop_path, i, len(blocks))

    def forward(self, x: Tensor, context: Context | None = None, state: None = None) -> tuple[Tensor, Losses]:
        """(B,T,D) to (B,T',D'); auxiliary losses are summed over layers by name."""
        context = known(context)
        total: Losses = {}
        for y, losses, _ in self.walk(x, context):
            x = y
            for name, loss in losses.items():
                total[name] = total[name] + loss if name in total else loss
        return (x if self.final is None else self.final(x)), total

    def walk(self, x: Tensor, context: Context) -> Iterator[tuple[Tensor, Losses, int]]:
        """The residual stream after each layer, with that layer's losses and its stage."""
        check(context, len(self.stages))
        for i, stage in enumerate(self.stages):
            assert isinstance(stage, StageModule)
            for y, losses in stage.walk(x, context):
                x = y
                yield x, losses, i
            if stage.merge is not None:
                x, context = stage.merge(x, context), coarser(context)

    def every(self, x: Tensor, context: Context) -> list[Tensor]:
        """The head's input after each layer of the last stage; earlier stages have another grid."""
        last = len(self.stages) - 1
        return [y if self.final is None else self.final(y) for y, _, i in self.walk(x, context) if i == last]

    def after(self, context: Context) -> Context:
        """The context of the last stage's grid."""
        for _ in range(len(self.stages) - 1):
            context = coarser(context)
        return context

    def state(self, batch: int, limit: int | None) -> list[Any]:
        raise UserError("a pyramid sees its grid as a whole and cannot be decoded step by step",
                        fix="use Stack(causal=True)")  # fmt: skip


class StageModule(StackModule):
    """The blocks of one stage and, unless it is the last, the merge into the next."""

    def __init__(self, spec: Stack, memory_width: int | None, norm: Norm, wider: int | None) -> None:
        super().__init__(spec, memory_width)
        self.final = None  # the pyramid has one, after its last stage
        self.merge: Merge | None = None if wider is None else Merge(spec.width, wider, norm)


class Merge(nn.Module):
    """Patch merging: concatenate the channels of 2 x 2 cells in row-major order, norm, linear."""

    def __init__(self, width: int, wider: int, norm: Norm) -> None:
        super().__init__()
        self.norm = norm.build(4 * width)
        self.reduce = LinearLayer(4 * width, wider, bias=False)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        assert context.grid is not None
        if context.mask is not None:
            x = x.masked_fill(~context.mask[..., None], 0.0)
        fours = quarters(x.unflatten(1, context.grid))  # (B,rows,columns,4,D)
        return self.reduce(self.norm(fours.flatten(3))).flatten(1, 2)


def quarters(cells: Tensor) -> Tensor:
    """(B,rows,columns,D) to (B,rows/2,columns/2,4,D), zero-padded where a side is odd."""
    rows, columns = cells.shape[1:3]
    cells = F.pad(cells, (0, 0, 0, columns % 2, 0, rows % 2))
    return cells.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3).flatten(3, 4)


def coarser(context: Context) -> Context:
    """The context after a merge: half the rows and columns; a cell is real if any of its four was."""
    assert context.grid is not None
    grid = tuple(-(-side // 2) for side in context.grid)
    mask = context.mask
    if mask is not None:
        mask = quarters(mask.unflatten(1, context.grid)[..., None]).any(3).flatten(1)
    batch = context.index.shape[0] if mask is None else mask.shape[0]
    laid = lay_out(batch, grid[0] * grid[1], context.index.device, mask=mask, grid=(grid[0], grid[1]))
    return replace(laid, memory=context.memory, memory_mask=context.memory_mask, memory_added=context.memory_added)


def check(context: Context, stages: int) -> None:
    """Reject inputs that are defined at one resolution only (class tokens, attention masks) if there are several."""
    if context.grid is None:
        raise UserError(
            "a pyramid needs rows and columns", where="Model.stack", fix="use embed=Patches(..., cls=False)"
        )
    if stages == 1:
        return
    if context.index.shape[1] != context.grid[0] * context.grid[1]:
        raise UserError("a class token or register has no place in a coarser grid", where="Model.embed",
                        fix='use cls=False, registers=0 and a head with pool="mean"')  # fmt: skip
    for name, given in (("mask", context.allowed), ("mask", context.bias), ("positions", context.added)):
        if given is not None:
            raise UserError(f"{name} between or inside layers fit one resolution only", where=name,
                            fix="give padding (B, T), or use one stage")  # fmt: skip
