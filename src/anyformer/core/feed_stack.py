"""A stack of feed-forward layers only, for rows that are a single token: a residual MLP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.residual import Residual
from anyformer.core.state import LayerState
from anyformer.errors import UserError, check_fraction, check_range
from anyformer.feeds.mlp import MLP
from anyformer.norms.none import NoNorm
from anyformer.slots import Body, Feed, Losses, Mixer, Norm
from anyformer.spec import field


class FeedStack(Body):
    """`depth` feed-forward layers with residuals; tokens never see each other, so a row should be one token."""

    about: ClassVar[About | None] = About("x = x + feed_n(norm(x)), depth times", "2106.11959", "depth times a feed")

    depth: int
    """Number of layers."""
    feed: Feed = field(default_factory=MLP)
    """The feed-forward network of a layer."""
    norm: Norm = field(default_factory=NoNorm)
    """Norm before each feed."""
    dropout: float = 0.0
    """Dropout probability of each feed's output."""

    def check(self) -> None:
        check_range("FeedStack", "width", self.width, 1, fix="use 256")
        check_range("FeedStack", "depth", self.depth, 0, fix="use 2")
        check_fraction("FeedStack", "dropout", self.dropout, fix="use 0.1")

    @property
    def layers(self) -> tuple[Feed, ...]:
        """The feed of every layer."""
        return (self.feed,) * self.depth

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return ()

    @property
    def has_cross_attention(self) -> bool:
        return False

    def build(self, *, memory_width: int | None = None) -> nn.Module:
        return FeedStackModule(self)


class FeedStackModule(nn.Module):
    def __init__(self, spec: FeedStack) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(FeedBlock(spec) for _ in range(spec.depth))

    def forward(self, x: Tensor, context: Context, state: list[LayerState] | None = None) -> tuple[Tensor, Losses]:
        """(B,T,D) to (B,T,D); auxiliary losses are summed over layers by name."""
        total: Losses = {}
        for y, losses in self.walk(x, context):
            x = y
            for name, loss in losses.items():
                total[name] = total[name] + loss if name in total else loss
        return x, total

    def walk(self, x: Tensor, context: Context) -> Iterator[tuple[Tensor, Losses]]:
        """The stream after each layer, with that layer's losses."""
        for block in self.blocks:
            x, losses = block(x, context)
            yield x, losses

    def every(self, x: Tensor, context: Context) -> list[Tensor]:
        """The head's input after each layer."""
        return [y for y, _ in self.walk(x, context)]

    def after(self, context: Context) -> Context:
        """Unchanged: the same tokens come out."""
        return context

    def state(self, batch: int, limit: int | None) -> list[Any]:
        raise UserError("feed-forward layers see no earlier token and cannot be decoded step by step",
                        fix="use Stack(causal=True)")  # fmt: skip


class FeedBlock(nn.Module):
    """A feed-forward layer and its residual."""

    def __init__(self, spec: FeedStack) -> None:
        super().__init__()
        self.feed = spec.feed.build(spec.width)
        self.around = Residual(
            spec.norm, spec.width, place="pre", residual=True, dropout=spec.dropout, layer_scale=None, drop_path=0.0
        )

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Losses]:
        result = self.feed(self.around.enter(x), context)
        y, losses = result if isinstance(result, tuple) else (result, {})
        return self.around.join(x, self.around.leave(y)), losses
