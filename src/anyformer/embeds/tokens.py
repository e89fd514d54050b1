"""Token ids into vectors: token embedding, positions, segments."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import EmbeddingTable, LinearLayer
from anyformer.core.state import State
from anyformer.errors import UserError, check_at_least, check_fraction, check_range
from anyformer.kernels.int8 import Int8, Int8Table, look_up
from anyformer.slots import Embed, Norm, Position


class Tokens(Embed):
    """norm(table[id] + position + segment), with table[id] times sqrt(width) if `scale`.

    `inner` is ALBERT's factorised embedding: table, positions, segments and norm have fewer channels, which a linear
    layer projects to the model's width. `frozen` freezes the table at its initialisation.
    """

    about: ClassVar[About | None] = About("x_t = E[id_t] + position + segment", "1706.03762", "T D")

    vocab: int
    """Tokens in the vocabulary."""
    position: Position | None = None
    """Absolute positions added to the tokens; none if not given."""
    segments: int = 0
    """Number of segments, for pairs of texts; 0: none."""
    norm: Norm | None = None
    """Norm of the tokens that come out; none if not given."""
    inner: int | None = None
    """Channels of the table if fewer than the width (ALBERT)."""
    scale: bool = False
    """Whether the table is multiplied by sqrt(width)."""
    dropout: float = 0.0
    """Dropout probability."""
    frozen: bool = False
    """Whether the table is frozen at its initialisation."""

    def check(self) -> None:
        check_at_least("Tokens", "vocab", self.vocab, 1, fix="give the number of token ids")
        check_range("Tokens", "segments", self.segments, 0, fix="use 0 for none")
        check_range("Tokens", "inner", self.inner, 1, fix="leave it out")
        check_fraction("Tokens", "dropout", self.dropout, fix="use 0.1")

    @property
    def vocabulary(self) -> tuple[int, int | None] | None:
        return self.vocab, self.inner

    @property
    def limit(self) -> int | None:
        return None if self.position is None else self.position.limit

    def build(self, width: int, *, own_table: bool = True) -> TokensModule:
        """`own_table=False` omits the table: each pass then gets one (shared in encoder-decoders)."""
        return TokensModule(self, width, own_table)


class TokensModule(nn.Module):
    def __init__(self, spec: Tokens, width: int, own_table: bool) -> None:
        super().__init__()
        inner = width if spec.inner is None else spec.inner
        self.spec, self.gain = spec, inner**0.5 if spec.scale else 1.0
        self.table: EmbeddingTable | Int8Table | None = EmbeddingTable(spec.vocab, inner) if own_table else None
        if isinstance(self.table, EmbeddingTable) and spec.frozen:
            self.table.weight.requires_grad_(False)
        self.position = None if spec.position is None else spec.position.build(inner)
        self.segment = EmbeddingTable(spec.segments, inner) if spec.segments else None
        self.norm = None if spec.norm is None else spec.norm.build(inner)
        self.project = None if spec.inner is None else LinearLayer(inner, width)

    def layout(
        self, tokens: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of ids (B,T)."""
        if not isinstance(tokens, Tensor):
            raise UserError(f"tokens are {type(tokens).__name__}", fix="give a tensor of ids (B, T), whole numbers")
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise UserError(
                f"tokens have shape {tuple(tokens.shape)} and type {tokens.dtype}",
                fix="expected ids (B, T), whole numbers",
            )
        length, past = tokens.shape[1], 0 if state is None else state.length
        limit = self.spec.limit
        counted = mask is None and positions is None and documents is None  # else positions are not indices
        counted = counted and (state is None or (state.mask is None and state.documents is None))
        if limit is not None and length + past > limit and counted:
            raise UserError(
                f"{length + past} tokens do not fit {limit} learned positions",
                fix=f"shorten the text or rebuild with position=Learned({length + past})",
            )
        if segments is not None and self.segment is None:
            raise UserError("segments are given but the embedding has none", fix="use Tokens(segments=2)")
        return lay_out(tokens.shape[0], length, tokens.device, mask=mask, positions=positions, documents=documents,
                       segments=segments, tokens=tokens, state=state)  # fmt: skip

    def forward(self, tokens: Tensor, *, context: Context, table: Tensor | Int8 | None = None) -> Tensor:
        """Ids (B,T) to (B,T,D)."""
        x = self.before_project(tokens, context, table)
        return x if self.project is None else self.project(x)

    def before_project(self, tokens: Tensor, context: Context, table: Tensor | Int8 | None = None) -> Tensor:
        """The same before the projection (B,T,`inner`), which networks of different widths can share."""
        rows = table if self.table is None else self.table.weight
        if rows is None:
            raise UserError("this embedding borrows its table and was given none", fix="call it through its Seq2Seq")
        x = look_up(tokens, rows)
        x = x if self.gain == 1.0 else x * self.gain
        if self.position is not None:
            x = x + self.position(context, x.dtype)
        if self.segment is not None:
            x = x + (self.segment.weight[0] if context.segments is None else self.segment(context.segments))
        x = x if self.norm is None else self.norm(x)
        return F.dropout(x, self.spec.dropout) if self.spec.dropout and self.training else x
