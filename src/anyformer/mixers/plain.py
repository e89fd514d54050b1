"""Simplified attention without projections: each token is compared with the others and takes their weighted mean."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores, attend, weights_of
from anyformer.core.attention_weights import Weighing
from anyformer.core.context import Context
from anyformer.core.state import KVCache
from anyformer.mixers.attention import AttentionInputs
from anyformer.slots import HeadSizes, Mixer, Relative


class Plain(Mixer):
    """a_i = sum_j softmax(score(x_i, x_j)) x_j, without parameters: a vector is query, key and value at once.

    `score` is the product x_i.x_j (`"dot"`) or that over sqrt(D) (`"scaled"`). For any other score subclass it and
    override `compare`:

    >>> import torch
    >>> class Near(Plain):
    ...     '''Tokens attend to those that lie near them.'''
    ...     def compare(self, x, keys):
    ...         return -torch.cdist(x, keys)
    >>> Near().build(8, causal=True, relative=None).spec.compare(torch.zeros(1, 2, 8), torch.ones(1, 3, 8)).shape
    torch.Size([1, 2, 3])
    """

    score: Literal["scaled", "dot"] = "scaled"
    """The product of two tokens, or that over sqrt(width)."""

    takes_added: ClassVar[bool] = True
    takes_relative: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    about: ClassVar[About | None] = About(
        "a_i = sum_j softmax_j(score(x_i, x_j)) x_j; score = x_i.x_j or x_i.x_j / sqrt(D)",
        "Jurafsky & Martin, Speech and Language Processing, ch. 9 (simplified attention)",
        "T S D, no parameters",
    )

    def compare(self, x: Tensor, keys: Tensor) -> Tensor | None:
        """Scores (B,T,S) of tokens x (B,T,D) against keys (B,S,D); None uses `score`."""
        return None

    def sizes(self, width: int) -> HeadSizes:
        return HeadSizes(1, 1, width, width)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return PlainModule(self, width, causal, relative)


class PlainModule(Weighing):
    def __init__(self, spec: Plain, width: int, causal: bool, relative: Relative) -> None:
        super().__init__()
        self.spec, self.causal, self.relative = spec, causal, relative
        self.scale = width**-0.5 if spec.score == "scaled" else 1.0

    def forward(self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]) -> Tensor:
        q, k, v, scores = self.prepare(x, context, state, tables)
        return attend(q, k, v, scores)[:, 0]  # (B,T,D)

    def prepare(
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]
    ) -> AttentionInputs:
        """The tokens themselves as queries, keys and values of one head."""
        token = x if context.added is None else x + context.added
        q = k = self.relative.rotate(token[:, None], tables)  # (B,1,T,D)
        v = x[:, None]
        if state is not None:
            k, v = state.update(k, v)
        scores = Scores.among(
            context, k.shape[2], scale=self.scale, causal=self.causal, window=None, soft_cap=None,
            relative=self.relative, tables=tables,
        )  # fmt: skip
        own = self.spec.compare(q[:, 0], k[:, 0])
        if own is not None:  # a user-defined score replaces the product, which becomes 0
            added = own[:, None] if scores.added is None else own[:, None] + scores.added
            scores, q = replace(scores, added=added), q * 0.0
        return AttentionInputs(q, k, v, scores)

    def weights(
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...], rows: slice
    ) -> Tensor:
        p = self.prepare(x, context, state, tables)
        return weights_of(p.q, p.k, p.scores, rows)

    def state(self, batch: int, limit: int | None) -> KVCache:
        """An empty cache of the tokens so far."""
        return KVCache(limit=limit)
