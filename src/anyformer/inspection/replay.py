"""Record one pass of a shadow, for maps, lenses and flows.

The pass uses the same kernels as any other. Inputs and outputs of each mixer and block are recorded, a few tensors
(B,T,D) per layer; maps are computed from them on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.attention_weights import Weighing
from anyformer.core.block import BlockModule
from anyformer.mixers.attention import AttentionModule
from anyformer.mixers.cross import CrossModule

ATTENDING = AttentionModule | CrossModule | Weighing


@dataclass
class MixerCall:
    """One call of one mixer: its place, its inputs and its output."""

    path: str
    module: nn.Module
    stack: str  # "", "encoder", "decoder", "first" or "second"
    layer: int  # which call of a block in that stack, from 0; -1 outside of blocks
    given: tuple[Any, ...]  # x (B,T,D), context, None, tables
    out: Tensor | None = None


@dataclass
class BlockCall:
    """One call of one block: the residual stream before and after it, and the outputs of its branches."""

    path: str
    module: BlockModule
    stack: str
    layer: int
    before: Tensor  # (B,T,D)
    after: Tensor | None = None
    mixed: Tensor | None = None  # output of the mixer
    crossed: Tensor | None = None  # output of cross-attention
    fed: Tensor | None = None  # output of the feed


@dataclass
class PassRecord:
    """All calls of one pass, in order."""

    mixers: list[MixerCall] = field(default_factory=list)
    blocks: list[BlockCall] = field(default_factory=list)
    output: Any = None


Wanted = Callable[[str, int], bool]


def replay(model: nn.Module, args: tuple[Any, ...], options: dict[str, Any], wanted: Wanted) -> PassRecord:
    """Run a shadow once and record its blocks and mixers; `wanted(stack, layer)` selects the mixers."""
    with noting(model, wanted) as found, torch.no_grad():
        found.output = model(*args, **options)
    return found


@contextmanager
def noting(model: nn.Module, wanted: Wanted) -> Iterator[PassRecord]:
    """Record the blocks of `model` while the context is open."""
    found = PassRecord()
    open_blocks: list[BlockCall] = []
    counts: dict[str, int] = {}

    def enter_block(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            assert isinstance(module, BlockModule)
            stack = stack_of(path)
            layer = counts[stack] = counts.get(stack, -1) + 1
            open_blocks.append(BlockCall(path, module, stack, layer, (*args, *named.values())[0]))

        return hook

    def leave_block(module: nn.Module, args: tuple[Any, ...], out: tuple[Tensor, Any]) -> None:
        call = open_blocks.pop()
        call.after = out[0]
        found.blocks.append(call)

    def note_mixer(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
            block = open_blocks[-1] if open_blocks else None
            stack, layer = (stack_of(path), -1) if block is None else (block.stack, block.layer)
            made = out[0] if isinstance(out, tuple) else out
            if wanted(stack, layer):
                found.mixers.append(MixerCall(path, module, stack, layer, (*args, *named.values())[:4], made))

        return hook

    def note_part(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if open_blocks:
                setattr(open_blocks[-1], name, out[0] if isinstance(out, tuple) else out)

        return hook

    handles = []
    for path, block in model.named_modules():
        if isinstance(block, BlockModule):
            handles.append(block.register_forward_pre_hook(enter_block(path), with_kwargs=True))
            handles.append(block.register_forward_hook(leave_block))
    for path, module in mixers_of(model).items():
        handles.append(module.register_forward_hook(note_mixer(path), with_kwargs=True))
    for name, part in parts_of(model):
        handles.append(part.register_forward_hook(note_part(name)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def mixers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every mixer that can be recorded, by path: attentions anywhere, and other mixers of blocks."""
    found: dict[str, nn.Module] = {p: module for p, module in model.named_modules() if isinstance(module, ATTENDING)}
    for path, block in model.named_modules():
        if isinstance(block, BlockModule) and not any(isinstance(part, ATTENDING) for part in block.mixer.modules()):
            found[f"{path}.mixer"] = block.mixer
    return found


def parts_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Mixer, cross-attention and feed of every block, each module once: layers may share them."""
    seen: set[int] = set()
    for block in model.modules():
        if isinstance(block, BlockModule):
            for name, part in (("mixed", block.mixer), ("crossed", block.cross), ("fed", block.feed)):
                if part is not None and id(part) not in seen:
                    seen.add(id(part))
                    yield name, part


def stack_of(path: str) -> str:
    """The stack that a module belongs to: "encoder", "decoder", ..., or "" if there is only one."""
    return path.partition("stack")[0].rstrip(".")
