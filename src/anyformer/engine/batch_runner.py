"""Runs what the scheduler selects: prefill and decode passes over batches of sequences, sampling, and events."""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor

from anyformer import faults
from anyformer.engine.counts import Counts
from anyformer.engine.scheduler import NextWaiting, Scheduler, piece_size, sampler_of, slot_of
from anyformer.engine.sequence import Event, Finished, IsolatedGuide, NewToken, Prefilled, Sequence

log = logging.getLogger("anyformer")


class BatchRunner:
    """Chunked prefill, several prompts in one pass, and batched decoding."""

    def __init__(self, scheduler: Scheduler, counts: Counts) -> None:
        self.scheduler, self.store, self.counts = scheduler, scheduler.store, counts

    # ---------------------------------------------------------------- prefill

    def prefill(self, waiting: NextWaiting) -> int:
        """Prefill up to one chunk of prompt tokens, while there are free slots; returns how many tokens were run."""
        chunk, run = self.scheduler.chunk, 0
        budget = chunk
        while budget > 0 and (group := self.scheduler.next_prefill(waiting, budget)):
            sources = sum(one.source_tokens for one in group if not one.cached)  # encoded when their slots were taken
            sizes = [piece_size(sequence, budget) for sequence in group]
            self.prefill_group(group, sizes)
            run += sum(sizes) + sources
            # A pass costs its padded size, and at least a minimum, however short the prompts.
            budget -= max(len(group) * max(sizes) + sources, chunk // 8)
        return run

    def prefill_group(self, group: list[Sequence], sizes: list[int]) -> None:
        """Run the next pieces of some prompts; at the end of a prompt its first token is sampled."""
        try:
            faults.point("prefill")
            found = self.store.extend({
                slot_of(sequence): sequence.tokens[sequence.cached : sequence.cached + size]
                for sequence, size in zip(group, sizes, strict=True)
            })  # (T,D) each  # fmt: skip
            done: list[Sequence] = []
            last: list[Tensor] = []
            for sequence, size, hidden in zip(group, sizes, found, strict=True):
                start, sequence.cached = sequence.cached, sequence.cached + size
                if sequence.prompt_logprobs is not None and not sequence.new_tokens:
                    following = sequence.tokens[start + 1 : sequence.cached + 1]
                    sequence.prompt_logprobs.add(self.store, hidden, following)
                if sequence.cached < len(sequence.tokens):
                    self.scheduler.prefilling.appendleft(sequence)
                else:
                    done.append(sequence)
                    last.append(hidden[-1])
            if done:
                self.sample_first(done, self.store.logits(torch.stack(last)))
        except Exception as error:
            self.scheduler.isolate(group, error)

    def sample_first(self, group: list[Sequence], logits: Tensor) -> None:
        """Sample after prefill from logits (N,V): the first token, or the next one after a fault or a pause."""
        sampled = self.scheduler.sampler.sample([sampler_of(sequence) for sequence in group], logits).on_host
        now = time.monotonic()
        for sequence, new in zip(group, sampled, strict=True):
            if not sequence.new_tokens:
                self.counts.prompt_tokens += len(sequence.prompt)
                logprobs = sequence.prompt_logprobs
                self.emit(sequence, Prefilled() if logprobs is None else logprobs.event())
            self.scheduler.start_decoding(sequence)
            self.append(sequence, new, now)

    # ---------------------------------------------------------------- decode

    def decode(self) -> int:
        """Decode one token of every sequence; returns how many were generated."""
        if not self.scheduler.decoding:
            return 0
        before = self.counts.new_tokens
        for batch in self.scheduler.next_decode():
            self.decode_batch(batch)
        return self.counts.new_tokens - before

    def decode_batch(self, batch: list[Sequence]) -> None:
        """One decode step of some sequences."""
        scheduler = self.scheduler
        is_whole = batch == scheduler.decoding
        tokens = scheduler.newest if is_whole else None
        if tokens is None:
            tokens = torch.tensor([sequence.tokens[-1] for sequence in batch], device=scheduler.device)
        try:
            faults.point("decode")
            logits = self.store.step([slot_of(sequence) for sequence in batch], tokens)  # (N,V)
            sampled = scheduler.sampler.sample([sampler_of(sequence) for sequence in batch], logits)
            news = sampled.on_host
        except Exception as error:
            scheduler.isolate(batch, error)
            return
        scheduler.newest = sampled.tokens if is_whole else None
        now = time.monotonic()
        for sequence, new in zip(batch, news, strict=True):
            sequence.cached += 1
            sequence.isolated = False
            self.append(sequence, new, now)

    def append(self, sequence: Sequence, new: NewToken, now: float) -> None:
        """Append a token to one sequence, and finish it if it was the last."""
        counts, guide = self.counts, sequence.guide
        if isinstance(guide, IsolatedGuide) and guide.error is not None:
            return self.scheduler.fail(sequence, guide.error)
        if new.logprob != new.logprob:
            return self.scheduler.fail(sequence, ArithmeticError("the model's logits are not numbers"))
        if sequence.new_tokens:
            counts.between_tokens.add(now - sequence.last_token_at)
        else:
            counts.first_token.add(now - sequence.created)
        sequence.tokens.append(new.token)
        sequence.last_token_at = now
        counts.new_tokens += 1
        self.emit(sequence, new)
        try:
            reason = sequence.finish_reason(new.token)
        except Exception as error:  # from the detokenizer or a guide
            return self.scheduler.fail(sequence, error)
        if reason is not None:
            self.scheduler.end(sequence, Finished(reason))

    def emit(self, sequence: Sequence, event: Event) -> None:
        """Deliver an event; if that fails the sequence is cancelled."""
        if sequence.status == "finished":  # ended by another thread while this one hung
            return
        try:
            sequence.on_event(event)
        except Exception:
            log.warning("an event could not be delivered, its sequence is cancelled", exc_info=True)
            sequence.cancelled = True
