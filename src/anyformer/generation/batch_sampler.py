"""Sampling for a batch of sequences with different settings: each gets the token it would get by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.generation.config import DEFAULT_NEW_TOKENS, Generation
from anyformer.generation.guide import Guide
from anyformer.generation.logits import (
    NO_HISTORY,
    LogitsProcessor,
    TokenHistory,
    active_warpers,
    logits_processors,
    logits_warpers,
)
from anyformer.generation.noise import draw, to_signed, widest_float
from anyformer.generation.result import NewToken
from anyformer.generation.sampler import apply_guides, argmax


@dataclass(frozen=True)
class SampledBatch:
    """One token of each sequence, on the model's device; `on_host` copies everything to the CPU at once."""

    tokens: Tensor  # (N,)
    logprobs: Tensor  # (N,) its log-probability under the raw logits
    top_counts: Sequence[int]  # number of top tokens requested by each sequence
    top_tokens: Tensor | None = None  # (N, max of those)
    top_logprobs: Tensor | None = None

    @cached_property
    def on_host(self) -> list[NewToken]:
        """Token, log-probability and top tokens of every sequence, in one transfer."""
        parts = [self.tokens[:, None], self.logprobs[:, None]]
        if self.top_tokens is not None and self.top_logprobs is not None:
            parts += [self.top_tokens, self.top_logprobs]
        kind = widest_float(self.tokens.device)  # represents ids exactly
        found = []
        for row, count in zip(torch.cat([part.to(kind) for part in parts], 1).tolist(), self.top_counts, strict=True):
            half = len(row) // 2 + 1
            top = {int(one): value for one, value in zip(row[2 : 2 + count], row[half : half + count], strict=True)}
            found.append(NewToken(int(row[0]), row[1], top if count else None))
        return found


@dataclass(eq=False)
class SamplerState:
    """Sampling state of one sequence."""

    settings: Generation
    seed: int
    prompt_length: int
    last: int  # index of the last token that may be sampled
    processors: list[LogitsProcessor]
    guide: Guide | None = None
    count: int = 0  # tokens sampled
    ids: Tensor | None = None  # (1, capacity) prompt and output, if a processor needs them

    def process(self, logits: Tensor) -> Tensor:
        """The sequence's logits (1,V) with banned tokens at -inf and forced ones at 0."""
        logits = allowed = logits if self.guide is None else apply_guides(logits, [self.guide])
        if self.processors:
            assert self.ids is not None
            length = self.prompt_length + self.count
            history = TokenHistory(self.ids[:, :length], None, self.count, self.count == self.last)
            for process in self.processors:
                logits = process(logits, history)
        # If the processors ban everything the guide allows, the guide wins.
        return logits if self.guide is None else logits.where((logits > -torch.inf).any(-1, keepdim=True), allowed)

    def append(self, tokens: Tensor, row: int) -> None:
        """Record the token sampled in this row."""
        if self.ids is not None:
            end = self.prompt_length + self.count
            if end == self.ids.shape[1]:
                self.ids = torch.cat([self.ids, torch.zeros_like(self.ids)], 1)
            self.ids[:, end] = tokens[row]
        self.count += 1


@dataclass
class SampledGroup:
    """Sampled rows that use the same set of warpers, each with its own parameters."""

    rows: Tensor | None  # (M,) their indices; None for all
    warpers: list[LogitsProcessor]
    seeds: Tensor  # (M,)
    steps: Tensor  # (M,)

    @classmethod
    def of(cls, rows: list[int], states: Sequence[SamplerState], device: torch.device) -> SampledGroup:
        some = [states[row] for row in rows]
        return cls(
            rows=None if len(rows) == len(states) else torch.tensor(rows, device=device),
            warpers=logits_warpers(*(one.settings for one in some), device=device),
            seeds=torch.tensor([one.seed for one in some], device=device),
            steps=torch.tensor([one.count for one in some], device=device),
        )  # fmt: skip

    def draw(self, logits: Tensor) -> Tensor:
        """Draw one token per row (M,) from logits (M,V)."""
        for warp in self.warpers:
            logits = warp(logits, NO_HISTORY)
        found = draw(logits, self.seeds, self.steps)
        self.steps = self.steps + 1
        return found


@dataclass
class SamplingPlan:
    """What sampling for the same sequences shares across steps; rebuilt when the batch changes."""

    states: list[SamplerState]
    processed: list[int]  # rows with processors or a guide
    groups: list[SampledGroup]
    top_counts: list[int]

    @classmethod
    def of(cls, states: Sequence[SamplerState], device: torch.device) -> SamplingPlan:
        alike: dict[tuple[bool, ...], list[int]] = {}
        for row, state in enumerate(states):
            if state.settings.sampled:
                alike.setdefault(active_warpers(state.settings), []).append(row)
        return cls(
            states=list(states),
            processed=[row for row, state in enumerate(states) if state.processors or state.guide is not None],
            groups=[SampledGroup.of(rows, states, device) for rows in alike.values()],
            top_counts=[state.settings.logprobs for state in states],
        )


class BatchSampler:
    """Samples for a changing batch of sequences; `add` creates the `SamplerState` of each."""

    def __init__(self, vocab: int, device: torch.device | str = "cpu") -> None:
        self.vocab, self.device = vocab, torch.device(device)
        self.plan: SamplingPlan | None = None

    def add(self, settings: Generation, prompt: Sequence[int], seed: int, guide: Guide | None = None) -> SamplerState:
        """Create the sampling state of a sequence with this prompt and seed."""
        if settings.num_beams > 1:
            raise UserError("beam search compares texts, sequences are sampled one by one", where="Generation",
                            fix="use num_beams=1")  # fmt: skip
        processors = logits_processors(settings, self.vocab, self.device)
        most = settings.max_new_tokens
        if most is None:
            most = DEFAULT_NEW_TOKENS if settings.max_length is None else settings.max_length - len(prompt)
        ids = None
        if processors:
            ids = torch.zeros(1, len(prompt) + most, dtype=torch.long, device=self.device)
            ids[0, : len(prompt)] = torch.tensor(prompt, device=self.device)
        return SamplerState(settings, to_signed(seed), len(prompt), most - 1, processors, guide, ids=ids)

    @torch.no_grad()
    def sample(self, states: Sequence[SamplerState], logits: Tensor) -> SampledBatch:
        """The next token of each sequence from the model's logits (N,V); ties go to the lowest id."""
        if self.plan is None or self.plan.states != list(states):
            self.plan = SamplingPlan.of(states, self.device)
        plan = self.plan
        raw = logits.to(torch.promote_types(logits.dtype, torch.float32))
        processed = raw.clone() if plan.processed else raw
        for row in plan.processed:
            processed[row] = plan.states[row].process(raw[row : row + 1])[0]
        tokens = sample_tokens(plan, processed)
        norm = raw.logsumexp(-1)
        sampled = SampledBatch(tokens, raw.gather(1, tokens[:, None])[:, 0] - norm, plan.top_counts)
        most = max(plan.top_counts)
        if most:
            best = raw.topk(most)
            sampled = replace(sampled, top_tokens=best.indices, top_logprobs=best.values - norm[:, None])
        for row, state in enumerate(plan.states):
            if state.guide is not None:  # only a guide needs the token on the CPU
                state.guide.accept(sampled.on_host[row].token)
            state.append(sampled.tokens, row)
        return sampled


def sample_tokens(plan: SamplingPlan, logits: Tensor) -> Tensor:
    """One token per row (N,): greedy or sampled by its settings."""
    if len(plan.groups) == 1 and plan.groups[0].rows is None:
        return plan.groups[0].draw(logits)
    tokens = argmax(logits)
    for group in plan.groups:
        assert group.rows is not None
        tokens[group.rows] = group.draw(logits[group.rows])
    return tokens
