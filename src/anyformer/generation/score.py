"""Log-probabilities of text: log p(text) is the sum of log p(token | tokens before it), from one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.decode import check_source
from anyformer.generation.prompts import (
    check_ids,
    check_mask,
    check_model,
    decoder_of,
    flush_right,
    max_positions,
    vocabulary_of,
)
from anyformer.generation.runners.eager import EncoderOutput, compute_logits, device_of, eval_mode, hidden_states

PIECE = 2**24  # logits held at once


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of texts. A row's first real token is not scored, having no context."""

    logprobs: Tensor  # (B,T) log p of each token after those before it; 0 for first tokens and padding
    scored: Tensor  # (B,T) which tokens are scored

    @property
    def total(self) -> Tensor:
        """log p of each text, (B,)."""
        return self.logprobs.sum(1)

    @property
    def counts(self) -> Tensor:
        """Tokens scored in each text, (B,)."""
        return self.scored.sum(1)

    @property
    def perplexity(self) -> Tensor:
        """exp of the mean of -log p over the scored tokens of each text, (B,); nan if there are none."""
        return (-self.total / self.counts).exp()


@torch.no_grad()
def score(
    model: Any, tokens: Any, mask: Tensor | None = None, *, source: Any = None, source_mask: Tensor | None = None
) -> Scored:
    """Log-probabilities of texts (B,T) by the chain rule; an encoder-decoder is also given their sources (B,S).

    >>> from anyformer import preset
    >>> float(score(preset("gpt2-tiny").build(seed=0), torch.tensor([[1, 2, 3]])).total) < 0
    True
    """
    spec = check_model(model)
    decoder, device = decoder_of(spec), device_of(model)
    given = check_ids(tokens, vocabulary_of(decoder.embed, "the model")).to(device=device, dtype=torch.long)
    ids, real, order = flush_right(given, check_mask(mask, given))
    longest = ids.shape[1] if real is None else int(real.sum(1).max())
    limit, why = max_positions(decoder)
    if limit is not None and longest > limit:
        raise UserError(f"a text of {longest} tokens does not fit {limit} {why}", fix="use perplexity with a window")
    with eval_mode(model):
        if isinstance(spec, Seq2Seq):
            if source is None:
                raise UserError("an encoder-decoder scores a text given its source", fix="pass source=")
            read, read_mask = check_source(spec, source, source_mask, device)
            encoded = EncoderOutput(model.encode(read, read_mask), read_mask)
            hidden = hidden_states(model, ids, real, source=encoded)
        else:
            hidden = hidden_states(model, ids, real)
        found = hidden.new_zeros(ids.shape, dtype=torch.promote_types(hidden.dtype, torch.float32))
        size = max(1, PIECE // (ids.shape[0] * vocabulary_of(decoder.embed, "the model")))
        for at in range(0, ids.shape[1] - 1, size):
            stop = min(at + size, ids.shape[1] - 1)
            logits = compute_logits(model, hidden[:, at:stop]).to(found.dtype)
            chosen = ids[:, at + 1 : stop + 1]
            found[:, at + 1 : stop + 1] = logits.gather(2, chosen[..., None])[..., 0] - logits.logsumexp(-1)
    scored = torch.ones_like(ids, dtype=torch.bool) if real is None else real.clone()
    scored[:, 1:] &= True if real is None else real[:, :-1]  # its predecessor is real too
    scored[:, 0] = False
    found = found.where(scored, 0.0)
    if order is not None:  # back to the original columns
        found, scored = (
            torch.zeros_like(found).scatter(1, order, found),
            torch.zeros_like(scored).scatter(1, order, scored),
        )
    return Scored(found, scored)


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-probability of a token, with how it was measured."""

    value: float
    tokens: int  # scored
    window: int  # tokens per pass
    stride: int  # most tokens scored per pass, the others are context

    def __str__(self) -> str:
        return f"perplexity {self.value:.4g} over {self.tokens} tokens, window {self.window}, stride {self.stride}"


def perplexity(model: Any, tokens: Any, *, window: int | None = None, stride: int | None = None) -> Perplexity:
    """Perplexity of one long text (1,T), with a sliding window that advances by `stride`.

    Every token but the first is scored once, with at least window - stride tokens of context if the text has them. A
    smaller stride gives more context, costs more and gives a lower perplexity, so the stride is part of the result. By
    default the window is the number of learned positions or the whole text, the stride half of it.
    """
    spec = check_model(model)
    if isinstance(spec, Seq2Seq):
        raise UserError("perplexity reads one text", fix="use score with a source")
    given = check_ids(tokens, vocabulary_of(spec.embed, "the model"))
    if given.shape[0] != 1 or given.shape[1] < 2:
        raise UserError(f"tokens have shape {tuple(given.shape)}", fix="expected one text (1, T) of two tokens or more")
    length = given.shape[1]
    limit, why = max_positions(spec)
    window = min(length, limit or length) if window is None else window
    stride = max(1, window // 2) if stride is None else stride
    if window < 2 or (limit is not None and window > limit):
        raise UserError(f"window {window} is not between 2 and {limit or length}" + (f" {why}" if limit else ""),
                        where="perplexity", fix=f"use {limit or length}")  # fmt: skip
    if not 1 <= stride < window:
        raise UserError(f"stride {stride} is not between 1 and {window - 1}", where="perplexity",
                        fix=f"use {max(1, window // 2)}")  # fmt: skip
    total, done = 0.0, 1  # the first token has no context
    while done < length:
        stop = min(length, max(window, done + stride) if done == 1 else done + stride)
        start = max(0, stop - window)
        logprobs = score(model, given[:, start:stop]).logprobs[0]
        total += float(logprobs[done - start :].double().sum())
        done = stop
    return Perplexity(math.exp(-total / (length - 1)), length - 1, window, stride)
