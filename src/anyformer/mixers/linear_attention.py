"""Linear attention: with a kernel instead of the exponential, sums over keys can be accumulated."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores
from anyformer.core.attention_weights import Weighing
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines, goes_on
from anyformer.core.history import RecurrentState
from anyformer.mixers.attention import Attention, AttentionModule
from anyformer.mixers.heads import check_heads
from anyformer.slots import Mixer, Relative

CHUNK = 64  # tokens compared pairwise; everything before a chunk is one accumulated sum
SEGMENT = 64 * CHUNK  # tokens whose chunks are computed at once

Sums = tuple[Tensor, Tensor]  # of phi(k) v^T (N,H,C,C') and of phi(k) (N,H,C)


class LinearAttention(Mixer):
    """Softmax attention uses kappa(q, k) = exp(q.k); here kappa(q, k) = phi(q).phi(k), at a cost linear in T.

    `feature` is phi: `"elu"` is elu(x) + 1, `"softplus"` log(1 + e^x); both are positive, so weights are too. The
    decoding state is one matrix per head, whatever the length.
    """

    heads: int
    """Attention heads."""
    feature: Literal["elu", "softplus"] = "elu"
    """The positive feature map of queries and keys."""
    bias: bool = True
    """Whether the linear layers have a bias."""

    takes_added: ClassVar[bool] = True
    about: ClassVar[About | None] = About(
        "y_i = (phi(q_i) sum_j phi(k_j) v_j^T) / (phi(q_i).sum_j phi(k_j)); phi(x) = elu(x) + 1",
        "2006.16236",
        "4 T D^2 + 4 T D C",
    )

    def check(self) -> None:
        check_heads("LinearAttention", self.heads, None, 0.0, "sqrt")

    def phi(self, x: Tensor) -> Tensor:
        """The feature map, positive everywhere; may be overridden."""
        return F.elu(x) + 1.0 if self.feature == "elu" else F.softplus(x)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return LinearAttentionModule(self, width, causal, relative)


class LinearAttentionModule(AttentionModule, Weighing):
    """Attention's projections with linear attention between them."""

    keeps_keys: ClassVar[bool] = False

    def __init__(self, kernel: LinearAttention, width: int, causal: bool, relative: Relative) -> None:
        super().__init__(Attention(heads=kernel.heads, bias=kernel.bias), width, causal, relative)
        self.kernel = kernel

    def forward(self, x: Tensor, context: Context, state: RecurrentState | None, tables: tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        q, k, v = self.featured(x, context)
        lines = DocumentLines.of(context)
        before = self.begin(x, state)
        start = before
        if lines is not None:
            q, k, v = (lines.apart(part.transpose(1, 2).flatten(2)) for part in (q, k, v))  # (N,T,H*C)
            q, k, v = (part.unflatten(2, (self.sizes.heads, -1)).transpose(1, 2) for part in (q, k, v))
            start = lines.begin(before[0], context), lines.begin(before[1], context)
        y, total = summed(q, k, v, start, self.causal)
        if state is not None:
            self.remember(state, context, before, total, lines, k, v)
        y = y.transpose(1, 2).flatten(2)  # (N,T,D)
        return self.out((y if lines is None else lines.together(y)).to(x.dtype))

    def featured(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """phi(q), phi(k) and v, (B,H,T,C), in float32 or better, since they are summed over long texts."""
        exact = torch.promote_types(x.dtype, torch.float32)
        q, k, v = (part.to(exact) for part in self.project(x, context))
        return self.kernel.phi(q), self.kernel.phi(k), v

    def begin(self, x: Tensor, state: RecurrentState | None) -> Sums:
        if state is not None and state.now:
            return state.now[0], state.now[1]
        exact, sizes = torch.promote_types(x.dtype, torch.float32), self.sizes
        shape = (x.shape[0], sizes.heads, sizes.channels)
        none = torch.zeros(*shape, sizes.value_channels, dtype=exact, device=x.device)
        return none, torch.zeros(shape, dtype=exact, device=x.device)

    def remember(
        self,
        state: RecurrentState,
        context: Context,
        before: Sums,
        total: Sums,
        lines: DocumentLines | None,
        k: Tensor,
        v: Tensor,
    ) -> None:
        """Store the sums after this pass, or after each of its tokens if the state must be truncatable."""
        tokens = context.index.shape[1]
        if context.rolling:
            now = total if lines is None else (total[0][lines.last], total[1][lines.last])
            state.update(now, tokens)
            return
        if lines is not None:
            k, v = (lines.together(part.transpose(1, 2).flatten(2)) for part in (k, v))  # padding adds nothing
            k, v = (part.unflatten(2, (self.sizes.heads, -1)).transpose(1, 2) for part in (k, v))
        steps: list[tuple[Tensor, ...]] = []
        outer, sums = before
        same: Tensor = goes_on(context, outer)
        for t in range(tokens):
            if t and context.documents is not None:
                same = (context.documents[:, t] == context.documents[:, t - 1]).to(outer)[:, None, None, None]
            outer = outer * same + k[:, :, t, :, None] * v[:, :, t, None, :]
            sums = sums * (same[..., 0] if same.dim() else same) + k[:, :, t]
            steps.append((outer, sums))
        state.update(steps[-1], tokens, steps)

    def weights(
        self, x: Tensor, context: Context, state: RecurrentState | None, tables: tuple[Tensor, ...], rows: slice
    ) -> Tensor:
        q, k, _ = self.featured(x, context)
        scores = Scores.among(
            context, k.shape[2], scale=1.0, causal=self.causal, window=None, soft_cap=None, relative=self.relative,
            tables=(),
        )  # fmt: skip
        kappa = q[:, :, rows] @ k.mT  # (B,H,t,S)
        seen = scores.visible(rows)
        kappa = kappa if seen is None else kappa * seen
        return kappa / nonzero(kappa.sum(-1, keepdim=True))

    def state(self, batch: int, limit: int | None) -> RecurrentState:  # type: ignore[override]
        """An empty state: one matrix and one vector per head, whatever the length."""
        return RecurrentState()


def summed(q: Tensor, k: Tensor, v: Tensor, start: Sums, causal: bool) -> tuple[Tensor, Sums]:
    """Outputs (N,H,T,C') from features q, k (N,H,T,C) and values, and the final sums."""
    if not causal:
        outer, sums = start[0] + k.mT @ v, start[1] + k.sum(2)
        return q @ outer / nonzero(q @ sums[..., None]), (outer, sums)
    length = k.shape[2]
    if length > SEGMENT and not torch.compiler.is_compiling():  # a CPU is fastest if a segment fits its cache
        parts = []
        for some in zip(q.split(SEGMENT, 2), k.split(SEGMENT, 2), v.split(SEGMENT, 2), strict=True):
            y, start = summed(*some, start, causal)
            parts.append(y)
        return torch.cat(parts, 2), start
    if length <= CHUNK:
        q, k, v = (x[:, :, None] for x in (q, k, v))  # (N,H,1,T,C)
    else:
        chunks = (length + CHUNK - 1) // CHUNK
        q, k, v = (F.pad(x, (0, 0, 0, chunks * CHUNK - length)).unflatten(2, (chunks, CHUNK)) for x in (q, k, v))
    outer = torch.cat([start[0][:, :, None], k.mT @ v], 2).cumsum(2)  # (N,H,chunks+1,C,C'): before each chunk, and all
    sums = torch.cat([start[1][:, :, None], k.sum(3)], 2).cumsum(2)  # (N,H,chunks+1,C)
    near = (q @ k.mT).tril()  # (N,H,chunks,size,size)
    y = near @ v + q @ outer[:, :, :-1]
    weight = near.sum(-1, keepdim=True) + q @ sums[:, :, :-1, :, None]
    y = (y / nonzero(weight)).flatten(2, 3)[:, :, :length]
    return y, (outer[:, :, -1], sums[:, :, -1])


def nonzero(weight: Tensor) -> Tensor:
    """Replace zero denominators by 1, so that padding gives 0 with finite gradients."""
    return weight.masked_fill(weight == 0, 1.0)
