"""Results of decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anyformer.errors import UserError

Reason = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Step:
    """One decode step: a token of every row."""

    tokens: Tensor  # (R,) padding if a row has ended
    logprobs: Tensor  # (R,) log-probability under the raw logits, 0 if a row has ended
    live: Tensor  # (R,) whether the row had not ended before this step
    top_tokens: Tensor | None = None  # (R,n) the most probable ones, if requested
    top_logprobs: Tensor | None = None  # (R,n)


@dataclass(frozen=True)
class Generated:
    """Outputs, one per row; the `num_return_sequences` of a prompt are adjacent, best first under beam search."""

    ids: Tensor  # (R, prompt + N) prompt and output; for an encoder-decoder its start token and output
    prompt: int  # columns of `ids` before the output
    lengths: Tensor  # (R,) output tokens, including the end token
    logprobs: Tensor  # (R,N) log-probability of each token under the raw logits, 0 after the end
    scores: Tensor  # (R,) sum of log-probabilities; under beam search divided by length ** length_penalty
    reasons: list[Reason]  # why each row ended
    top_tokens: Tensor | None = None  # (R,N,n)
    top_logprobs: Tensor | None = None  # (R,N,n)
    passes: Tensor | None = None  # (R,) under speculative decoding: number of passes of the model

    @property
    def new(self) -> Tensor:
        """The new tokens, (R,N), padded after the end."""
        return self.ids[:, self.prompt :]

    def rows(self) -> Iterator[list[int]]:
        """The new tokens of each row as a list without padding, including the end token."""
        for row, length in zip(self.new.tolist(), self.lengths.tolist(), strict=True):
            yield row[:length]


def find_reasons(by_eos: Tensor, by_stop: Tensor) -> list[Reason]:
    """The finish reason of each row."""
    return [
        "eos" if eos else "stop" if stop else "length"
        for eos, stop in zip(by_eos.tolist(), by_stop.tolist(), strict=True)
    ]


def collect_steps(
    ids: Tensor, prompt: int, steps: Sequence[Step], reasons: list[Reason], passes: Tensor | None = None
) -> Generated:
    """The sequences so far, from their steps; `ids` (R,L) is copied."""
    if not steps:
        raise UserError("nothing has been written yet", fix="iterate first, or call generate")
    logprobs = torch.stack([step.logprobs for step in steps], 1)
    top_tokens = [step.top_tokens for step in steps if step.top_tokens is not None]
    top_logprobs = [step.top_logprobs for step in steps if step.top_logprobs is not None]
    return Generated(
        ids=ids[:, : prompt + len(steps)].clone(), prompt=prompt, logprobs=logprobs, scores=logprobs.sum(1),
        lengths=torch.stack([step.live for step in steps], 1).sum(1), reasons=reasons, passes=passes,
        top_tokens=torch.stack(top_tokens, 1) if top_tokens else None,
        top_logprobs=torch.stack(top_logprobs, 1) if top_logprobs else None,
    )  # fmt: skip


def is_one_of(tokens: Tensor, ids: Tensor) -> Tensor:
    """Whether each token is one of these ids."""
    return (tokens[..., None] == ids).any(-1) if len(ids) else torch.zeros_like(tokens, dtype=torch.bool)


@dataclass(frozen=True)
class NewToken:
    """One new token of a sequence."""

    token: int
    logprob: float
    top: dict[int, float] | None = None  # the most probable ones, best first, if requested
