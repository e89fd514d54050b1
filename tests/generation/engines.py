"""Engines under test: jobs that remember what they were told, rows that fail on purpose, and what must hold at rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anyformer import preset
from anyformer.engine.engine import Engine
from anyformer.engine.jobs import Ended, Event, Failed, Job, NewToken
from anyformer.generation import Generation, generate
from anyformer.generation.cache.base import Row, Rows, rows_for
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
        return [event for event in self if isinstance(event, Ended | Failed)]

    @property
    def reason(self) -> str:
        """Why it ended, once it has, once."""
        assert len(self.last) == 1 and self[-1] is self.last[0], f"told {self}"
        end = self.last[0]
        return end.reason if isinstance(end, Ended) else type(end.error).__name__  # type: ignore[union-attr]


def job(tokens: Sequence[int], settings: Generation | None = None, *, new: int = 6, **more: Any) -> Job:
    """A job that gathers what it is told in `tell.__self__`."""
    return Job(tokens, settings or Generation(max_new_tokens=new), Told().append, **more)


def told(job: Job) -> Told:
    return job.tell.__self__  # type: ignore[attr-defined, no-any-return]


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
            if not engine.working if until is None else until():
                return count
            engine.turn()
    raise AssertionError("the engine does not come to an end")


def at_rest(engine: Engine) -> None:
    """What must hold when nothing is left: every row free, nothing in line, every job counted once."""
    counts = engine.counts
    assert not engine.working and counts.in_flight == 0
    assert (engine.jobs.length, engine.jobs.cost, engine.calls.length, engine.calls.cost) == (0, 0, 0, 0)
    assert counts.accepted == counts.over
    if engine.writers is not None and engine.rows is not None:
        assert engine.rows.free == engine.rows.capacity
        assert engine.writers.active == 0 and not engine.writers.held and not engine.writers.choosing.writers


@contextmanager
def running(rows: Rows | None, **settings: Any) -> Iterator[Engine]:
    """An engine that works while it lasts; afterwards it must be at rest."""
    engine = Engine(rows, **settings)
    engine.start()
    try:
        yield engine
        assert engine.broken is None
    finally:
        engine.stop()
    at_rest(engine)


def alone(net: Any, work: Job) -> list[int]:
    """What `generate` writes for a job by itself."""
    given = work.tokens if work.source is None else work.source
    return generated(net, tuple(given), work.settings)


@cache
def generated(net: Any, given: tuple[int, ...], settings: Generation) -> list[int]:
    return next(iter(generate(net, torch.tensor([given]), settings=settings).rows()))


class Faulty:
    """Rows that raise when a text that begins with `mark` takes part in what `when` names."""

    def __init__(
        self, model: Any, capacity: int, *, when: str, mark: int, error: type[Exception] = RuntimeError
    ) -> None:
        self.inner = rows_for(model, capacity=capacity)
        self.model, self.capacity, self.limit = model, capacity, self.inner.limit
        self.resumes, self.side_by_side = self.inner.resumes, self.inner.side_by_side
        self.when, self.mark, self.error = when, mark, error
        self.bad: set[int] = set()
        self.raised = 0

    def check(self, when: str, rows: Sequence[int]) -> None:
        if when == self.when and self.bad.intersection(rows):
            self.raised += 1
            raise self.error("injected")

    def open(self, tokens: Sequence[int], *, source: Sequence[int] | None = None, scope: str = "") -> Row:
        if self.when == "open" and tokens[0] == self.mark:
            self.raised += 1
            raise self.error("injected")
        row = self.inner.open(tokens, source=source, scope=scope)
        self.bad.discard(row.number)
        if tokens[0] == self.mark:
            self.bad.add(row.number)
        return row

    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        hidden = self.inner.read(pieces)
        self.check("read", list(pieces))  # after the fact: the rows have been changed
        return hidden

    def scores(self, hidden: Tensor) -> Tensor:
        return self.inner.scores(hidden)

    def step(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        scores = self.inner.step(rows, tokens)
        self.check("step", rows)
        return scores

    def close(self, row: int, *, keep: bool = True) -> None:
        self.bad.discard(row)
        self.inner.close(row, keep=keep)

    @property
    def free(self) -> int:
        return self.inner.free

    @property
    def bytes(self) -> int:
        return self.inner.bytes
