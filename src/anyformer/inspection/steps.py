"""Attention of one token in one head, step by step: from its query to the head's contribution to the layer's output.

Every number is recomputed from the layer's inputs by the reference of all kernels (`core/attend.score_steps`), and the
result is compared with the layer's own output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anyformer.core.attend import Scores, score_steps, spread
from anyformer.core.attention_weights import Weighing
from anyformer.core.linear import is_plain_linear
from anyformer.errors import UserError
from anyformer.mixers.attention import AttentionInputs, AttentionModule
from anyformer.mixers.cross import CrossModule
from anyformer.mixers.plain import PlainModule

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

SHOWN = 64  # keys shown at once


@dataclass(frozen=True)
class HeadSteps:
    """All steps of one query in one head. S keys, C channels of queries and keys, C' of values, D the width.

    `total` is the sum of all heads' `out` and the bias; `expected` is the layer's own output for this token.
    """

    label: str  # the layer, "Layer 3"
    head: int
    query: int
    token: str  # the query token
    keys: tuple[str, ...]  # the key tokens
    x: Tensor | None  # (D,) the layer's input for this token
    q: Tensor  # (C,)
    k: Tensor  # (S,C)
    v: Tensor  # (S,C')
    beside: Tensor | None  # (S,C') relative positions' addition to the values
    scores: Tensor  # (S,) q.k
    related: Tensor  # (S,) with relative positions' addition to q.k
    scaled: Tensor  # (S,)
    capped: Tensor  # (S,)
    biased: Tensor  # (S,)
    visible: Tensor  # (S,) bool
    masked: Tensor  # (S,) -inf where not visible
    weights: Tensor  # (S,)
    weighted: Tensor  # (S,C') each value (plus `beside`) times its weight
    z: Tensor  # (C',) their sum
    projection: Tensor | None  # (C',D) this head's rows of W_O; None without an output projection
    out: Tensor  # (D,) z @ projection
    others: Tensor  # (D,) the other heads' contributions
    bias: Tensor | None  # (D,) of the output projection
    total: Tensor  # (D,)
    expected: Tensor | None  # (D,)
    scale: float
    soft_cap: float | None
    crossed: bool  # keys and values come from another sequence, the memory
    plain: bool  # attention without W_Q, W_K, W_V and W_O: query, key and value are the token itself
    count_from: int = 0  # index of the first token and head when displayed; slides count from 1

    @property
    def gap(self) -> float | None:
        """Largest difference of `total` from the layer's own output, relative to its largest value (at least 1)."""
        if self.expected is None:
            return None
        largest = max(1.0, float(self.expected.abs().max()))
        return float((self.total - self.expected).abs().max()) / largest

    @property
    def root(self) -> bool:
        """Whether the scale is 1 / sqrt(C)."""
        return abs(self.scale * len(self.q) ** 0.5 - 1) < 1e-6

    def text(self, numbering: str | None = None) -> str:
        """The steps as a table for a terminal, numbered as six steps ("epfl") or five ("cornell")."""
        from anyformer.inspection.steps_text import steps_text

        return steps_text(self, numbering)


@torch.no_grad()
def steps_of(capture: Capture, site: int, head: int, query: int) -> HeadSteps:
    """The steps of one token in one head of a captured pass."""
    place = capture.site(site)
    call = capture.found.mixers[place.index]
    if not has_steps(call.module):
        raise UserError("this mixer does not weigh values by the softmax of queries and keys", where=place.label,
                        fix="choose a layer with attention")  # fmt: skip
    x, context, _, tables = call.given
    inputs = call.module.prepare(x, context, None, tables)  # type: ignore[operator]
    return attention_steps(
        inputs, call.module, head, query, row=capture.row, x=x, output=call.out, label=place.label,
        queries=capture.axes[place.queries].texts, keys=capture.axes[place.keys].texts,
    )  # fmt: skip


def has_steps(module: nn.Module) -> bool:
    """Whether a mixer has queries, keys and values, even if they are the tokens themselves."""
    if isinstance(module, Weighing):  # weights not from a softmax of q.k
        return isinstance(module, PlainModule)
    return isinstance(module, AttentionModule | CrossModule)


@torch.no_grad()
def attention_steps(
    inputs: AttentionInputs, module: nn.Module | None, head: int, query: int, *, row: int = 0, x: Tensor | None = None,
    output: Tensor | None = None, label: str = "Attention", queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> HeadSteps:  # fmt: skip
    """The steps from the result of a layer's `prepare`; x and output (B,T,D) are the layer's input and output."""
    heads, length, count = inputs.q.shape[1], inputs.q.shape[2], inputs.k.shape[2]
    check_choice("head", head, heads)
    check_choice("query", query, length)
    at = slice(query, query + 1)
    q, k, v, scores = one_row(inputs, row)
    steps = score_steps(q, k, scores, at)
    exact = steps.weights.dtype
    k, v = spread(k, heads)[0].to(exact), spread(v, heads)[0].to(exact)  # (H,S,C), (H,S,C')
    weights = steps.weights[0, :, 0]  # (H,S)
    beside = value_term(torch.eye(count, dtype=exact)[None, None], scores, at)  # (1,1,S,C'), one key a row
    beside = None if beside is None else beside[0, 0]
    weighted = weights[head, :, None] * (v[head] if beside is None else v[head] + beside)  # (S,C')
    z = weighted.sum(0)
    rest, extra = (weights[:, None] @ v)[:, 0], value_term(steps.weights, scores, at)  # (H,C'), (1,H,1,C')
    rest = rest if extra is None else rest + extra[0, :, 0]
    rest[head] = 0.0
    layer = module.out if isinstance(module, AttentionModule | CrossModule) else None
    if layer is None:
        projection, out, others, bias = None, z, rest.sum(0), None
    else:
        projection = projection_of(layer, head, v.shape[-1], exact)
        out, others = z @ projection, without_bias(layer, rest.flatten()[None], exact)[0]
        bias = None if layer.bias is None else layer.bias.detach().cpu().to(exact)
    total = out + others if bias is None else out + others + bias
    seen = torch.ones(count, dtype=torch.bool) if steps.visible is None else of_head(steps.visible, head)
    return HeadSteps(
        label=label, head=head, query=query,
        token=label_at(queries, query, length), keys=tuple(label_at(keys, j, count) for j in range(count)),
        x=None if x is None else x[row, query].cpu().to(exact), q=q[0, head, query].to(exact), k=k[head], v=v[head],
        beside=beside,
        scores=steps.raw[0, head, 0], related=steps.related[0, head, 0], scaled=steps.scaled[0, head, 0],
        capped=steps.capped[0, head, 0], biased=steps.biased[0, head, 0], visible=seen.expand(count),
        masked=steps.masked[0, head, 0], weights=weights[head], weighted=weighted, z=z, projection=projection, out=out,
        others=others, bias=bias, total=total, expected=None if output is None else output[row, query].cpu().to(exact),
        scale=scores.scale, soft_cap=scores.soft_cap, crossed=isinstance(module, CrossModule),
        plain=isinstance(module, PlainModule),
    )  # fmt: skip


def check_choice(name: str, value: int, count: int) -> None:
    if not 0 <= value < count:
        raise UserError(f"{name} {value} does not exist", where="steps", fix=f"use 0 to {count - 1}")


def one_row(inputs: AttentionInputs, row: int) -> AttentionInputs:
    """One row of the batch, as a batch of one on the CPU."""
    q, k, v, scores = inputs
    row = min(row, q.shape[0] - 1)
    at = slice(row, row + 1)
    names = ("query_positions", "key_positions", "query_index", "key_index", "key_mask", "query_documents",
             "key_documents", "allowed", "added")  # fmt: skip
    kept = {name: x for name in names if (x := getattr(scores, name)) is not None}
    rows = {name: (x[at] if x.shape[0] > 1 else x).cpu() for name, x in kept.items()}
    alone = replace(scores, **rows, tables=tuple(table.cpu() for table in scores.tables))
    return AttentionInputs(q[at].cpu(), k[at].cpu(), v[at].cpu(), alone)


def of_head(x: Tensor, head: int) -> Tensor:
    """One head of (1, H or 1, 1, S)."""
    return x[0, head if x.shape[1] > 1 else 0, 0]


def value_term(weights: Tensor, scores: Scores, at: slice) -> Tensor | None:
    """Relative positions' addition to the values, for rows of weights (1,H,t,S) that all belong to one query."""
    if scores.relative is None or not scores.relative.needs_weights:
        return None
    assert scores.query_positions is not None and scores.key_positions is not None
    asking = scores.query_positions[:, at].expand(-1, weights.shape[2])
    return scores.relative.values(weights, scores.tables, asking, scores.key_positions)


def projection_of(layer: nn.Linear, head: int, channels: int, dtype: torch.dtype) -> Tensor:
    """One head's rows of W_O, (C',D)."""
    at = slice(head * channels, (head + 1) * channels)
    if is_plain_linear(layer):
        return layer.weight.detach()[:, at].T.cpu().to(dtype)
    # An adapter or a quantised layer: its output for unit vectors is its weight, however it is stored.
    return without_bias(layer, torch.eye(layer.in_features)[at], dtype)


def without_bias(layer: nn.Linear, x: Tensor, dtype: torch.dtype) -> Tensor:
    """(n,in) through a linear layer without its bias, which is shown separately: (n,out)."""
    if is_plain_linear(layer):
        return x @ layer.weight.detach().T.cpu().to(dtype)
    x = x.to(layer.weight)
    return (layer(x) - layer(torch.zeros_like(x))).cpu().to(dtype)


def label_at(labels: Sequence[str] | None, at: int, count: int) -> str:
    """The token's text; its number if the keys are not the axis' tokens (mixtures of tokens, a KV cache)."""
    return labels[at] if labels is not None and len(labels) == count else f"#{at}"


def shown_around(weights: Tensor, limit: int = SHOWN) -> tuple[int, int]:
    """The half-open range of at most `limit` keys around the one with the largest weight."""
    count = len(weights)
    first = min(max(0, int(weights.argmax()) - limit // 2), max(0, count - limit))
    return first, min(count, first + limit)


def lecture_example() -> HeadSteps:
    """EPFL's worked example, W01: scores 102 and 99 with D_K = 3 give 58.9 and 57.2, and weights .85 and .15.

    The slide gives only the scores: these vectors were chosen to have them. The numbers come from `score_steps`, as for
    a model.

    >>> [round(float(x), 2) for x in lecture_example().weights]
    [0.85, 0.15]
    """
    q = torch.tensor([[6.0, 5.0, 4.0]], dtype=torch.float64)
    k = torch.tensor([[8.0, 6.0, 6.0], [7.0, 9.0, 3.0]], dtype=torch.float64)
    v = torch.tensor([[2.0, 0.0, 1.0], [0.0, 4.0, 1.0]], dtype=torch.float64)
    inputs = AttentionInputs(q[None, None], k[None, None], v[None, None], Scores(scale=3**-0.5))
    steps = attention_steps(inputs, None, 0, 0, label="EPFL's example", queries=["x₁"], keys=["x₁", "x₂"])
    return replace(steps, count_from=1)
