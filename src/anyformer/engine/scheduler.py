"""The scheduler: which prompts are prefilled, which sequences decode together, pausing, resuming and ending."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.engine.counts import Counts
from anyformer.engine.sequence import Event, Failed, Finished, PromptLogprobs, Sequence
from anyformer.errors import UserError
from anyformer.generation.batch_sampler import BatchSampler, SamplerState
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.prompts import decoder_of, vocabulary_of
from anyformer.generation.runners.eager import device_of

log = logging.getLogger("anyformer")
CALM = 256  # steps without a fault after which the batch limit is doubled again
NextWaiting = Callable[[int | None], Sequence | None]  # the argument limits the tokens to prefill


class Scheduler:
    """Sequences that have a slot, or were preempted. Runs only on the engine's thread.

    Every sequence ends through `end`, which frees the slot first. A fault in one sequence's own work ends that
    sequence. After a fault in a batch every sequence of it is suspect: each is prefilled again from its tokens and
    takes its next step by itself, which isolates the failing one and costs the others only time.

    A sequence whose client reads too slowly is paused without cost to the others, and preempted if the store can
    resume it from its prefix later.
    """

    def __init__(
        self, store: SequenceStore, counts: Counts, chunk: int, on_end: Callable[[Sequence, Event], None]
    ) -> None:
        self.store, self.counts, self.chunk, self.on_end = store, counts, chunk, on_end
        self.device = device_of(store.model)
        self.sampler = BatchSampler(vocabulary_of(decoder_of(store.model.spec).embed, "the model"), self.device)
        self.prefilling: deque[Sequence] = deque()
        self.decoding: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.newest: Tensor | None = None  # (N,) the newest tokens of `decoding`, if already on the device
        self.short_next = False
        self.batch_limit, self.calm_steps = store.capacity, 0

    @property
    def active(self) -> int:
        """Number of sequences in prefill or decode."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def sequences(self) -> list[Sequence]:
        return [*self.prefilling, *self.decoding, *self.paused]

    # ---------------------------------------------------------------- what to prefill

    def next_prefill(self, waiting: NextWaiting, budget: int) -> list[Sequence]:
        """Sequences for one prefill pass of at most `budget` tokens: the next one, and others that fit."""
        group: list[Sequence] = []
        width = 0
        while (sequence := self.next_sequence(waiting)) is not None:
            rest, size = len(sequence.tokens) - sequence.cached, piece_size(sequence, budget)
            by_itself = sequence.isolated or not self.store.batches_prefill
            if group:
                fits = not by_itself and size == rest and (len(group) + 1) * max(width, size) <= budget
            else:
                # A small piece of a long prompt costs nearly as much as a chunk.
                fits = budget >= self.chunk // 4 or size == rest
            if not fits:
                self.prefilling.appendleft(sequence)
                break
            group.append(sequence)
            width = max(width, size)
            if by_itself or (len(group) + 1) * width > budget:
                break
        return group

    def next_sequence(self, waiting: NextWaiting) -> Sequence | None:
        """The next sequence to prefill: long prompts in order, alternating with short ones, so that neither starves."""
        if (sequence := self.resume_preempted()) is not None:
            return sequence
        self.short_next = not self.short_next
        if self.prefilling and not self.short_next:
            return self.prefilling.popleft()
        while self.store.available and (sequence := waiting(self.chunk if self.prefilling else None)) is not None:
            if self.admit(sequence):
                return sequence
        return self.prefilling.popleft() if self.prefilling else None

    def admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a slot; if that fails, end it and return False."""
        self.counts.queued.add(time.monotonic() - sequence.created)
        sequence.status = "prefill"
        try:
            seed = sequence.settings.seed
            assert isinstance(seed, int)
            sequence.sampler = self.sampler.add(sequence.settings, sequence.tokens, seed, sequence.guide)
            self.take_slot(sequence)
        except Exception as error:
            self.fail(sequence, error)
            return False
        return True

    def take_slot(self, sequence: Sequence) -> None:
        """Take a slot, reusing a cached prefix if there is one."""
        # Prompt log-probabilities need the whole prompt to be run: use a private scope, so that no prefix is reused.
        scope = sequence.scope if sequence.prompt_logprobs is None else f"{sequence.scope}\0{sequence.number}"
        sequence.slot, sequence.cached = self.store.add(sequence.tokens, source=sequence.source, scope=scope)
        self.counts.reused_tokens += sequence.cached

    # ---------------------------------------------------------------- what to decode

    def next_decode(self) -> list[list[Sequence]]:
        """The batches of one decode step: all sequences in one, or smaller ones after a fault."""
        self.calm_steps += 1
        if self.calm_steps == CALM:
            self.batch_limit, self.calm_steps = min(2 * self.batch_limit, self.store.capacity), 0
        isolated = [sequence for sequence in self.decoding if sequence.isolated]
        others = [sequence for sequence in self.decoding if not sequence.isolated]
        batches = [others[at : at + self.batch_limit] for at in range(0, len(others), self.batch_limit)]
        return [*batches, *([sequence] for sequence in isolated)]

    def start_decoding(self, sequence: Sequence) -> None:
        """Move a prefilled sequence to decoding."""
        sequence.status = "decode"
        self.decoding.append(sequence)
        self.newest = None

    # ---------------------------------------------------------------- clients that leave or are behind

    def sweep(self, now: float) -> None:
        """End cancelled and timed-out sequences, and pause or resume sequences by their clients' speed."""
        for sequence in self.sequences:
            if sequence.is_expired(now):
                self.end(sequence, Finished("cancelled" if sequence.cancelled else "deadline"))
        for sequence in [sequence for sequence in self.decoding if sequence.paused]:
            self.pause(sequence)
        for sequence in [one for one in self.paused if one.slot is not None and not one.paused]:
            self.paused.remove(sequence)
            self.resume(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Pause a sequence, and preempt its slot if the store can resume it later."""
        self.decoding.remove(sequence)
        self.newest = None
        self.paused.append(sequence)
        if self.store.can_resume:
            self.free_slot(sequence, keep=True)

    def resume(self, sequence: Sequence) -> None:
        """Resume a paused sequence that kept its slot."""
        sequence.last_token_at = time.monotonic()
        self.start_decoding(sequence)

    def resume_preempted(self) -> Sequence | None:
        """A preempted sequence whose client has caught up, admitted again; its prefix is reused if still cached."""
        for sequence in self.paused:
            if not sequence.paused and sequence.slot is None and self.store.available:
                self.paused.remove(sequence)
                sequence.last_token_at = time.monotonic()
                try:
                    self.take_slot(sequence)
                    return sequence
                except Exception as error:
                    self.fail(sequence, error)
                    return self.resume_preempted()
        return None

    # ---------------------------------------------------------------- faults and ends

    def isolate(self, batch: list[Sequence], error: Exception) -> None:
        """Handle a failed pass: a single sequence is the cause; several are each run alone to find it."""
        if len(batch) > 1 and batch[0] in self.decoding:  # it may have run out of memory: use smaller batches
            self.batch_limit, self.calm_steps = max(1, len(batch) // 2), 0
        batch = [sequence for sequence in batch if sequence.slot is not None]  # some may have ended before the fault
        if len(batch) == 1:
            return self.fail(batch[0], error)
        log.warning(
            "a batch of %d sequences failed (%s) and is repeated one by one", len(batch), type(error).__name__
        )  # fmt: skip
        self.newest = None
        for sequence in batch:  # free all of them first: none may reuse the prefix of a suspect one
            self.remove(sequence)
            self.free_slot(sequence, keep=False)
        for sequence in batch:
            sequence.isolated, sequence.status = True, "prefill"
            if sequence.prompt_logprobs is not None and not sequence.new_tokens:
                sequence.prompt_logprobs = PromptLogprobs(sequence.prompt_logprobs.top_count)
            try:
                self.take_slot(sequence)
            except Exception as again:
                self.fail(sequence, again)
            else:
                self.prefilling.append(sequence)

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence by its own error; a broken device affects all sequences, and its error is raised."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        log.warning("a sequence failed: %s", error, exc_info=None if isinstance(error, UserError) else error)
        # A traceback would keep its frames' tensors alive as long as the event.
        self.end(sequence, Failed(error.with_traceback(None)))

    def end(self, sequence: Sequence, event: Finished | Failed) -> None:
        """End a sequence; its slot is freed before the event is delivered."""
        self.remove(sequence)
        self.release(sequence, keep=isinstance(event, Finished) and sequence.prompt_logprobs is None)
        self.on_end(sequence, event)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from its queue."""
        if sequence in self.decoding:
            self.newest = None
        for line in (self.decoding, self.prefilling, self.paused):
            if sequence in line:
                line.remove(sequence)

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Free a sequence's slot and sampler."""
        sequence.sampler = None
        if sequence.slot is not None:
            self.free_slot(sequence, keep=keep)

    def free_slot(self, sequence: Sequence, *, keep: bool) -> None:
        slot, sequence.slot = slot_of(sequence), None
        self.store.free(slot, keep=keep)

    def release_all(self) -> None:
        """Free all slots, without delivering events."""
        for sequence in self.sequences:
            self.release(sequence, keep=False)
        for line in (self.prefilling, self.decoding, self.paused):
            line.clear()
        self.newest = None


def slot_of(sequence: Sequence) -> int:
    """The slot of a sequence that has one."""
    assert sequence.slot is not None
    return sequence.slot


def sampler_of(sequence: Sequence) -> SamplerState:
    """The sampler state of a sequence that was admitted."""
    assert sequence.sampler is not None
    return sequence.sampler


def piece_size(sequence: Sequence, budget: int) -> int:
    """Prompt tokens to run next within a pass's token budget, which includes the encoder's source tokens."""
    source = 0 if sequence.cached else sequence.source_tokens
    return min(len(sequence.tokens) - sequence.cached, max(1, budget - source))
