"""One Transformer block: a token mixer, optional cross-attention and a feed-forward network."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from anyformer.core.context import Context, TokenSubset, take
from anyformer.core.history import RecomputedInputs
from anyformer.core.residual import Place, Residual
from anyformer.core.state import LayerState, PartState
from anyformer.errors import UserError, check_fraction
from anyformer.feeds.mlp import MLP
from anyformer.norms.layer import LayerNorm
from anyformer.positions.none import NoRelative
from anyformer.slots import Feed, Losses, Mixer, Norm, Relative
from anyformer.spec import Spec, field


class Block(Spec):
    """`place` is where the norms sit, `order` whether the branches run in sequence or share one input (GPT-NeoX).

    `cross` adds cross-attention between mixer and feed; `feed=None` leaves the feed out; `mixer_norm` replaces `norm`
    around the mixer. `layer_scale` is the initial value of a learned factor per channel; `drop_path` is the stochastic
    depth rate of the last layer (it grows linearly from 0 at the first).
    """

    mixer: Mixer
    """What mixes tokens: attention, convolution, recurrence."""
    feed: Feed | None = field(default_factory=MLP)
    """The feed-forward network after the mixer, or null for none."""
    norm: Norm = field(default_factory=LayerNorm)
    """Norm of the branches."""
    mixer_norm: Norm | None = None
    """Norm around the mixer where it differs from `norm`."""
    place: Place = "pre"
    """Where the norms sit: before the branch (pre), after the sum (post), and so on."""
    order: Literal["serial", "parallel"] = "serial"
    """Branches one after the other, or both from one input (parallel, GPT-NeoX)."""
    relative: Relative = field(default_factory=NoRelative)
    """Relative positions used by the mixer."""
    cross: Mixer | None = None
    """Cross-attention between mixer and feed; none if not given."""
    residual: bool = True
    """Whether a branch is added to its input."""
    dropout: float = 0.0
    """Dropout probability of each branch's output."""
    layer_scale: float | None = None
    """Initial value of a learned factor per channel on each branch; none if not given."""
    drop_path: float = 0.0
    """Share of rows that skip a branch in the last layer, growing from 0 at the first."""

    def check(self) -> None:
        if not self.mixer.takes_relative and not isinstance(self.relative, NoRelative):
            raise UserError(
                f"{type(self.mixer).__name__} takes no relative positions such as {type(self.relative).__name__}",
                where="Block.relative", fix="use relative=NoRelative() or mixer=Attention(...)",
            )  # fmt: skip
        for name in ("dropout", "drop_path"):
            check_fraction("Block", name, getattr(self, name), fix="use 0.1")
        if self.order == "parallel" and self.feed is None:
            raise UserError("a parallel block without a feed has one branch", where="Block.order", fix="use serial")
        if self.cross is not None and not self.cross.looks_at_memory:
            raise UserError(f"{type(self.cross).__name__} does not look at an encoder's output", where="Block.cross",
                            fix="use Cross(heads=...)")  # fmt: skip
        if self.order == "parallel" and self.cross is not None:
            raise UserError("a parallel block has no place for cross-attention", where="Block.cross", fix="use serial")

    @property
    def has_cross_attention(self) -> bool:
        """Whether it reads an encoder's output."""
        return self.cross is not None or self.mixer.looks_at_memory

    @property
    def supports_token_subset(self) -> bool:
        """Whether its output can be computed for a subset of the tokens, with all tokens as input."""
        return self.mixer.supports_token_subset and not (self.feed is not None and self.feed.counts_tokens)

    def build(
        self, width: int, *, causal: bool, memory_width: int | None = None, drop_path: float = 0.0
    ) -> BlockModule:
        """The module; `drop_path` is this layer's own rate."""
        return BlockModule(self, width, causal, memory_width, drop_path)


class BlockModule(nn.Module):
    """Its parameter paths are the checkpoint format: mixer, cross, feed, and the residual around each."""

    def __init__(self, spec: Block, width: int, causal: bool, memory_width: int | None, drop_path: float) -> None:
        super().__init__()
        self.spec = spec

        def around(norm: Norm = spec.norm, joins: bool = True) -> Residual:
            return Residual(
                norm, width, place=spec.place, residual=spec.residual, dropout=spec.dropout,
                layer_scale=spec.layer_scale, drop_path=drop_path, joins=joins,
            )  # fmt: skip

        parallel = spec.order == "parallel"
        self.mixer: Any = spec.mixer.build(width, causal=causal, relative=spec.relative, memory_width=memory_width)
        self.around_mixer = around(spec.norm if spec.mixer_norm is None else spec.mixer_norm)
        self.relative: Any = None if spec.relative.shared else build_relative(spec, width, causal)
        self.cross: Any = None
        self.around_cross: Residual | None = None
        if spec.cross is not None:
            self.cross = spec.cross.build(width, causal=False, relative=NoRelative(), memory_width=memory_width)
            self.around_cross = around()
        self.feed: Any = None
        self.around_feed: Residual | None = None
        if spec.feed is not None:
            self.feed = spec.feed.build(width)
            self.around_feed = around(joins=not parallel)

    def forward(
        self, x: Tensor, context: Context, state: LayerState | None, tables: tuple[Tensor, ...],
        some: TokenSubset | None = None,
    ) -> tuple[Tensor, Losses]:  # fmt: skip
        """(B,T,D) to (B,T,D), with any auxiliary losses; `tables` are the relative-position tables all layers share.

        With `some`, the output (B,R,D) of that subset of tokens.
        """
        entered = self.around_mixer.enter(x)
        if some is None:
            mixed = self.between(entered, context, None if state is None else state.mixer, tables)
        else:
            mixed = self.mixer(entered, context, None, self.tables(context, x, tables), some)
            x, context = take(x, some), context.for_subset(some)
        mixed = self.around_mixer.leave(mixed)
        losses: Losses = {}
        if self.spec.order == "parallel":
            fed, losses = self.within(x, context)
            return self.around_mixer.join(x, mixed, fed), losses
        x = self.around_mixer.join(x, mixed)
        if self.cross is not None and self.around_cross is not None:
            looked = self.cross(self.around_cross.enter(x), context, None if state is None else state.cross, ())
            x = self.around_cross.join(x, self.around_cross.leave(looked))
        if self.around_feed is not None:
            fed, losses = self.within(x, context)
            x = self.around_feed.join(x, fed)
        return x, losses

    def between(self, x: Tensor, context: Context, remembered: PartState | None, tables: tuple[Tensor, ...]) -> Tensor:
        """The mixer branch; a mixer without a decoding state runs over all inputs again, as in a full pass."""
        inputs = x
        if isinstance(remembered, RecomputedInputs):
            inputs, context = remembered.update_all(x, context)
            remembered = None
        mixed = self.mixer(inputs, context, remembered, self.tables(context, x, tables))
        return mixed if inputs is x else mixed[:, -x.shape[1] :]

    def tables(self, context: Context, x: Tensor, shared: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Relative-position tables: the block's own, or those that all layers share."""
        return shared if self.relative is None else self.relative(context, x.dtype)

    def within(self, x: Tensor, context: Context) -> tuple[Tensor, Losses]:
        """The feed-forward branch and its auxiliary losses, if any."""
        assert self.feed is not None and self.around_feed is not None
        result = self.feed(self.around_feed.enter(x), context)
        y, losses = result if isinstance(result, tuple) else (result, {})
        return self.around_feed.leave(y), losses

    def state(self, batch: int, limit: int | None) -> LayerState:
        """An empty decoding state for this block."""
        own = self.mixer.state(batch, limit)
        return LayerState(
            RecomputedInputs(limit) if own is None else own,
            None if self.cross is None else self.cross.state(batch, limit),
        )


def build_relative(spec: Block, width: int, causal: bool) -> nn.Module | None:
    """The relative-position module of a block, sized for its mixer's heads; None if the mixer takes none."""
    if not spec.mixer.takes_relative:
        return None
    sizes = spec.mixer.sizes(width)
    return spec.relative.build(sizes.heads, sizes.channels, sizes.value_channels, causal)
