"""How the rows of one call choose their next token: what is allowed, a narrower choice, the most probable or a draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.generation.config import Generation
from anyformer.generation.guide import Guide
from anyformer.generation.logits import Written, narrowing, rules
from anyformer.generation.noise import draw, row_seeds

Guides = Sequence[Guide | None]


class Choice:
    """The texts as far as they stand, and what decides about the next token of each.

    A choice is a function of a row's scores, its text, its seed and the number of the step, and of nothing else.
    """

    def __init__(
        self, settings: Generation, ids: Tensor, real: Tensor | None, new: int, vocab: int, guides: Guides | None
    ) -> None:
        copies, device = settings.num_return_sequences, ids.device
        self.prompt, self.limit = ids.shape[1], new
        self.ids = torch.full((ids.shape[0] * copies, self.prompt + new), settings.padding, device=device)  # (R,L)
        self.ids[:, : self.prompt] = ids.repeat_interleave(copies, 0)
        self.real = None
        if real is not None:
            self.real = torch.ones_like(self.ids, dtype=torch.bool)
            self.real[:, : self.prompt] = real.repeat_interleave(copies, 0)
        self.rules = rules(settings, vocab, device)
        self.narrowing = narrowing(settings) if settings.sampled else []
        self.seeds = row_seeds(settings.seed, ids.shape[0], copies, device) if settings.sampled else None
        self.guides = checked(guides, len(self.ids))

    def choose(self, raw: Tensor, rows: slice, count: int, guides: Guides | None = None) -> Tensor:
        """The tokens (N,) that follow the first `count` of some rows, by scores (N,V); ties go to the lowest id."""
        free = raw if guides is None else guided(raw, guides)
        scores, upto = free, self.prompt + count
        if self.rules or self.narrowing:
            real = None if self.real is None else self.real[rows, :upto]
            text = Written(self.ids[rows, :upto], real, count, count == self.limit - 1)
            for apply in self.rules:
                scores = apply(scores, text)
            if guides is not None:  # where the rules leave nothing of what a guide allows, the guide is obeyed
                scores = scores.where((scores > -torch.inf).any(-1, keepdim=True), free)
            for apply in self.narrowing:
                scores = apply(scores, text)
        return most_probable(scores) if self.seeds is None else draw(scores, self.seeds[rows], count)


def checked(guides: Guides | None, rows: int) -> list[Guide | None] | None:
    """One guide a row; a guide is in the middle of its own text and cannot serve two."""
    if guides is None:
        return None
    if len(guides) != rows:
        raise UserError(f"{len(guides)} guides for {rows} texts", where="guide", fix="give one for each, or None")
    one_each = [id(guide) for guide in guides if guide is not None]
    if len(set(one_each)) < len(one_each):
        raise UserError("one guide serves two texts", where="guide", fix="make one for each")
    return list(guides)


def guided(scores: Tensor, guides: Guides) -> Tensor:
    """Scores (N,V) with -inf for the tokens that a row's guide does not allow."""
    found = scores.clone()
    for row, guide in enumerate(guides):
        if guide is not None:
            allowed = guide.mask()[: scores.shape[1]].to(scores.device)
            found[row, : len(allowed)].masked_fill_(~allowed, -torch.inf)
            found[row, len(allowed) :] = -torch.inf
    return found


def most_probable(scores: Tensor) -> Tensor:
    """The best token of each row, (N,); ties go to the lowest id."""
    if scores.device.type != "cpu":
        return scores.argmax(-1)
    return torch.from_numpy(scores.numpy().argmax(-1))  # ten times as fast as torch's own
