"""The model drawn as labelled boxes, with shapes and parameters counted from the built network."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from torch import nn

from anyformer.core.model import Model

WIDTH = 78


def count(module: nn.Module | None) -> int:
    """Number of parameters of a module."""
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())


def row(name: str, what: str, parameters: int) -> Table:
    """One labelled line of a box."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=10, no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(f"[bold]{name}[/]", what, f"[cyan]{parameters:,}[/]")
    return grid


def boxes(spec: Model, net: nn.Module) -> RenderableType:
    """The diagram, from tokens at the top to logits at the bottom."""
    stack, block = spec.plain_stack, net.get_submodule("stack.blocks.0")
    width, vocab = stack.width, (spec.embed.vocabulary or (0, None))[0]
    mixer, feed = block.get_submodule("mixer"), block.get_submodule("feed")
    sizes = stack.tiles[0].mixer.sizes(width)
    inner = block.get_parameter("feed.down.weight").shape[1]
    rest = count(block) - count(mixer) - count(feed)
    inside = Group(
        row("Attention", f"{sizes.heads} heads of {sizes.channels} channels, causal, rotary positions", count(mixer)),
        row("MLP", f"{width} -> {inner} -> {width}, GELU", count(feed)),
        row("RMSNorm", f"before each of the two; both add to (B, T, {width})", rest),
    )
    times = f"Block, {stack.depth} times {count(block):,}"
    whole = Group(
        row("Tokens", f"ids (B, T) -> rows of a table {vocab} x {width}", count(net.get_submodule("embed"))),
        Panel(inside, title=times, title_align="left"),
        row("RMSNorm", f"(B, T, {width})", count(net.get_submodule("stack.final"))),
        row("LM head", f"the same table again -> scores (B, T, {vocab})", count(net.get_submodule("head"))),
    )
    return Panel(whole, title=f"a small GPT: {count(net):,} parameters", title_align="left", width=WIDTH)
