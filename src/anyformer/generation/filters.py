"""What changes the model's scores before a token is chosen: forbidden and forced tokens, then a narrower choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.generation.noise import finest
from anyformer.generation.settings import Generation


@dataclass(frozen=True)
class Written:
    """What stands in the rows when the next token is chosen."""

    ids: Tensor  # (B,L) prompt and text so far
    real: Tensor | None  # (B,L) False for padding; None where there is none
    new: int  # tokens written so far
    last: bool  # whether the next token is the last that fits


Filter = Callable[[Tensor, Written], Tensor]


def rules(settings: Generation, vocab: int, device: torch.device) -> list[Filter]:
    """What holds however tokens are chosen, in transformers' order; nothing that is switched off costs anything."""
    ends = torch.tensor([one for one in settings.ends if one < vocab], dtype=torch.long, device=device)
    found: list[Filter] = []
    if settings.repetition_penalty != 1.0:
        found.append(lambda scores, text: repetition(scores, text, settings.repetition_penalty))
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


def narrowing(settings: Generation) -> list[Filter]:
    """What only sampling asks for, in transformers' order."""
    temperature, k, p, least = settings.temperature, settings.top_k, settings.top_p, settings.min_p
    found: list[Filter] = []
    if temperature != 1.0:
        # Below its maximum, so that a tiny temperature gives -inf to the others and never inf to two.
        found.append(lambda scores, text: (scores - scores.amax(-1, keepdim=True)) / temperature)
    if k:
        found.append(lambda scores, text: top_k(scores, k))
    if p is not None and p < 1.0:
        found.append(lambda scores, text: top_p(scores, p))
    if least:
        found.append(lambda scores, text: min_p(scores, least))
    return found


def repetition(scores: Tensor, text: Written, penalty: float) -> Tensor:
    """Tokens of the prompt and text lose: positive scores are divided, negative ones multiplied (1909.05858, 4.1)."""
    seen = torch.zeros(scores.shape[0], scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    ids = (
        text.ids if text.real is None else text.ids.where(text.real, scores.shape[1])
    )  # padding goes to a spare column
    seen = seen.scatter_(1, ids.clamp(max=scores.shape[1]), True)[:, :-1]
    return scores.where(~seen, torch.where(scores < 0, scores * penalty, scores / penalty))


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


def top_k(scores: Tensor, k: int) -> Tensor:
    """The k most probable tokens, and any that tie with the last of them."""
    edge = scores.topk(min(k, scores.shape[1])).values[:, -1:]
    return scores.masked_fill(scores < edge, -torch.inf)


def top_p(scores: Tensor, p: float) -> Tensor:
    """The smallest set of most probable tokens whose probabilities reach p; among equals the lower id goes first."""
    ordered, order = scores.to(finest(scores.device)).sort(descending=True, stable=True)
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares  # what the more probable ones have reached without it
    drop = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, before >= p)
    return scores.masked_fill(drop, -torch.inf)


def min_p(scores: Tensor, p: float) -> Tensor:
    """Tokens at least p times as probable as the most probable one."""
    shares = scores.softmax(-1)
    return scores.masked_fill(shares < p * shares.amax(-1, keepdim=True), -torch.inf)
