"""Log-probabilities of several continuations of a prompt, for many prompts in few passes.

A decoder reads a prompt and a continuation as one text. If the input of one continuation is a prefix of another's, both
are scored from one row: single-token choices cost one row per prompt. An encoder-decoder encodes each prompt once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Model, Seq2Seq
from anyformer.generation.prompts import check_model, decoder_of, max_positions, reads_prompt_whole
from anyformer.generation.runners.eager import EncoderOutput, compute_logits, device_of, eval_mode, hidden_states

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Continuation:
    """Tokens to score after a prefix; an encoder-decoder also reads a source."""

    prefix: Ids  # at least one token
    tokens: Ids
    source: Ids = ()

    @property
    def read(self) -> Ids:
        """The decoder's input: the last token is scored, not read."""
        return self.prefix + self.tokens[:-1]


@torch.no_grad()
def score_continuations(model: Any, wanted: Sequence[Continuation], *, batch_size: int = 32) -> list[Tensor]:
    """log p of every token of each continuation given all before it, on the CPU, in float32 or better."""
    spec = check_model(model)
    found: list[Tensor] = [torch.zeros(0)] * len(wanted)
    with eval_mode(model):
        for rows in batches(share_rows(wanted), batch_size):
            hidden = read_rows(model, rows, spec)  # (B,T,D), padded on the left
            for at, row in enumerate(rows):
                for number in row.wanted:
                    found[number] = token_logprobs(model, hidden[at], len(row.ids), wanted[number])
    return found


@dataclass
class SharedRow:
    """One row of a pass, and the continuations scored from it."""

    source: Ids
    prefix: Ids
    ids: Ids
    wanted: list[int]


def share_rows(wanted: Sequence[Continuation]) -> list[SharedRow]:
    """Group continuations into few rows: one whose input is a prefix of another's shares its row."""
    order = sorted(
        range(len(wanted)), key=lambda at: (wanted[at].source, wanted[at].prefix, wanted[at].read), reverse=True
    )
    rows: list[SharedRow] = []
    for at in order:  # a prefix comes right after its extensions
        one = wanted[at]
        same = rows and (rows[-1].source, rows[-1].prefix) == (one.source, one.prefix)
        if same and rows[-1].ids[: len(one.read)] == one.read:
            rows[-1].wanted.append(at)
        else:
            rows.append(SharedRow(one.source, one.prefix, one.read, [at]))
    return rows


def batches(rows: Sequence[SharedRow], size: int) -> Iterator[list[SharedRow]]:
    """Batch rows of similar length, the longest first, so that running out of memory shows in the first pass."""
    ordered = sorted(rows, key=lambda row: (-len(row.ids), -len(row.source)))
    return (ordered[start : start + size] for start in range(0, len(ordered), size))


def read_rows(model: Any, rows: Sequence[SharedRow], spec: Model | Seq2Seq) -> Tensor:
    """The decoder's hidden states (B,T,D)."""
    device = device_of(model)
    ids, mask = pad_left([row.ids for row in rows], device)
    if isinstance(spec, Model) and reads_prompt_whole(spec):
        prefix = torch.tensor([len(row.prefix) for row in rows], device=device)
        return model.before_head(ids, mask=mask, prefix=prefix).hidden
    if isinstance(spec, Model):
        return hidden_states(model, ids, mask)
    sources = list(dict.fromkeys(row.source for row in rows))
    read, read_mask = pad_left(sources, device)
    which = torch.tensor([sources.index(row.source) for row in rows], device=device)
    memory = EncoderOutput(model.encode(read, read_mask)[which], None if read_mask is None else read_mask[which])
    return hidden_states(model, ids, mask, source=memory)


def pad_left(rows: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Left-pad rows to (B,T), with a mask; None if there is no padding."""
    length = max(map(len, rows))
    ids = torch.tensor([(0,) * (length - len(row)) + row for row in rows], device=device)
    sizes = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(length, device=device) >= length - sizes[:, None]
    return ids, None if bool(mask.all()) else mask


def token_logprobs(model: Any, hidden: Tensor, length: int, one: Continuation) -> Tensor:
    """The log-probabilities of one continuation from the hidden states (T,D) of its left-padded row."""
    first = hidden.shape[0] - length + len(one.prefix) - 1  # its successor is the first token scored
    logits = compute_logits(model, hidden[None, first : first + len(one.tokens)])[0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen = torch.tensor(one.tokens, device=logits.device)
    return (logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)).cpu()


def room_of(model: Any) -> int | None:
    """The decoder's maximal number of positions."""
    return max_positions(decoder_of(check_model(model)))[0]
