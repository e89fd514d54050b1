"""Engines under test: sequences that remember their events, stores that fail on purpose, and what must hold at rest."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anyformer import preset
from anyformer.engine.engine import Engine
from anyformer.engine.sequence import Event, Failed, Finished, NewToken, Sequence
from anyformer.generation import Generation, generate
from anyformer.generation.cache.open_store import open_serving_store
from anyformer.generation.cache.store import Added, SequenceStore, Source
from tests.generation.nets import build


@cache
def net(name: str) -> Any:
    """A tiny model whose texts neither repeat at once nor leave any doubt."""
    return build(preset(name))


class Told(list[Event]):
    """All that a job was told, in order."""

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self if isinstance(event, NewToken)]

    @property
    def last(self) -> list[Event]:
        """Events after which nothing may come."""
        return [event for event in self if isinstance(event, Finished | Failed)]

    @property
    def reason(self) -> str:
        """Why it ended, once it has, once."""
        assert len(self.last) == 1 and self[-1] is self.last[0], f"told {self}"
        end = self.last[0]
        return end.reason if isinstance(end, Finished) else type(end.error).__name__  # type: ignore[union-attr]


def job(tokens: abc.Sequence[int], settings: Generation | None = None, *, new: int = 6, **more: Any) -> Sequence:
    """A job that gathers what it is told in `tell.__self__`."""
    return Sequence(tokens, settings or Generation(max_new_tokens=new), Told().append, **more)


def told(job: Sequence) -> Told:
    return job.on_event.__self__  # type: ignore[attr-defined, no-any-return]


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


def turns(engine: Engine, until: Callable[[], bool] | None = None, most: int = 2_000) -> int:
    """Run the loop by hand, without its thread, until all is over or something is true; how many turns."""
    with torch.no_grad():
        for count in range(most):
            if not engine.in_flight if until is None else until():
                return count
            engine.step()
    raise AssertionError("the engine does not come to an end")


def at_rest(engine: Engine) -> None:
    """What must hold when nothing is left: every row free, nothing in line, every job counted once."""
    counts = engine.counts
    assert not engine.in_flight and counts.in_flight == 0
    assert (engine.waiting.length, engine.waiting.cost, engine.calls.length, engine.calls.cost) == (0, 0, 0, 0)
    assert counts.accepted == counts.finished
    if engine.scheduler is not None and engine.store is not None:
        assert engine.store.available == engine.store.capacity
        assert engine.scheduler.active == 0 and not engine.scheduler.paused


@contextmanager
def running(store: SequenceStore | None, **settings: Any) -> Iterator[Engine]:
    """An engine that works while it lasts; afterwards it must be at rest."""
    engine = Engine(store, **settings)
    engine.start()
    try:
        yield engine
        assert engine.broken is None
    finally:
        engine.stop()
    at_rest(engine)


def alone(net: Any, work: Sequence) -> list[int]:
    """What `generate` writes for a job by itself."""
    given = work.prompt if work.source is None else work.source
    return generated(net, tuple(given), work.settings)


@cache
def generated(net: Any, given: tuple[int, ...], settings: Generation) -> list[int]:
    return next(iter(generate(net, torch.tensor([given]), settings=settings).rows()))


class Faulty(SequenceStore):
    """A store that raises when a sequence that begins with `mark` takes part in what `when` names."""

    def __init__(
        self, model: Any, capacity: int, *, when: str, mark: int, error: type[Exception] = RuntimeError
    ) -> None:
        self.inner = open_serving_store(model, capacity=capacity)
        self.model, self.capacity, self.limit = model, capacity, self.inner.limit
        self.can_resume, self.batches_prefill = self.inner.can_resume, self.inner.batches_prefill
        self.when, self.mark, self.error = when, mark, error
        self.bad: set[int] = set()
        self.raised = 0

    def check(self, when: str, sequences: abc.Sequence[int]) -> None:
        if when == self.when and self.bad.intersection(sequences):
            self.raised += 1
            raise self.error("injected")

    def add(self, prompt: abc.Sequence[int], *, source: Source | None = None, scope: str = "") -> Added:
        if self.when == "add" and prompt[0] == self.mark:
            self.raised += 1
            raise self.error("injected")
        added = self.inner.add(prompt, source=source, scope=scope)
        self.bad.discard(added.number)
        if prompt[0] == self.mark:
            self.bad.add(added.number)
        return added

    def extend(self, pieces: abc.Mapping[int, abc.Sequence[int]]) -> list[Tensor]:
        hidden = self.inner.extend(pieces)
        self.check("extend", list(pieces))  # after the fact: the sequences have been changed
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self.inner.logits(hidden)

    def step(self, sequences: abc.Sequence[int], tokens: Tensor) -> Tensor:
        logits = self.inner.step(sequences, tokens)
        self.check("step", sequences)
        return logits

    def free(self, sequence: int, *, keep: bool = True) -> None:
        self.bad.discard(sequence)
        self.inner.free(sequence, keep=keep)

    def length(self, sequence: int) -> int:
        return self.inner.length(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        self.inner.truncate(sequence, length)

    def fork(self, copies: int) -> list[int]:
        return self.inner.fork(copies)

    def select(self, sequences: abc.Sequence[int], origins: Tensor) -> None:
        self.inner.select(sequences, origins)

    @property
    def available(self) -> int:
        return self.inner.available

    @property
    def bytes(self) -> int:
        return self.inner.bytes
