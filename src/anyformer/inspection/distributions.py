"""Summaries of distributions over a vocabulary, and sampling settings applied to them without the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import UserError

PIECE = 2**22  # logits in memory at once
# The partition function needs the whole vocabulary, but a page has only the top tokens: it is stored for these.
TEMPERATURES = tuple(round(0.1 + 0.05 * i, 2) for i in range(39))


def score_tokens(network: Any, hidden: Tensor, ids: Tensor, top: int) -> dict[str, Tensor]:
    """Summaries of the distributions from hidden states (n,D), and of the actual tokens (n,)."""
    from anyformer.generation.prompts import decoder_of, vocabulary_of
    from anyformer.heads.lm_with_pair import LMWithPairModule

    head = network.head.words if isinstance(network.head, LMWithPairModule) else network.head
    size = max(1, PIECE // vocabulary_of(decoder_of(network.spec).embed, "the model"))
    found = []
    for at in parts(len(hidden), size):
        logits = head(hidden[None, at], None, network.table()).logits[0]  # (t,V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found.append(summarise(logits, ids[at].to(logits.device), top))
    return {name: torch.cat([part[name] for part in found]).cpu() for name in found[0]}


def summarise(logits: Tensor, ids: Tensor, top: int) -> dict[str, Tensor]:
    """Summaries of logits (t,V) and the actual tokens (t,), enough to draw and to renormalise."""
    logs = logits.log_softmax(-1)
    own = logs.gather(-1, ids[:, None])
    best = logs.topk(min(top, logs.shape[-1]), -1)
    return {
        "logprobs": own[:, 0],
        "ranks": 1 + (logs > own).sum(-1),
        "entropy": -(logs.exp() * logs).nansum(-1),  # nansum: 0 log 0 is nan and counts as 0
        "top_ids": best.indices,
        "top_logprobs": best.values,
        "partition": partitions(logs),
    }


def partitions(logs: Tensor) -> Tensor:
    """log sum_v p_v ** (1 / temperature) of log-probabilities (t,V), for every temperature: (t, temperatures)."""
    most = logs.amax(-1, keepdim=True) if logs.numel() else logs[:, :1]
    below = logs - most  # the largest term is exp(0) at any temperature, so the sum cannot underflow to 0
    return torch.stack([most[:, 0] / t + (below / t).exp_().sum(-1).log() for t in TEMPERATURES], -1)


def parts(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size`; for count 0 one empty slice, so that shapes are known."""
    for start in range(0, max(1, count), size):
        yield slice(start, min(count, start + size))


class Renormalised(NamedTuple):
    """Probabilities (K,) under other sampling settings, 0 for excluded tokens."""

    probabilities: Tensor
    exact: bool  # False if top-p may reach beyond the K known tokens: top_p then stands in for the sum


def renormalise(
    logprobs: Tensor, partition: float, *, temperature: float, top_k: int = 0, top_p: float = 1.0, whole: bool = False
) -> Renormalised:
    """Apply temperature, top-k and top-p, in this order, to the K most probable tokens (K,), best first.

    `partition` is that of the temperature, so top_k=0 and top_p=1.0 give exact probabilities over the whole vocabulary;
    `whole`: the K tokens are the whole vocabulary. Top-k takes the first k, whatever ties there are at the edge.
    """
    if top_k > len(logprobs) and not whole:
        raise UserError(f"top_k {top_k} is beyond the {len(logprobs)} tokens that are known", where="trace",
                        fix=f"use at most {len(logprobs)}, or ask for more with top=")  # fmt: skip
    shares = (logprobs.double() / temperature - partition).exp()
    if top_k:
        shares = shares.where(torch.arange(len(shares)) < top_k, 0.0)
        shares = shares / shares.sum()
    if top_p >= 1.0:
        return Renormalised(shares, True)
    reached = shares.cumsum(0)
    kept = shares.where(reached - shares < top_p, 0.0)
    ends = bool(reached[-1] >= top_p) or bool(top_k) or whole
    return Renormalised(kept / (kept.sum() if ends else top_p), ends)
