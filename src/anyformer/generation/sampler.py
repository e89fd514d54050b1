"""Sampling for the rows of one call: guides and processors, warpers, then argmax or a sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.generation.config import Generation
from anyformer.generation.guide import Guide
from anyformer.generation.logits import TokenHistory, logits_processors, logits_warpers
from anyformer.generation.noise import draw, row_seeds

Guides = Sequence[Guide | None]


class Sampler:
    """The tokens so far, and the sampling of the next token of each row.

    A sample is a function of only a row's logits, its tokens, its seed and the step number.
    """

    def __init__(
        self, settings: Generation, ids: Tensor, mask: Tensor | None, new: int, vocab: int, guides: Guides | None
    ) -> None:
        copies, device = settings.num_return_sequences, ids.device
        self.prompt, self.limit = ids.shape[1], new
        self.ids = torch.full((ids.shape[0] * copies, self.prompt + new), settings.padding, device=device)  # (R,L)
        self.ids[:, : self.prompt] = ids.repeat_interleave(copies, 0)
        self.mask = None
        if mask is not None:
            self.mask = torch.ones_like(self.ids, dtype=torch.bool)
            self.mask[:, : self.prompt] = mask.repeat_interleave(copies, 0)
        self.processors = logits_processors(settings, vocab, device)
        self.warpers = logits_warpers(settings) if settings.sampled else []
        self.seeds = row_seeds(settings.seed, ids.shape[0], copies, device) if settings.sampled else None
        self.guides = check_guides(guides, len(self.ids))

    def sample(self, raw: Tensor, rows: slice, count: int, guides: Guides | None = None) -> Tensor:
        """The tokens (N,) that follow the first `count` of some rows, from logits (N,V); ties go to the lowest id."""
        allowed = raw if guides is None else apply_guides(raw, guides)
        logits, upto = allowed, self.prompt + count
        if self.processors or self.warpers:
            mask = None if self.mask is None else self.mask[rows, :upto]
            history = TokenHistory(self.ids[rows, :upto], mask, count, count == self.limit - 1)
            for process in self.processors:
                logits = process(logits, history)
            if guides is not None:  # if the processors ban everything a guide allows, the guide wins
                logits = logits.where((logits > -torch.inf).any(-1, keepdim=True), allowed)
            for warp in self.warpers:
                logits = warp(logits, history)
        return argmax(logits) if self.seeds is None else draw(logits, self.seeds[rows], count)


def check_guides(guides: Guides | None, rows: int) -> list[Guide | None] | None:
    """Check that there is one guide per row; a guide holds the state of one output and cannot be shared."""
    if guides is None:
        return None
    if len(guides) != rows:
        raise UserError(f"{len(guides)} guides for {rows} texts", where="guide", fix="give one for each, or None")
    one_each = [id(guide) for guide in guides if guide is not None]
    if len(set(one_each)) < len(one_each):
        raise UserError("one guide serves two texts", where="guide", fix="make one for each")
    return list(guides)


def apply_guides(logits: Tensor, guides: Guides) -> Tensor:
    """Mask the tokens of logits (N,V) that a row's guide does not allow with -inf."""
    found = logits.clone()
    for row, guide in enumerate(guides):
        if guide is not None:
            allowed = guide.mask()[: logits.shape[1]].to(logits.device)
            found[row, : len(allowed)].masked_fill_(~allowed, -torch.inf)
            found[row, len(allowed) :] = -torch.inf
    return found


def argmax(logits: Tensor) -> Tensor:
    """The most probable token of each row, (N,); ties go to the lowest id."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.from_numpy(logits.numpy().argmax(-1))  # ten times as fast as torch's own
