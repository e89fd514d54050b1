"""Low-rank attention (Linformer): keys and values are first projected along time to a fixed number."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines
from anyformer.core.own_init import Starting, normal
from anyformer.core.state import KVCache
from anyformer.errors import UserError, check_at_least
from anyformer.mixers.attention import Attention, AttentionInputs, AttentionModule
from anyformer.mixers.heads import check_heads
from anyformer.slots import Mixer, Relative


class LowRank(Mixer):
    """Attention to `rank` learned mixtures of all keys and values instead of to the keys themselves.

    The mixture weights are learned for every position up to `longest` and shared by all heads. Each is over the whole
    text, so there is no causal form. Attention maps show the weights over the mixtures.
    """

    heads: int
    """Attention heads."""
    rank: int
    """Mixtures of keys and values that are attended to."""
    longest: int
    """Longest text, in tokens."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    takes_added: ClassVar[bool] = True
    causal_form: ClassVar[bool] = False
    about: ClassVar[About | None] = About(
        "y = softmax(q (E k)^T / sqrt(C)) (F v), with E and F in R^{rank x T}",
        "2006.04768",
        "4 T D^2 + 4 T rank D",
    )

    def check(self) -> None:
        check_heads("LowRank", self.heads, None, self.dropout, "sqrt")
        for name in ("rank", "longest"):
            check_at_least("LowRank", name, getattr(self, name), 1, fix="use 1 or more")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return LowRankModule(self, width, relative)


class LowRankModule(AttentionModule):
    def __init__(self, low: LowRank, width: int, relative: Relative) -> None:
        whole = Attention(heads=low.heads, bias=low.bias, dropout=low.dropout)
        super().__init__(whole, width, False, relative)
        self.low = low
        self.mix = Mixtures(low.rank, low.longest)

    def prepare(
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]
    ) -> AttentionInputs:
        """Queries unchanged; keys and values mixed over time within each document."""
        length, rank = x.shape[1], self.low.rank
        if length > self.low.longest:
            raise UserError(f"{length} tokens meet a LowRank made for {self.low.longest}", where="LowRank.longest",
                            fix=f"use longest={length} or cut the text")  # fmt: skip
        q, k, v = self.project(x, context)
        sizes, lines = self.sizes, DocumentLines.of(context)
        kv = torch.cat([k, v], -1).transpose(1, 2).flatten(2)  # (B,T,H*(C+C'))
        if lines is not None:
            kv = lines.apart(kv)  # (N,T,...): every text from its first place, 0 behind it
        kv = kv.unflatten(2, (sizes.heads, -1))
        k, v = kv.split([sizes.channels, sizes.value_channels], -1)
        k, v = self.mix(k, v)  # (N,rank,H,C)
        texts = k.shape[0] // x.shape[0]  # documents a row
        k, v = (part.reshape(x.shape[0], texts * rank, *part.shape[2:]).transpose(1, 2) for part in (k, v))
        if context.documents is None:
            return AttentionInputs(q, k, v, Scores(scale=self.scale, ordered=True))
        mine = context.documents - context.documents[:, :1]
        theirs = torch.arange(texts, device=x.device).repeat_interleave(rank)[None]
        apart = Scores(scale=self.scale, query_documents=mine, key_documents=theirs)
        return AttentionInputs(q, k, v, apart)


class Mixtures(Starting):
    """The learned mixture weights of every position."""

    def __init__(self, rank: int, longest: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.empty(rank, longest))
        self.values = nn.Parameter(torch.empty(rank, longest))
        # So that a mixture over the full length has about the scale of one token.
        self.starts = {"keys": normal(longest**-0.5), "values": normal(longest**-0.5)}

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(N,T,H,C) to (N,rank,H,C)."""
        length = k.shape[1]
        keys = torch.einsum("rt,nthc->nrhc", self.keys[:, :length].to(k.dtype), k)
        return keys, torch.einsum("rt,nthc->nrhc", self.values[:, :length].to(v.dtype), v)
