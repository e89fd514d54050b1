"""Beam search over one batch, with the same tokens and scores as transformers.

Every prompt has `num_beams` unfinished beams and as many finished ones. A step takes the best continuations of all
beams: those that end become finished hypotheses with the score log p / length ** length_penalty, if they are among the
best `num_beams`; of the others the best `num_beams` continue. A prompt is done when none of its beams can still beat
its worst finished hypothesis: compared at the current length (`early_stopping=False`), as soon as there are `num_beams`
finished ones (True), or at the most favourable length ("never").

A score of -inf marks an empty slot, so that vocabularies smaller than the number of beams work too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.config import Generation
from anyformer.generation.logits import TokenHistory, logits_processors
from anyformer.generation.prompts import GenerationInputs
from anyformer.generation.result import Generated, find_reasons, is_one_of


@dataclass
class Candidates:
    """Hypotheses of every prompt, best first: scores (B,W) and tokens (B,W,N)."""

    scores: Tensor  # (B,W)
    tokens: Tensor  # (B,W,N)
    logprobs: Tensor  # (B,W,N) per token, under the raw logits
    lengths: Tensor  # (B,W)
    by_eos: Tensor  # (B,W)
    by_stop: Tensor  # (B,W)

    @classmethod
    def empty(cls, batch: int, width: int, length: int, padding: int, like: Tensor) -> Candidates:
        """All slots empty."""
        flags = torch.zeros(batch, width, dtype=torch.bool, device=like.device)
        return cls(
            scores=like.new_full((batch, width), -torch.inf),
            tokens=torch.full((batch, width, length), padding, device=like.device),
            logprobs=like.new_zeros(batch, width, length),
            lengths=torch.zeros(batch, width, dtype=torch.long, device=like.device), by_eos=flags, by_stop=flags,
        )  # fmt: skip

    def gather(self, where: Tensor) -> Candidates:
        """The candidates at these indices (B,K)."""
        long = where[..., None].expand(-1, -1, self.tokens.shape[2])
        return Candidates(
            self.scores.gather(1, where), self.tokens.gather(1, long), self.logprobs.gather(1, long),
            self.lengths.gather(1, where), self.by_eos.gather(1, where), self.by_stop.gather(1, where),
        )  # fmt: skip

    def take_best(self, scores: Tensor, width: int) -> tuple[Candidates, Tensor]:
        """The `width` best by the given scores (B,K), and their indices."""
        top = scores.topk(width)
        found = self.gather(top.indices)
        found.scores = top.values
        return found, top.indices

    def concat(self, other: Candidates) -> Candidates:
        """Concatenate both along W."""
        return Candidates(*(torch.cat([getattr(self, name), getattr(other, name)], 1) for name in vars(self)))


def beam_search(store: SequenceStore, logits: Tensor, inputs: GenerationInputs, settings: Generation) -> Generated:
    """The `num_return_sequences` best outputs of every prompt; `logits` (B,V) are those of the first new token."""
    prompt, real, limit, stops = inputs.ids, inputs.mask, inputs.new, inputs.stops
    batch, width, vocab = prompt.shape[0], settings.num_beams, logits.shape[1]
    device, exact = prompt.device, torch.promote_types(logits.dtype, torch.float32)
    ends = torch.tensor([one for one in settings.ends if one < vocab], dtype=torch.long, device=device)
    wide = min(max(2, 1 + len(settings.ends)) * width, width * vocab)  # at least `width` of them do not end
    processors = logits_processors(settings, vocab, device)
    first_row = torch.arange(batch, device=device)[:, None] * width
    beams = Candidates.empty(batch, width, limit, settings.padding, logits.new_zeros((), dtype=exact))
    finished = Candidates.empty(batch, width, limit, settings.padding, beams.scores)
    beams.scores[:, 0] = 0.0  # all beams are identical at first: keep one
    sequences = store.fork(width)
    logits = logits.repeat_interleave(width, 0)
    heads = prompt.repeat_interleave(width, 0)
    seen = None if real is None else real.repeat_interleave(width, 0)
    open_ = torch.ones(batch, 1, dtype=torch.bool, device=device)  # prompts that may still improve
    for step in range(limit):
        own = logits.to(exact).log_softmax(-1)  # (B*W,V)
        scores = own
        if processors:
            history = TokenHistory(
                torch.cat([heads, beams.tokens[..., :step].flatten(0, 1)], 1),
                None if seen is None else torch.nn.functional.pad(seen, (0, step), value=True),
                step, step == limit - 1,
            )  # fmt: skip
            for process in processors:
                scores = process(scores, history)
        if settings.renormalize_logits:
            scores = scores.log_softmax(-1)
        totals = (beams.scores[..., None] + scores.view(batch, width, vocab)).flatten(1)  # (B,W*V)
        total, place = totals.topk(wide)
        origin, token = place // vocab, place % vocab
        taken = beams.gather(origin)
        taken.tokens[..., step] = token
        taken.logprobs[..., step] = own.view(batch, -1).gather(1, place)
        taken.lengths = taken.lengths + 1
        taken.by_eos = is_one_of(token, ends)
        if stops is not None:
            flat = taken.tokens[..., : step + 1].flatten(0, 1)
            taken.by_stop = stops.end(flat, (total > -torch.inf).flatten()).view(batch, wide) & ~taken.by_eos
        hit = taken.by_eos | taken.by_stop if step < limit - 1 else torch.ones_like(taken.by_eos)
        # Only the best `width` may finish; the others are there so that enough continue.
        among = torch.arange(wide, device=device) < width
        ending = (total / (step + 1) ** settings.length_penalty).where(hit & among & open_, -torch.inf)
        both = finished.concat(taken)
        finished, _ = both.take_best(torch.cat([finished.scores, ending], 1), width)
        if step == limit - 1:
            break
        beams, where = taken.take_best(total.where(~hit, -torch.inf), width)
        open_ = open_ & can_improve(beams, finished, step + 1, limit, settings)
        if not bool(open_.any()):
            break
        rows = (origin.gather(1, where) + first_row).flatten()
        store.select(sequences, rows)
        logits = store.step(sequences, beams.tokens[..., step].flatten())
    return collect_best(finished, prompt, settings)


def can_improve(beams: Candidates, finished: Candidates, length: int, limit: int, settings: Generation) -> Tensor:
    """Which prompts (B,1) could still beat their worst finished hypothesis."""
    full = (finished.scores > -torch.inf).all(1, keepdim=True)
    going = beams.scores[:, :1] > -torch.inf
    if settings.early_stopping is True:
        return going & ~full
    longest = settings.early_stopping == "never" and settings.length_penalty > 0
    hoped = beams.scores[:, :1] / (limit if longest else length) ** settings.length_penalty
    return going & (~full | (hoped > finished.scores[:, -1:]))


def collect_best(finished: Candidates, prompt: Tensor, settings: Generation) -> Generated:
    """The best hypotheses of each prompt as rows, cut to the longest."""
    count = settings.num_return_sequences
    empty = finished.scores == -torch.inf  # fewer hypotheses than slots: small vocabularies
    finished.lengths = finished.lengths.masked_fill(empty, 0)
    finished.tokens = finished.tokens.masked_fill(empty[..., None], settings.padding)
    finished.logprobs = finished.logprobs.masked_fill(empty[..., None], 0.0)
    length = int(finished.lengths[:, :count].max())
    tokens = finished.tokens[:, :count, :length].flatten(0, 1)
    return Generated(
        ids=torch.cat([prompt.repeat_interleave(count, 0), tokens], 1),
        prompt=prompt.shape[1],
        lengths=finished.lengths[:, :count].flatten(),
        logprobs=finished.logprobs[:, :count, :length].flatten(0, 1),
        scores=finished.scores[:, :count].flatten(),
        reasons=find_reasons(finished.by_eos[:, :count].flatten(), finished.by_stop[:, :count].flatten()),
    )
