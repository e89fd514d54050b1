"""What decoding gives back."""

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
    """One token of every row."""

    tokens: Tensor  # (R,) padding where a row has ended
    logprobs: Tensor  # (R,) the model's own log-probability of it, 0 where a row has ended
    live: Tensor  # (R,) whether the row had not ended before it
    top_tokens: Tensor | None = None  # (R,n) the most probable ones, where asked for
    top_logprobs: Tensor | None = None  # (R,n)


@dataclass(frozen=True)
class Generated:
    """Texts, one a row; `num_return_sequences` of a prompt stand next to each other, best first under beam search."""

    ids: Tensor  # (R, prompt + N) prompt and text; for an encoder-decoder its start token and text
    prompt: int  # columns of `ids` before the text
    lengths: Tensor  # (R,) tokens written, the ending one included
    logprobs: Tensor  # (R,N) the model's own log-probability of each token, 0 after the end
    scores: Tensor  # (R,) sum of log-probabilities; under beam search divided by length ** length_penalty
    reasons: list[Reason]  # why each row ended
    top_tokens: Tensor | None = None  # (R,N,n)
    top_logprobs: Tensor | None = None  # (R,N,n)
    passes: Tensor | None = None  # (R,) where tokens were proposed: in how many passes of the model a text was written

    @property
    def new(self) -> Tensor:
        """What was written, (R,N), padded after the end."""
        return self.ids[:, self.prompt :]

    def rows(self) -> Iterator[list[int]]:
        """What was written, a list of ids a row without padding; the ending token is part of it."""
        for row, length in zip(self.new.tolist(), self.lengths.tolist(), strict=True):
            yield row[:length]


def find_reasons(by_eos: Tensor, by_stop: Tensor) -> list[Reason]:
    """One word a row, from which rows ended by which."""
    return [
        "eos" if eos else "stop" if stop else "length"
        for eos, stop in zip(by_eos.tolist(), by_stop.tolist(), strict=True)
    ]


def collect_steps(
    ids: Tensor, prompt: int, steps: Sequence[Step], reasons: list[Reason], passes: Tensor | None = None
) -> Generated:
    """The sequences as far as they have come, from their steps; `ids` (R,L) is copied."""
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
    """Whether each token is among a few ids."""
    return (tokens[..., None] == ids).any(-1) if len(ids) else torch.zeros_like(tokens, dtype=torch.bool)


@dataclass(frozen=True)
class NewToken:
    """One more token."""

    token: int
    logprob: float
    top: dict[int, float] | None = None  # the most probable ones, best first, where asked for
