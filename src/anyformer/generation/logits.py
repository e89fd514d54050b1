"""Changes of logits before sampling: processors ban and force tokens, warpers reshape the distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyformer.generation.config import Generation
from anyformer.generation.noise import widest_float


@dataclass(frozen=True)
class TokenHistory:
    """The tokens before the one that is sampled next."""

    ids: Tensor  # (B,L) prompt and output so far
    mask: Tensor | None  # (B,L) False for padding; None where there is none
    new: int  # tokens of the output so far
    last: bool  # whether the next token is the last one allowed


LIKELY = 1024  # most probable tokens, which nearly always cover top_p
LogitsProcessor = Callable[[Tensor, TokenHistory], Tensor]
NO_HISTORY = TokenHistory(torch.empty(1, 0), None, 0, False)  # warpers do not look at tokens


def logits_processors(settings: Generation, vocab: int, device: torch.device) -> list[LogitsProcessor]:
    """The processors for greedy and sampled decoding, in transformers' order; only those that are enabled."""
    ends = torch.tensor([one for one in settings.ends if one < vocab], dtype=torch.long, device=device)
    found: list[LogitsProcessor] = []
    if settings.repetition_penalty != 1.0:
        found.append(lambda logits, history: penalize_repetition(logits, history, settings.repetition_penalty))
    if settings.presence_penalty or settings.frequency_penalty:
        presence, frequency = settings.presence_penalty, settings.frequency_penalty
        found.append(lambda logits, history: penalize_frequency(logits, history, presence, frequency))
    if settings.no_repeat_ngram_size:
        found.append(lambda logits, history: ban_repeated_ngrams(logits, history, settings.no_repeat_ngram_size))
    if settings.suppress_tokens:
        banned = torch.tensor(settings.suppress_tokens, device=device)
        found.append(lambda logits, history: ban_tokens(logits, banned))
    if len(ends) and settings.min_new_tokens:
        least_new = settings.min_new_tokens
        found.append(lambda logits, history: ban_tokens(logits, ends) if history.new < least_new else logits)
    elif len(ends) and settings.min_length:
        least = settings.min_length
        found.append(lambda logits, history: ban_tokens(logits, ends) if history.ids.shape[1] < least else logits)
    if settings.forced_bos_token_id is not None:
        start = torch.tensor([settings.forced_bos_token_id], device=device)
        found.append(lambda logits, history: force_tokens(logits, start) if history.ids.shape[1] == 1 else logits)
    if settings.forced_ends:
        final = torch.tensor(settings.forced_ends, device=device)
        found.append(lambda logits, history: force_tokens(logits, final) if history.last else logits)
    return found


def logits_warpers(*rows: Generation, device: torch.device | None = None) -> list[LogitsProcessor]:
    """The warpers for sampling, in transformers' order: one settings object for all rows, or one for each.

    All rows must use the same set of warpers (`active_warpers`), with their own parameters.
    """

    def numbers(values: list[float]) -> float | Tensor:
        if len(values) == 1:
            return values[0]
        return torch.tensor(values, dtype=widest_float(device or torch.device("cpu")), device=device)[:, None]

    heat, by_k, by_p, by_least = active_warpers(rows[0])
    found: list[LogitsProcessor] = []
    if heat:
        temperature = numbers([row.temperature for row in rows])
        found.append(lambda logits, history: apply_temperature(logits, temperature))
    if by_k:
        ks = [row.top_k or 0 for row in rows]
        k, most = ks[0] if len(ks) == 1 else torch.tensor(ks, device=device)[:, None], max(ks)
        found.append(lambda logits, history: apply_top_k(logits, k, most))
    if by_p:
        p = numbers([row.top_p or 0.0 for row in rows])
        found.append(lambda logits, history: apply_top_p(logits, p))
    if by_least:
        least = numbers([row.min_p or 0.0 for row in rows])
        found.append(lambda logits, history: apply_min_p(logits, least))
    return found


def active_warpers(settings: Generation) -> tuple[bool, bool, bool, bool]:
    """Which of temperature, top_k, top_p and min_p have an effect."""
    p = settings.top_p
    return settings.temperature != 1.0, bool(settings.top_k), p is not None and p < 1.0, bool(settings.min_p)


def penalize_repetition(logits: Tensor, history: TokenHistory, penalty: float) -> Tensor:
    """Penalise tokens of prompt and output: positive logits are divided, negative ones multiplied (1909.05858, 4.1)."""
    seen = torch.zeros(logits.shape[0], logits.shape[1] + 1, dtype=torch.bool, device=logits.device)
    ids = history.ids
    if history.mask is not None:
        ids = ids.where(history.mask, logits.shape[1])  # padding goes to a spare column
    seen = seen.scatter_(1, ids.clamp(max=logits.shape[1]), True)[:, :-1]
    return logits.where(~seen, torch.where(logits < 0, logits * penalty, logits / penalty))


def penalize_frequency(logits: Tensor, history: TokenHistory, presence: float, frequency: float) -> Tensor:
    """Penalise output (not prompt) tokens by `presence` once plus `frequency` per occurrence (OpenAI's rule)."""
    if not history.new:
        return logits
    output = history.ids[:, history.ids.shape[1] - history.new :].clamp(max=logits.shape[1])
    times = logits.new_zeros(logits.shape[0], logits.shape[1] + 1)  # a padding id beyond the vocabulary: spare column
    times = times.scatter_add_(1, output, torch.ones_like(output, dtype=logits.dtype))[:, :-1]
    return logits - presence * times.clamp(max=1) - frequency * times


def ban_repeated_ngrams(logits: Tensor, history: TokenHistory, size: int) -> Tensor:
    """No n-gram of `size` tokens occurs twice: ban what followed earlier occurrences of the last `size - 1` tokens."""
    ids, vocab = history.ids, logits.shape[1]
    if ids.shape[1] < size:
        return logits
    runs = ids.unfold(1, size, 1)  # (B, L - size + 1, size)
    same = (runs[..., :-1] == ids[:, None, ids.shape[1] - size + 1 :]).all(-1)
    if history.mask is not None:
        same &= history.mask.unfold(1, size, 1).all(-1)
    banned = torch.zeros(logits.shape[0], vocab + 1, dtype=torch.bool, device=logits.device)
    banned.scatter_(1, runs[..., -1].where(same, vocab).clamp(max=vocab), True)  # no match: the spare column
    return logits.masked_fill(banned[:, :vocab], -torch.inf)


def ban_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """Ban these tokens."""
    return logits.index_fill(1, ids, -torch.inf)


def force_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """Ban all other tokens, and set the logits of these to 0."""
    return torch.full_like(logits, -torch.inf).index_fill_(1, ids, 0.0)


# Parameters are one number for all rows, or one per row (N,1): bit-identical either way, on every device.


def apply_temperature(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Divide by the temperature, relative to the maximum, so that a tiny temperature cannot overflow to inf."""
    by = as_tensor(temperature, logits).clamp(min=torch.finfo(logits.dtype).tiny)  # 0 / 0 would be nan
    return (logits - logits.amax(-1, keepdim=True)) / by


def apply_top_k(logits: Tensor, k: int | Tensor, most: int | None = None) -> Tensor:
    """Keep the k most probable tokens, and ties with the last of them; `most` is the largest k of all rows."""
    vocab = logits.shape[1]
    if logits.device.type == "cpu" and vocab > 2 * LIKELY:
        each = [k] * len(logits) if isinstance(k, int) else k.expand(len(logits), 1).flatten().tolist()
        rows = zip(logits.numpy(), each, strict=True)
        edge = torch.tensor([[np.partition(row, max(0, vocab - one))[max(0, vocab - one)]] for row, one in rows])
    elif isinstance(k, int):
        edge = logits.topk(min(k, vocab), sorted=False).values.amin(-1, keepdim=True)
    else:
        assert most is not None
        best = logits.topk(min(most, vocab)).values
        edge = best.gather(1, k.clamp(max=best.shape[1]) - 1)
    return torch.where(logits < edge, torch.full_like(edge, -torch.inf), logits)


def apply_top_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep the smallest set of most probable tokens whose probabilities reach p; ties go to the lower id."""
    if logits.device.type == "cpu" and logits.shape[1] > 2 * LIKELY:
        each = [p] * len(logits) if isinstance(p, float) else p.expand(len(logits), 1).flatten().tolist()
        return torch.stack([apply_top_p_to_row(row, one) for row, one in zip(logits, each, strict=True)])
    return apply_top_p_sorted(logits, p)


def apply_top_p_sorted(logits: Tensor, p: float | Tensor) -> Tensor:
    """The same, by sorting all tokens."""
    ordered, order = logits.to(widest_float(logits.device)).sort(descending=True, stable=True)
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares  # cumulative probability of more probable tokens
    drop = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, order, before >= as_tensor(p, before))
    return logits.masked_fill(drop, -torch.inf)


def apply_top_p_to_row(logits: Tensor, p: float) -> Tensor:
    """The same for one row (V,) on a CPU, sorting only the most probable tokens."""
    row = logits.numpy()
    best = np.sort(np.partition(row, len(row) - LIKELY)[len(row) - LIKELY :])[::-1].astype(np.float64)
    if best[0] == -np.inf:
        return logits
    shares = np.exp(best - best[0]) / np.exp(row.astype(np.float64) - best[0]).sum()
    kept = int((shares.cumsum() - shares < p).sum())
    if kept == LIKELY:  # they do not cover p
        return apply_top_p_sorted(logits[None], p)[0]
    edge = best[kept - 1]
    found = np.where(row < edge, row.dtype.type(-np.inf), row)
    found[np.flatnonzero(row == edge)[int((best[:kept] == edge).sum()) :]] = -np.inf  # ties go to the lower id
    return torch.from_numpy(found)


def apply_min_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep tokens at least p times as probable as the most probable one."""
    shares = logits.softmax(-1)
    return logits.masked_fill(shares < as_tensor(p, shares) * shares.amax(-1, keepdim=True), -torch.inf)


def as_tensor(value: float | Tensor, like: Tensor) -> Tensor:
    """A tensor of `like`'s device and dtype; a GPU rounds division by a Python number differently."""
    return value.to(like.dtype) if isinstance(value, Tensor) else torch.full_like(like[:1, :1], value)
