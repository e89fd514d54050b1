"""Block-sparse attention: a token attends to the blocks around its own and the first blocks of the text."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores, attend
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines
from anyformer.core.state import KVCache
from anyformer.errors import check_at_least
from anyformer.kernels.pieces import attend_in_pieces
from anyformer.mixers.attention import Attention, AttentionInputs, AttentionModule
from anyformer.mixers.heads import check_heads
from anyformer.slots import HeadSizes, Mixer, Relative


class BlockSparse(Mixer):
    """A token attends to its own block, `local` blocks to either side and the `leading` ones.

    The text is cut into blocks of `block` tokens. The first `leading` blocks are visible to all and, if not causal,
    attend to all, so that any two tokens are at most two layers apart. The causal mask applies as usual.
    """

    heads: int
    """Attention heads."""
    block: int = 64
    """Tokens of a block."""
    local: int = 1
    """Blocks to either side that a token attends to."""
    leading: int = 1
    """First blocks that all tokens attend to."""
    kv_heads: int | None = None
    """Heads of keys and values, fewer than `heads` for GQA, 1 for MQA; as many as `heads` if not given."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    takes_added: ClassVar[bool] = True
    takes_relative: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    about: ClassVar[About | None] = About(
        "y_i = sum_j softmax_j(q_i.k_j / sqrt(C)) v_j over blocks |b(i) - b(j)| <= local or b(j) < leading",
        "1904.10509, 2007.14062 (without its random blocks)",
        "4 T D^2 + 2 T (1 + 2 local + leading) block D",
    )

    def check(self) -> None:
        check_heads("BlockSparse", self.heads, self.kv_heads, self.dropout, "sqrt")
        check_at_least("BlockSparse", "block", self.block, 1, fix="use 64")
        for name in ("local", "leading"):
            check_at_least("BlockSparse", name, getattr(self, name), 0, fix="use 1")

    @property
    def whole(self) -> Attention:
        """Full attention with the same parameters."""
        return Attention(heads=self.heads, kv_heads=self.kv_heads, bias=self.bias, dropout=self.dropout)

    def sizes(self, width: int) -> HeadSizes:
        return self.whole.sizes(width)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return BlockSparseModule(self, width, causal, relative)


class BlockSparseModule(AttentionModule):
    def __init__(self, pattern: BlockSparse, width: int, causal: bool, relative: Relative) -> None:
        super().__init__(pattern.whole, width, causal, relative)
        self.pattern = pattern

    def forward(  # type: ignore[override]  # without token subsets
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]
    ) -> Tensor:
        pattern, dropout = self.pattern, self.spec.dropout if self.training else 0.0
        few = (1 + pattern.local + pattern.leading) * pattern.block  # shorter texts are mostly visible anyway
        # The caller's own mask is T x S already, and a decode step is short.
        if context.allowed is not None or context.bias is not None or context.past or x.shape[1] <= few:
            q, k, v, scores = self.prepare(x, context, state, tables)
            y = attend(q, k, v, scores, dropout=dropout)  # (B,H,T,C')
        else:
            q, k, v, scores = super().prepare(x, context, state, tables)
            y = self.in_lines(q, k, v, scores, DocumentLines.of(context), dropout)
        return self.out(y.transpose(1, 2).flatten(2))  # (B,T,D)

    def prepare(
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]
    ) -> AttentionInputs:
        """As full attention, with the block pattern as a mask: for decode steps, attention maps and short texts."""
        q, k, v, scores = super().prepare(x, context, state, tables)
        assert scores.query_index is not None and scores.key_index is not None
        mine, theirs = (index // self.pattern.block for index in (scores.query_index, scores.key_index))
        mine, theirs = mine[:, None, :, None], theirs[:, None, None, :]  # (B or 1, 1, T or 1, S or 1)
        seen = ((mine - theirs).abs() <= self.pattern.local) | (theirs < self.pattern.leading)
        if not self.causal:
            seen = seen | (mine < self.pattern.leading)
        allowed = seen if scores.allowed is None else seen & scores.allowed
        return AttentionInputs(q, k, v, replace(scores, allowed=allowed))

    def in_lines(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, lines: DocumentLines | None, dropout: float
    ) -> Tensor:
        """Unpack padding and documents into lines first, so that blocks start at the first token of each text."""
        real = None
        if lines is not None:
            q, k, v = (apart(lines, x) for x in (q, k, v))
            real = lines.filled
        positions = scores.query_positions
        if lines is not None and positions is not None:
            positions = lines.apart(positions.expand(lines.at.shape[0], -1)[..., None])[..., 0]  # (N,T)
        plain = replace(
            scores, query_positions=positions, key_positions=positions, query_index=None, key_index=None, key_mask=real,
            query_documents=None, key_documents=None, ordered=False,
        )  # fmt: skip
        y = self.in_blocks(q, k, v, plain, dropout)
        return y if lines is None else together(lines, y)

    def in_blocks(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float) -> Tensor:
        """Attention with each block and its visible keys as a separate row: (N,H,T,C) to (N,H,T,C')."""
        block, local = self.pattern.block, self.pattern.local
        rows, length, device = q.shape[0], q.shape[2], q.device
        blocks = (length + block - 1) // block
        behind = blocks * block - length
        before, after = local * block, 0 if self.causal else local * block
        span, first = before + block + after, self.pattern.leading * block

        def beside(x: Tensor) -> Tensor:
            """(N,G,T,C) to (N*blocks,G,first+span,C): the leading keys and those around each block."""
            strips = F.pad(x, (0, 0, before, behind + after)).unfold(2, span, block).permute(0, 2, 1, 4, 3)
            leading = x[:, None, :, :first].expand(-1, blocks, -1, -1, -1)
            return torch.cat([leading, strips], 3).flatten(0, 1)

        def each(x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
            """(N or 1, T) of tokens as queries (N*blocks, block) and as keys (N*blocks, first + span)."""
            if x is None:
                return None, None
            x = x.expand(rows, -1)
            queries = F.pad(x, (0, behind)).unflatten(1, (blocks, block)).flatten(0, 1)
            return queries, beside(x[:, None, :, None])[:, 0, :, 0]

        number = torch.arange(length, device=device)[None]
        query_index, key_index = each(number)
        query_positions, key_positions = each(scores.query_positions)
        real = torch.ones(1, length, dtype=torch.bool, device=device) if scores.key_mask is None else scores.key_mask
        _, key_mask = each(real)
        assert query_index is not None and key_index is not None and key_mask is not None
        # A leading block that is also near the query's own must not count twice.
        gap = query_index[:, :1] // block - key_index // block  # (N*blocks, first + span)
        lead = torch.arange(first + span, device=device) < first
        apart = replace(
            scores, query_positions=query_positions, key_positions=key_positions, query_index=query_index,
            key_index=key_index, key_mask=key_mask & ~(lead & (gap.abs() <= local)),
        )  # fmt: skip
        cut = F.pad(q, (0, 0, 0, behind)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)
        y = attend_in_pieces(cut, beside(k), beside(v), apart, dropout)  # (N*blocks,H,block,C')
        y = y.unflatten(0, (rows, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]  # (N,H,T,C')
        if self.causal or not first:
            return y
        places = None if scores.query_positions is None else scores.query_positions[:, :first]
        whole = replace(scores, query_positions=places)
        return torch.cat([attend(q[:, :, :first], k, v, whole, dropout=dropout), y[:, :, first:]], 2)

    def state(self, batch: int, limit: int | None) -> KVCache:
        """A full KV cache: later tokens attend to the first blocks again."""
        return KVCache(limit=limit)


def apart(lines: DocumentLines, x: Tensor) -> Tensor:
    """(B,H,T,C) to lines (N,H,T,C)."""
    return lines.apart(x.transpose(1, 2).flatten(2)).unflatten(2, (x.shape[1], x.shape[3])).transpose(1, 2)


def together(lines: DocumentLines, y: Tensor) -> Tensor:
    """Lines (N,H,T,C) back to (B,H,T,C)."""
    return lines.together(y.transpose(1, 2).flatten(2)).unflatten(2, (y.shape[1], y.shape[3])).transpose(1, 2)
