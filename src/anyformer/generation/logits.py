"""What changes the model's scores before a token is chosen: forbidden and forced tokens, then a narrower choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyformer.generation.config import Generation
from anyformer.generation.noise import finest


@dataclass(frozen=True)
class Written:
    """What stands in the rows when the next token is chosen."""

    ids: Tensor  # (B,L) prompt and text so far
    real: Tensor | None  # (B,L) False for padding; None where there is none
    new: int  # tokens written so far
    last: bool  # whether the next token is the last that fits


LIKELY = 1024  # tokens that nearly always hold what top_p asks for
Filter = Callable[[Tensor, Written], Tensor]


def rules(settings: Generation, vocab: int, device: torch.device) -> list[Filter]:
    """What holds however tokens are chosen, in transformers' order; nothing that is switched off costs anything."""
    ends = torch.tensor([one for one in settings.ends if one < vocab], dtype=torch.long, device=device)
    found: list[Filter] = []
    if settings.repetition_penalty != 1.0:
        found.append(lambda scores, text: repetition(scores, text, settings.repetition_penalty))
    if settings.presence_penalty or settings.frequency_penalty:
        found.append(lambda scores, text: worn(scores, text, settings.presence_penalty, settings.frequency_penalty))
    if settings.no_repeat_ngram_size:
        found.append(lambda scores, text: no_repeat(scores, text, settings.no_repeat_ngram_size))
    if settings.suppress_tokens:
        banned = torch.tensor(settings.suppress_tokens, device=device)
        found.append(lambda scores, text: without(scores, banned))
    if len(ends) and settings.min_new_tokens:
        least_new = settings.min_new_tokens
        found.append(lambda scores, text: without(scores, ends) if text.new < least_new else scores)
    elif len(ends) and settings.min_length:
        least = settings.min_length
        found.append(lambda scores, text: without(scores, ends) if text.ids.shape[1] < least else scores)
    if settings.forced_bos_token_id is not None:
        start = torch.tensor([settings.forced_bos_token_id], device=device)
        found.append(lambda scores, text: only(scores, start) if text.ids.shape[1] == 1 else scores)
    if settings.forced_ends:
        final = torch.tensor(settings.forced_ends, device=device)
        found.append(lambda scores, text: only(scores, final) if text.last else scores)
    return found


def narrowing(*rows: Generation, device: torch.device | None = None) -> list[Filter]:
    """What only sampling asks for, in transformers' order: one settings for all rows, or one for each.

    Those of different rows ask for the same things, as `narrows` says, with numbers of their own.
    """

    def numbers(values: list[float]) -> float | Tensor:
        if len(values) == 1:
            return values[0]
        return torch.tensor(values, dtype=finest(device or torch.device("cpu")), device=device)[:, None]

    heat, by_k, by_p, by_least = narrows(rows[0])
    found: list[Filter] = []
    if heat:
        temperature = numbers([row.temperature for row in rows])
        found.append(lambda scores, text: heated(scores, temperature))
    if by_k:
        ks = [row.top_k or 0 for row in rows]
        k, most = ks[0] if len(ks) == 1 else torch.tensor(ks, device=device)[:, None], max(ks)
        found.append(lambda scores, text: top_k(scores, k, most))
    if by_p:
        p = numbers([row.top_p or 0.0 for row in rows])
        found.append(lambda scores, text: top_p(scores, p))
    if by_least:
        least = numbers([row.min_p or 0.0 for row in rows])
        found.append(lambda scores, text: min_p(scores, least))
    return found


def narrows(settings: Generation) -> tuple[bool, bool, bool, bool]:
    """Which of temperature, top_k, top_p and min_p change anything."""
    p = settings.top_p
    return settings.temperature != 1.0, bool(settings.top_k), p is not None and p < 1.0, bool(settings.min_p)


def repetition(scores: Tensor, text: Written, penalty: float) -> Tensor:
    """Tokens of the prompt and text lose: positive scores are divided, negative ones multiplied (1909.05858, 4.1)."""
    seen = torch.zeros(scores.shape[0], scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    ids = (
        text.ids if text.real is None else text.ids.where(text.real, scores.shape[1])
    )  # padding goes to a spare column
    seen = seen.scatter_(1, ids.clamp(max=scores.shape[1]), True)[:, :-1]
    return scores.where(~seen, torch.where(scores < 0, scores * penalty, scores / penalty))


def worn(scores: Tensor, text: Written, presence: float, frequency: float) -> Tensor:
    """Tokens of the text, not the prompt, lose `presence` once and `frequency` each time they came (OpenAI's rule)."""
    if not text.new:
        return scores
    written = text.ids[:, text.ids.shape[1] - text.new :].clamp(max=scores.shape[1])
    times = scores.new_zeros(scores.shape[0], scores.shape[1] + 1)  # a padding id beyond the vocabulary: spare column
    times = times.scatter_add_(1, written, torch.ones_like(written, dtype=scores.dtype))[:, :-1]
    return scores - presence * times.clamp(max=1) - frequency * times


def no_repeat(scores: Tensor, text: Written, size: int) -> Tensor:
    """No run of `size` tokens comes twice: forbid what followed the newest `size - 1` tokens before."""
    ids, vocab = text.ids, scores.shape[1]
    if ids.shape[1] < size:
        return scores
    runs = ids.unfold(1, size, 1)  # (B, L - size + 1, size)
    same = (runs[..., :-1] == ids[:, None, ids.shape[1] - size + 1 :]).all(-1)
    if text.real is not None:
        same &= text.real.unfold(1, size, 1).all(-1)
    banned = torch.zeros(scores.shape[0], vocab + 1, dtype=torch.bool, device=scores.device)
    banned.scatter_(1, runs[..., -1].where(same, vocab).clamp(max=vocab), True)  # no match: the spare column
    return scores.masked_fill(banned[:, :vocab], -torch.inf)


def without(scores: Tensor, ids: Tensor) -> Tensor:
    """Those tokens forbidden."""
    return scores.index_fill(1, ids, -torch.inf)


def only(scores: Tensor, ids: Tensor) -> Tensor:
    """All other tokens forbidden; these count as certain."""
    return torch.full_like(scores, -torch.inf).index_fill_(1, ids, 0.0)


# One number for all rows, or one a row (N,1): the same arithmetic either way, to the last bit and on every device.


def heated(scores: Tensor, temperature: float | Tensor) -> Tensor:
    """Over a temperature, below their maximum: a tiny one gives -inf to the others and never inf to two."""
    by = as_tensor(temperature, scores).clamp(min=torch.finfo(scores.dtype).tiny)  # 0 over 0 would be no number
    return (scores - scores.amax(-1, keepdim=True)) / by


def top_k(scores: Tensor, k: int | Tensor, most: int | None = None) -> Tensor:
    """The k most probable tokens, and any that tie with the last of them; `most` is the largest k of all rows."""
    vocab = scores.shape[1]
    if scores.device.type == "cpu" and vocab > 2 * LIKELY:
        each = [k] * len(scores) if isinstance(k, int) else k.expand(len(scores), 1).flatten().tolist()
        rows = zip(scores.numpy(), each, strict=True)
        edge = torch.tensor([[np.partition(row, max(0, vocab - one))[max(0, vocab - one)]] for row, one in rows])
    elif isinstance(k, int):
        edge = scores.topk(min(k, vocab), sorted=False).values.amin(-1, keepdim=True)
    else:
        assert most is not None
        best = scores.topk(min(most, vocab)).values
        edge = best.gather(1, k.clamp(max=best.shape[1]) - 1)
    return torch.where(scores < edge, torch.full_like(edge, -torch.inf), scores)


def top_p(scores: Tensor, p: float | Tensor) -> Tensor:
    """The smallest set of most probable tokens whose probabilities reach p; among equals the lower id goes first."""
    if scores.device.type == "cpu" and scores.shape[1] > 2 * LIKELY:
        each = [p] * len(scores) if isinstance(p, float) else p.expand(len(scores), 1).flatten().tolist()
        return torch.stack([top_p_of_many(row, one) for row, one in zip(scores, each, strict=True)])
    return top_p_sorted(scores, p)


def top_p_sorted(scores: Tensor, p: float | Tensor) -> Tensor:
    """The same, all tokens sorted."""
    ordered, order = scores.to(finest(scores.device)).sort(descending=True, stable=True)
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares  # what the more probable ones have reached without it
    drop = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, before >= as_tensor(p, before))
    return scores.masked_fill(drop, -torch.inf)


def top_p_of_many(scores: Tensor, p: float) -> Tensor:
    """The same for one row (V,) of many tokens on a processor, most of which need no sorting."""
    row = scores.numpy()
    best = np.sort(np.partition(row, len(row) - LIKELY)[len(row) - LIKELY :])[::-1].astype(np.float64)
    if best[0] == -np.inf:
        return scores
    shares = np.exp(best - best[0]) / np.exp(row.astype(np.float64) - best[0]).sum()
    kept = int((shares.cumsum() - shares < p).sum())
    if kept == LIKELY:  # all of them are not enough
        return top_p_sorted(scores[None], p)[0]
    edge = best[kept - 1]
    found = np.where(row < edge, row.dtype.type(-np.inf), row)
    found[np.flatnonzero(row == edge)[int((best[:kept] == edge).sum()) :]] = -np.inf  # among equals the lower id
    return torch.from_numpy(found)


def min_p(scores: Tensor, p: float | Tensor) -> Tensor:
    """Tokens at least p times as probable as the most probable one."""
    shares = scores.softmax(-1)
    return scores.masked_fill(shares < as_tensor(p, shares) * shares.amax(-1, keepdim=True), -torch.inf)


def as_tensor(value: float | Tensor, like: Tensor) -> Tensor:
    """A number where `like` is and in its precision; a GPU divides by a plain number in another way than by these."""
    return value.to(like.dtype) if isinstance(value, Tensor) else torch.full_like(like[:1, :1], value)
