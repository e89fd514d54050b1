"""The slots: the interfaces of all kinds of parts and of their modules.

Core code depends on these classes only, not on variants. To add a variant, subclass its slot in one new file.
Shapes: B batch, T query time, S key time, D width, H heads, G key/value heads, C channels of a head, V vocabulary,
N patches, F features. `True` in a mask means "may be seen".
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.spec import Spec


class HeadSizes(NamedTuple):
    """H query heads on G key/value heads, C channels for queries and keys, C' for values."""

    heads: int
    groups: int
    channels: int
    value_channels: int

    @property
    def per_group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.groups


Losses = dict[str, Tensor]  # auxiliary losses by name; returned by the forward pass, never stored on a module


class Norm(Spec, slot=True):
    """`build(width) -> Module`; the module maps (..., D) to (..., D)."""

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


class Position(Spec, slot=True):
    """Absolute positions, added to the embedding: `build(width) -> Module`; `forward(context, dtype) -> (B|1,T,D)`."""

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError

    def over(self, rows: int, columns: int, extra: int) -> Position:
        """This position for a grid of `rows` x `columns` cells and `extra` leading tokens, if it depends on those."""
        return self

    @property
    def limit(self) -> int | None:
        """Maximum number of positions, or None for any."""
        return None


class Relative(Spec, slot=True):
    """Relative positions inside attention. The module only makes `tables`; the spec does the maths with them.

    `build(heads, channels, value_channels, causal) -> Module or None` with `forward(context, dtype) -> tables`, a tuple
    of tensors. Where `shared` is true the stack owns one module for all layers with an equal spec and makes the tables
    once a pass; otherwise each block owns one. The spec answers any of the questions below; the defaults
    mean "nothing".
    """

    shared: ClassVar[bool] = True
    wide_bias: ClassVar[bool] = (
        False  # whether `bias_at` needs so much shared memory that a kernel's tiles must be smaller
    )

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        raise NotImplementedError

    def rotate(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """Queries or keys (B,H,T,C) rotated by their positions."""
        return x

    def bias(self, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        """Additive bias of the scores, (B or 1, H, T, S), for positions query (B or 1, T) and key (B or 1, S)."""
        return None

    def bias_at(self, tables: tuple[Tensor, ...], head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """`bias` for one head and one pair of positions, for kernels without a T x S tensor."""
        raise UserError(f"{type(self).__name__} adds no bias")

    def slopes(self, tables: tuple[Tensor, ...]) -> Tensor | None:
        """Slopes (H,) of a `bias` that is -slope * distance and nothing else (ALiBi); None for others."""
        return None

    def scores(self, q: Tensor, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        """Query-dependent term added to the unscaled q.k; q (B,H,T,C)."""
        return None

    def values(self, weights: Tensor, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        """Term added to the attention output, from the weights (B,H,T,S)."""
        return None

    @property
    def has_bias(self) -> bool:
        """Whether `bias` is not None; known from the spec, so that a kernel can be chosen without tensors."""
        return False

    @property
    def needs_weights(self) -> bool:
        """Whether `scores` or `values` are not None, which no fused kernel supports."""
        return False


class Mixer(Spec, slot=True):
    """Mixing between tokens: `build(width, causal, relative, memory_width) -> Module`.

    The module answers `forward(x, context, state, tables) -> (B,T,D)` and `state(batch, limit) -> PartState or None`.
    With None it is never given a state: decoding runs it over all inputs so far at each step, as slow as it is right.
    What the rest of the library must know of a variant are the facts below, so that nothing asks for its class.
    """

    takes_relative: ClassVar[bool] = False  # whether the part has queries and keys for relative positions to act on
    takes_added: ClassVar[bool] = False  # whether it supports positions added to its queries and keys (`context.added`)
    takes_rules: ClassVar[bool] = False  # whether it supports a user-given mask (T,S), beyond padding and documents
    looks_at_memory: ClassVar[bool] = False  # whether it reads an encoder's output, as a block's `cross` must
    needs_grid: ClassVar[bool] = False  # whether its tokens must have rows and columns
    causal_form: ClassVar[bool] = True  # whether it supports causal masking
    compiles: ClassVar[bool] = True  # whether torch.compile can compile it whole; torch's recurrent cells it cannot
    has_static_cache: ClassVar[bool] = False  # whether its module offers `static_cache(...)` (core/static_cache.py)
    supports_token_subset: ClassVar[bool] = (
        False  # whether its module's `forward` takes `some`, the tokens whose output is needed
    )
    exact: ClassVar[bool] = True  # whether causality holds bitwise; with a Fourier transform only up to rounding

    @property
    def takes_prefix(self) -> bool:
        """Whether it supports bidirectional attention within a prefix (`Context.prefix`)."""
        return False

    def sizes(self, width: int) -> HeadSizes:
        """The sizes of its heads, if it takes relative positions."""
        raise UserError(f"{type(self).__name__} has no heads")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        raise NotImplementedError


def compiles(spec: Spec) -> bool:
    """Whether torch.compile can compile every mixer of a model whole."""
    return all(part.compiles for _, part in spec.walk() if isinstance(part, Mixer))


class Feed(Spec, slot=True):
    """Mixing within a token: `build(width) -> Module`; `forward(x, context) -> y` or `(y, losses)`.

    A token's answer depends on that token alone; the context tells losses which tokens are real.
    """

    exact: ClassVar[bool] = True  # whether tokens are bitwise independent; matmuls of varying shape leave rounding
    counts_tokens: ClassVar[bool] = False  # whether its losses need all tokens

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


class Embed(Spec, slot=True):
    """Anything into tokens: `build(width) -> Module`.

    The module answers `layout(*inputs, mask, positions, documents) -> Context` (what one pass knows before any
    compute) and `forward(*inputs, context=...) -> (B,T,D)`.
    """

    gridded: ClassVar[bool] = False  # whether its last tokens are the cells of a grid, row by row (`context.grid`)

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError

    def fit_data(self, sizes: Any) -> Embed:
        """Adapt a user-defined embedding to the training data; `sizes` (data.sizes.Sizes) has the vocabulary, columns
        and pixels. Unchanged by default."""
        return self

    @property
    def has_layer_positions(self) -> bool:
        """Whether it has positions that every layer adds to its queries and keys (`context.added`)."""
        return False

    @property
    def vocabulary(self) -> tuple[int, int | None] | None:
        """(V, inner width or None) if the embedding is a table to which a language-model head can be tied."""
        return None

    @property
    def limit(self) -> int | None:
        """The longest sequence, or None for any."""
        return None


class NumberCurve(Spec, slot=True):
    """Numbers of a table into vectors, beyond a straight line: `build(columns, width) -> Module`, (B,F) to (B,F,D)."""

    def build(self, columns: int, width: int) -> nn.Module:
        raise NotImplementedError


class Backbone(Spec, slot=True):
    """Images into maps: `build() -> Module`, pixels (B, `inputs`, H, W) to (B, `channels`, H / `stride`, W / `stride`).

    A size that the stride does not divide is rounded up, as convolutions with padding do.
    """

    @property
    def inputs(self) -> int:
        """Channels of its input images."""
        return 3

    @property
    def channels(self) -> int:
        """Channels of its feature maps."""
        raise NotImplementedError

    @property
    def stride(self) -> int:
        """Pixels per side of one cell of the feature maps."""
        raise NotImplementedError

    def build(self) -> nn.Module:
        raise NotImplementedError


class Body(Spec, slot=True):
    """Tokens through layers: `build(memory_width) -> Module` from `width` channels to `out_width`.

    The module answers `forward(x, context, state) -> (y, losses)`, `state(batch, limit) -> list of layers`,
    `after(context) -> Context` (what is known of the tokens that come out) and `every(x, context) -> list` (what a head
    would be given after each layer).
    """

    width: int
    """Channels of a token."""

    @property
    def out_width(self) -> int:
        """Channels of its output tokens."""
        return self.width

    @property
    def layers(self) -> tuple[Any, ...]:
        """The block of every layer."""
        raise NotImplementedError

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Every distinct mixer of its layers."""
        return tuple(dict.fromkeys(block.mixer for block in self.layers))

    @property
    def has_cross_attention(self) -> bool:
        """Whether some layer attends to an encoder's output."""
        return any(block.has_cross_attention for block in self.layers)

    @property
    def causal(self) -> bool | Literal["prefix_lm"]:
        """Whether attention is causal; "prefix_lm": except within a prefix."""
        return False

    @property
    def supports_token_subset(self) -> bool:
        """Whether its module's `forward` takes `some`, the tokens that the head reads, and returns only those."""
        return False

    def build(self, *, memory_width: int | None = None) -> nn.Module:
        raise NotImplementedError


class HeadOutput(NamedTuple):
    """The output of a head."""

    logits: Tensor | None = None
    pooled: Tensor | None = None  # of the whole sequence, (B,D) or logits
    boxes: Tensor | None = None  # (B,T,4) centre, width and height as fractions of the image
    patches: Tensor | None = None  # (B,T,values) pixels, of a head that also has other logits
    transitions: Tensor | None = None  # (C+1,C+1) transition scores of a CRF


class Head(Spec, slot=True):
    """Tokens into an answer: `build(width, vocabulary) -> Module`; `forward(hidden, context, table) -> HeadOutput`.

    `vocabulary` and `table` are the embedding's, where it has one, for language-model heads tied to it.
    """

    needs_grid: ClassVar[bool] = False  # whether its tokens must have rows and columns

    @property
    def answers(self) -> Literal["classes", "numbers"] | None:
        """What its logits are, if they can be averaged over several networks."""
        return None

    @property
    def reads_token_subset(self) -> bool:
        """Whether it reads a few tokens only: those of its module's `tokens_read(context)`. Its output is the same if
        it is given only these, with their context, so the last block need not compute the others."""
        return False

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        raise NotImplementedError


class Network(Spec, slot=True):
    """A whole model: `build() -> Module` with weights."""

    def build(self, *, device: Any = None, dtype: Any = None, seed: int | None = None) -> nn.Module:
        raise NotImplementedError
