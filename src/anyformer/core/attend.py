"""The single entry point for attention kernels: every attention layer calls `attend`.

`Scores` describes the scores of one layer completely: scale, causal order, window, padding, documents, the user's own
rules, relative positions, soft cap, grouped heads. Every kernel and the attention-map inspection read the same object.

        reference   plain maths in float32 (float64 stays): the definition that the others are tested against
        sdpa        torch's fused attention; a mask or bias is built a block of query rows at a time: memory linear in T
        blocks      the same on a CPU, each block of queries over its visible keys only: a window costs T x window
        bands       on a CPU, a narrow window with a bias or dropout: chunks of the sequence, each over its neighbours
    flex        FlexAttention on CUDA, for a bias or a sparse mask without any T x S tensor
        rows        our own kernel on CUDA, for decode steps over a static KV cache: cost follows each row's own length
        shapes      on the meta device: the output shapes a fused kernel would give
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from anyformer.core.context import TokenSubset, take_fields
from anyformer.errors import UserError
from anyformer.kernels.dropout import dropout as drop

if TYPE_CHECKING:
    from anyformer.core.context import Context
    from anyformer.slots import Relative

ALIGNED = 8  # channels: 16 bytes in half precision
rows_tried = False  # whether our own kernel has matched the reference on this machine: see `try_out` in decode.py
ROWS = 2**22  # largest mask or bias (entries) built at once; larger ones are built in blocks of query rows
PAIRS = 2**16  # query-key pairs below which one call of torch's attention beats several smaller ones on a CPU


@dataclass(frozen=True)
class Scores:
    """How one layer's scores are computed: (q.k + relative.scores) * scale, capped, + biases, -inf where not
    visible."""

    scale: float
    causal: bool = False
    window: int | None = None
    soft_cap: float | None = None
    relative: Relative | None = None
    tables: tuple[Tensor, ...] = ()
    query_positions: Tensor | None = None  # (B or 1, T)
    key_positions: Tensor | None = None  # (B or 1, S)
    query_index: Tensor | None = None  # (B or 1, T)
    key_index: Tensor | None = None  # (B or 1, S)
    key_mask: Tensor | None = None  # (B, S)
    query_documents: Tensor | None = None  # (B, T)
    key_documents: Tensor | None = None  # (B, S)
    allowed: Tensor | None = None  # (B or 1, H or 1, T, S)
    added: Tensor | None = None  # (B or 1, H or 1, T, S)
    ordered: bool = field(default=False)  # plain bool: keys are the queries in order, none masked
    gaps: bool = False  # plain bool: keys are a static cache's columns; those past a row's own length hold stale data
    some: bool = False  # plain bool: the queries are a subset of the tokens, at any positions among the keys

    @classmethod
    def among(
        cls,
        context: Context,
        keys: int,
        *,
        scale: float,
        causal: bool,
        window: int | None,
        soft_cap: float | None,
        relative: Relative,
        tables: tuple[Tensor, ...],
    ) -> Scores:
        """Self-attention; only the newest `keys` of the context's keys are still in the KV cache."""
        positions, index, mask, documents = context.latest(keys)
        cut = slice(-keys, None)
        return cls(
            scale=scale, causal=causal, window=window, soft_cap=soft_cap, relative=relative, tables=tables,
            query_positions=context.positions, key_positions=positions, query_index=context.index, key_index=index,
            key_mask=mask, query_documents=context.documents, key_documents=documents,
            allowed=None if context.allowed is None else context.allowed[..., cut],
            added=None if context.bias is None else context.bias[..., cut], ordered=context.ordered,
            gaps=context.gaps,
        )  # fmt: skip

    def for_subset(self, some: TokenSubset) -> Scores:
        """The same for a subset of the queries, over the same keys."""
        of_queries = take_fields(self, ("query_positions", "query_index", "query_documents"), some, 1)
        of_pairs = take_fields(self, ("allowed", "added"), some, 2)
        return replace(self, **of_queries, **of_pairs, ordered=False, some=True)

    @property
    def has_bias(self) -> bool:
        return self.added is not None or (self.relative is not None and self.relative.has_bias)

    @property
    def needs_weights(self) -> bool:
        """Whether a term depends on the queries or the attention weights themselves, which fused kernels do not
        support."""
        return self.soft_cap is not None or (self.relative is not None and self.relative.needs_weights)

    def hides(self, queries: int, keys: int) -> bool:
        """Whether a mask is needed beyond the kernel's own causal flag."""
        if self.key_mask is not None or self.key_documents is not None or self.allowed is not None:
            return True
        if self.window is not None and keys > self.window:
            return True
        # A single newest query sees every cached key; several need a causal mask unless the kernel applies its own.
        return self.causal and not self.ordered and (queries > 1 or self.gaps or self.some)

    @property
    def hides_alike(self) -> bool:
        """Whether every query has the same visible keys (padding alone)."""
        return not self.causal and self.window is None and self.key_documents is None and self.allowed is None

    @property
    def sees_itself(self) -> bool:
        """Whether every query is known to see at least one key: its own."""
        return self.key_mask is None and self.allowed is None and self.added is None and not self.gaps

    def copies(self, q: Tensor) -> int:
        """Number of distinct T x S masks: one per head where a bias has heads, one per row where rows differ."""
        heads = q.shape[1] if self.has_bias else 1 if self.allowed is None else self.allowed.shape[1]
        rows = 1  # a plain loop: `max(..., default=)` over a generator breaks the compiler's graph
        for part in (self.key_mask, self.key_documents, self.allowed, self.added, self.query_index):
            if part is not None:
                rows = max(rows, part.shape[0])
        return heads * rows

    # None means all rows; the compiler of torch 2.11 cannot trace a slice as a default argument.

    def visible(self, rows: slice | None = None, keys: slice | None = None) -> Tensor | None:
        """Boolean visibility mask (B or 1, H or 1, t, s) for the given query rows and key columns; None if all
        visible."""
        rows = slice(None) if rows is None else rows
        keys = slice(None) if keys is None else keys
        rules: list[Tensor] = []
        if self.causal or self.window is not None:
            assert self.query_index is not None and self.key_index is not None
            here, there = self.query_index[:, rows, None], self.key_index[:, None, keys]  # (B or 1, t, 1), (.., 1, s)
            # Compared directly: materialising the int64 difference would cost eight bytes a pair, written and read
            # again.
            if self.causal:
                rules.append((there <= here)[:, None])
            if self.window is not None:
                rules.append((there > here - self.window)[:, None])
            if self.window is not None and not self.causal:
                rules.append((there < here + self.window)[:, None])
        if self.key_mask is not None:
            rules.append(self.key_mask[:, None, None, keys])
        if self.key_documents is not None and self.query_documents is not None:
            rules.append((self.query_documents[:, rows, None] == self.key_documents[:, None, keys])[:, None])
        if self.allowed is not None:
            rules.append(self.allowed[:, :, rows, keys])
        if not rules:
            return None
        seen = rules[0]
        for rule in rules[1:]:
            seen = seen & rule
        return seen

    def bias(self, rows: slice | None = None) -> Tensor | None:
        """Additive attention bias for the given query rows: (B or 1, H or 1, t, S), or None."""
        rows = slice(None) if rows is None else rows
        total = None if self.added is None else self.added[:, :, rows]
        if self.relative is not None and self.relative.has_bias:
            assert self.query_positions is not None and self.key_positions is not None
            term = self.relative.bias(self.tables, self.query_positions[:, rows], self.key_positions)
            if term is not None:
                total = term if total is None else total + term
        return total


def attend(q: Tensor, k: Tensor, v: Tensor, scores: Scores, *, dropout: float = 0.0) -> Tensor:
    """Attention output. q (B,H,T,C); k (B,G,S,C); v (B,G,S,C'); returns (B,H,T,C').

    A fully masked query gives zeros, with finite gradients, on every kernel.
    """
    for rule in (scores.allowed, scores.added):
        if rule is not None and rule.shape[1] not in (1, q.shape[1]):
            raise UserError(f"mask has shape {tuple(rule.shape)}", fix=f"expected one head or all {q.shape[1]}")
    engine = choose(q, k, v, scores, dropout).engine
    return ENGINES[engine](q, k, v, scores, dropout)


class Choice(NamedTuple):
    """Which kernel runs, and why."""

    engine: str
    why: str


def choose(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Choice:
    """Choose the kernel for these inputs; it reads shapes, types and flags only, never tensor values."""
    if q.is_cuda and rows_tried and scores.gaps and dropout == 0.0:
        from anyformer.kernels.decode import why_unsupported

        if why_unsupported(q, k, v, scores) is None:
            return Choice("rows", "a few new tokens over a static cache: each row reads its own columns and no further")
    if q.device.type == "cpu" and (choice := choose_for_window(q, k, scores, dropout)) is not None:
        return choice
    if q.is_cuda and scores.some:  # cuDNN's backward pass works in tiles of 64 queries
        return Choice("reference", "a few queries, for which plain products take as long as a fused kernel")
    if scores.needs_weights:
        what = "the logit soft cap" if scores.soft_cap is not None else f"{type(scores.relative).__name__} positions"
        return Choice("reference", f"fused kernels do not offer {what}")
    if q.is_meta:
        return Choice("shapes", "there are shapes alone")
    long = scores.copies(q) * q.shape[2] * k.shape[2] > ROWS
    hidden = scores.has_bias or scores.hides(q.shape[2], k.shape[2])
    exact = q.dtype == torch.promote_types(q.dtype, torch.float32)  # in half precision the reference costs more
    if dropout and not hidden and not scores.causal and not long and exact and q.device.type == "cpu":
        return Choice("reference", "no fused kernel of a CPU offers dropout, and nothing is hidden")
    half = q.dtype in (torch.bfloat16, torch.float16)  # measured there; float32 takes blocks of rows
    if q.is_cuda and half and hidden and long and dropout == 0.0 and scores.added is None and scores.allowed is None:
        return Choice("flex", "a bias or mask over a long sequence, without a T x S tensor")
    return Choice("sdpa", "torch's fused attention" + (" with a mask or bias" if hidden else ""))


def choose_for_window(q: Tensor, k: Tensor, scores: Scores, dropout: float) -> Choice | None:
    """On a CPU, the kernel for masks that differ by query over many keys; None where one plain call is as good."""
    if torch.compiler.is_exporting():  # other runtimes know only torch's operations, and lengths stay dynamic
        return None
    queries, keys = q.shape[2], k.shape[2]
    ruled = scores.allowed is not None or scores.added is not None  # the caller's own mask is T x S already
    few = queries * keys < fewest_pairs(q.dtype, scores, keys) or scores.some
    if ruled or few or scores.hides_alike or not scores.hides(queries, keys):
        return None
    if dropout == 0.0 and not scores.has_bias and not scores.needs_weights:
        return Choice("blocks", "a mask on a CPU: each block of queries meets only keys that it can see")
    # Chunks as long as the window meet twice as many keys as they see, thrice without causal order.
    if scores.window is not None and queries == keys and scores.window * (2 if scores.causal else 3) < keys:
        return Choice("bands", "a narrow window on a CPU, in chunks")
    return None


def fewest_pairs(dtype: torch.dtype, scores: Scores, keys: int) -> int:
    """Query-key pairs above which blocks are faster on a CPU than one call with a mask, as measured.

    The more a mask hides the sooner they pay: causal order hides half, a wide window without it next to nothing. Half
    precision repacks the matrices for every block.
    """
    wide = scores.window is not None and 4 * scores.window > keys
    return PAIRS * (1 if scores.causal else 16 if wide else 2) * (2 if dtype.itemsize < 4 else 1)


# ---------------------------------------------------------------- reference


class ScoreSteps(NamedTuple):
    """All intermediate scores from queries to attention weights, each (B,H,t,S) in float32 or better.

    A step that the layer does not have is the previous step's tensor; `visible` is None if nothing is masked.
    """

    raw: Tensor  # q.k
    related: Tensor  # plus the query-dependent relative-position term (Shaw)
    scaled: Tensor  # times scale
    capped: Tensor
    biased: Tensor  # with ALiBi, buckets and the caller's own term
    visible: Tensor | None  # bool, broadcasts to (B,H,t,S)
    masked: Tensor  # -inf where not visible
    weights: Tensor


def score_steps(q: Tensor, k: Tensor, scores: Scores, rows: slice | None = None) -> ScoreSteps:
    """The attention weights of the given query rows with every intermediate, for inspection; see `weights_of`."""
    rows = slice(None) if rows is None else rows
    q, k = exact_inputs(q, k, rows)
    raw = q @ k.mT  # (B,H,t,S)
    related = with_relative(raw, q, scores, rows)
    scaled = related * scores.scale
    capped = with_cap(scaled, scores)
    biased = with_bias(capped, scores, rows)
    seen = scores.visible(rows)
    hidden = with_mask(biased, seen)
    return ScoreSteps(raw, related, scaled, capped, biased, seen, hidden, normalise(hidden, seen, scores))


def weights_of(q: Tensor, k: Tensor, scores: Scores, rows: slice | None = None) -> Tensor:
    """Attention weights (B,H,t,S) of the given query rows, in float32 or better: the definition all kernels must
    match."""
    # The steps of `score_steps`, each freed once the next exists: kept, they would be six T x S maps at once.
    rows = slice(None) if rows is None else rows
    q, k = exact_inputs(q, k, rows)
    logits = with_relative(q @ k.mT, q, scores, rows)  # (B,H,t,S)
    logits = with_cap(logits * scores.scale, scores)
    logits = with_bias(logits, scores, rows)
    seen = scores.visible(rows)
    logits = with_mask(logits, seen)
    return normalise(logits, seen, scores)


def exact_inputs(q: Tensor, k: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """The given query rows and the keys expanded to every query head, in float32 or better."""
    exact = torch.promote_types(q.dtype, torch.float32)
    return q[:, :, rows].to(exact), spread(k, q.shape[1]).to(exact)


def with_relative(logits: Tensor, q: Tensor, scores: Scores, rows: slice) -> Tensor:
    """Add the query-dependent relative-position scores (Shaw)."""
    if scores.relative is None or not scores.relative.needs_weights:
        return logits
    assert scores.query_positions is not None and scores.key_positions is not None
    extra = scores.relative.scores(q, scores.tables, scores.query_positions[:, rows], scores.key_positions)
    return logits if extra is None else logits + extra


def with_cap(logits: Tensor, scores: Scores) -> Tensor:
    return logits if scores.soft_cap is None else scores.soft_cap * torch.tanh(logits / scores.soft_cap)


def with_bias(logits: Tensor, scores: Scores, rows: slice) -> Tensor:
    bias = scores.bias(rows)
    return logits if bias is None else logits + bias.to(logits.dtype)


def with_mask(logits: Tensor, seen: Tensor | None) -> Tensor:
    return logits if seen is None else logits.masked_fill(~seen, -torch.inf)


def normalise(logits: Tensor, seen: Tensor | None, scores: Scores) -> Tensor:
    """Softmax of the masked scores; zeros for a fully masked query."""
    if seen is None and scores.added is None:
        return logits.softmax(-1)
    # A fully masked row is all -inf and its softmax nan, backward too: give it zeros, then drop its weights.
    dead = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


def reference(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """Plain maths over whole rows of scores."""
    weights = weights_of(q, k, scores)
    kept = drop(weights, dropout) if dropout else weights
    out = kept @ spread(v, q.shape[1]).to(weights.dtype)  # (B,H,T,C')
    if scores.relative is not None and scores.relative.needs_weights:
        assert scores.query_positions is not None and scores.key_positions is not None
        extra = scores.relative.values(kept, scores.tables, scores.query_positions, scores.key_positions)
        out = out if extra is None else out + extra
    return out.to(q.dtype)


def spread(x: Tensor, heads: int) -> Tensor:
    """Repeat each key/value head for every query head of its group: (B,G,S,C) to (B,H,S,C)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


# ---------------------------------------------------------------- torch's fused attention


def sdpa(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """Fused attention; masks and biases of long sequences are built and freed one block of query rows at a time."""
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    out_channels = v.shape[3]
    # Fused kernels want one channel count: zeros add nothing to q.k, and the padded channels of v are cut off again.
    channels = max(q.shape[3], out_channels)
    # On a GPU they read 16 bytes at a time: slices of a fused projection are aligned only if all sizes are multiples.
    crooked = q.is_cuda and (q.shape[3] % ALIGNED or out_channels % ALIGNED)
    channels = -(-channels // ALIGNED) * ALIGNED if crooked else channels
    q, k, v = (widen(x, channels).contiguous() if crooked else widen(x, channels) for x in (q, k, v))
    groups, folded = k.shape[1], False
    plain = not scores.hides(queries, keys) and not scores.has_bias
    # The fused GPU kernels support grouped heads natively; everything else needs a copy for each query head.
    shares = groups != heads and plain and q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
    if groups != heads and queries == 1:
        q, folded = q.reshape(q.shape[0], groups, heads // groups, channels), True  # one query: its heads become rows
    elif groups != heads and not shares:
        k, v = spread(k, heads), spread(v, heads)
    if plain:
        # A plain bool, never a comparison of sizes: that would be a SymBool under the compiler, which the kernel
        # rejects.
        # Not ordered yet no mask needed means a single newest query, which sees every key.
        causal = scores.causal and scores.ordered
        out = F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal, scale=scores.scale, enable_gqa=shares and not folded
        )
        return out.reshape(out.shape[0], heads, queries, channels)[..., :out_channels]
    entries = keys * scores.copies(q)
    # Padding alone hides the same keys from every query: the mask has one row, which the CPU kernel broadcasts.
    one_row = not q.is_cuda and dropout == 0.0 and scores.hides_alike and not scores.has_bias
    if one_row or queries * entries <= ROWS:  # before any loop over rows: it would specialise T when compiled
        out = masked(q, k, v, scores, slice(None), dropout, folded)
    else:  # recompute each block in the backward pass, else autograd would keep every block's mask
        blocks = list(row_blocks(queries, entries))
        pieces = q.split(blocks[0].stop, 2)  # not slices: each would allocate a gradient as large as q
        parts = [
            checkpoint(masked, piece, k, v, scores, rows, dropout, False, use_reentrant=False)
            for rows, piece in zip(blocks, pieces, strict=True)
        ]
        out = torch.cat(parts, 2)
    return out.reshape(out.shape[0], heads, queries, channels)[..., :out_channels]


def masked(q: Tensor, k: Tensor, v: Tensor, scores: Scores, rows: slice, dropout: float, folded: bool) -> Tensor:
    """Fused attention of a block of query rows with their slice of the mask and bias."""
    seen, bias = scores.visible(rows), scores.bias(rows)
    live = None
    if scores.added is not None and bias is not None:  # the user's additive term may hide keys by -inf
        finite = bias != -torch.inf
        seen = finite if seen is None else seen & finite
    if seen is not None and not scores.sees_itself:
        live = seen.any(-1, keepdim=True)
        seen = seen | ~live  # a fully masked row is unmasked here and its result dropped below
    if bias is not None:
        mask = bias.to(q.dtype) if seen is None else bias.to(q.dtype).masked_fill(~seen, -torch.inf)
        if scores.added is not None and live is not None:
            mask = mask.masked_fill(~live, 0.0)
    else:
        assert seen is not None
        mask = seen
    if folded:
        mask, live = fold(mask, q.shape[1]), None if live is None else fold(live, q.shape[1])
    if mask.shape[0] == 1 and mask.shape[1] == 1 and q.is_cuda:
        mask = mask.expand(q.shape[0], -1, -1, -1)
    with safe_kernels(q):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scores.scale)
    return out if live is None else out * live


def safe_kernels(q: Tensor) -> AbstractContextManager[None]:
    """For training with a mask on a GPU: exclude cuDNN, whose backward pass with a mask may give nan for finite inputs
    (seen in bf16 with torch 2.11)."""
    if q.is_cuda and torch.is_grad_enabled():
        return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return nullcontext()


def fold(x: Tensor, groups: int) -> Tensor:
    """A mask or bias (B or 1, H or 1, 1, S) for a single query whose heads became rows: (B or 1, G or 1, H/G or 1,
    S)."""
    return x if x.shape[1] == 1 else x.reshape(x.shape[0], groups, x.shape[1] // groups, x.shape[3])


def widen(x: Tensor, channels: int) -> Tensor:
    return x if x.shape[3] == channels else F.pad(x, (0, channels - x.shape[3]))


def row_blocks(queries: int, entries: int) -> Iterator[slice]:
    """Blocks of queries whose mask, with `entries` per query, stays under ROWS."""
    size = max(1, min(queries, ROWS // entries))
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


def flex(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """FlexAttention; imported where used, since it pulls in the compiler."""
    from anyformer.kernels.flex import flex_attend

    return flex_attend(q, k, v, scores)


def blocks(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """Torch's kernel for CPUs, a block of queries at a time; imported where used, as it registers its operation."""
    from anyformer.kernels.masked_blocks import attend_in_blocks

    return attend_in_blocks(q, k, v, scores)


def bands(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """Chunks of the sequence; imported where used, as they call `attend` again."""
    from anyformer.kernels.bands import attend_in_bands

    return attend_in_bands(q, k, v, scores, dropout)


def rows(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """Our own kernel; imported where used, as it needs Triton."""
    from anyformer.kernels.decode import attend_static_cache

    return attend_static_cache(q, k, v, scores)


def shapes(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """One operation that computes nothing; imported where used, as it registers that operation."""
    from anyformer.kernels.shape_only import attend_shapes

    return attend_shapes(q, k, v, scores)


ENGINES = {
    "reference": reference, "sdpa": sdpa, "blocks": blocks, "bands": bands, "flex": flex, "rows": rows,
    "shapes": shapes,
}  # fmt: skip
