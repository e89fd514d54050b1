"""Batches made ahead by a thread: the same training to the bit, errors where they belong, and a clean end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from anyformer.data.datasets.windows import Windows
from anyformer.data.order import Order
from anyformer.errors import UserError
from anyformer.objectives import Batch, Causal
from anyformer.presets.decoders import gpt2
from anyformer.training.duration import Plan
from anyformer.training.loader import DEPTH, Prefetcher, Steps, make_batches
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine

CPU = torch.device("cpu")
VOCAB, LENGTH, LAST = 11, 8, 12  # steps


def text_steps(micro: int = 3) -> Steps:
    ids = np.random.default_rng(0).integers(0, VOCAB, 500)
    examples = Windows(ids, LENGTH, vocab=VOCAB)
    return Steps(examples, Order.of(examples, 6, seed=1), Causal(), micro)


def train_on(batches: Iterator[list[Batch]]) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and weights of a small model trained on batches."""
    model = gpt2(16, 1, 2, vocab=VOCAB, length=LENGTH, dropout=0.1).build(seed=0)
    engine = TrainingEngine(model, Causal(), Training(precision="fp32", threads=1), Plan(LAST))
    losses = [float(engine.step(step, micros).loss) for step, micros in enumerate(batches)]
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_training_on_batches_made_ahead_is_the_same_to_the_bit() -> None:
    steps = text_steps()
    plain, weights = train_on(make_batches(steps, 0, LAST, workers=0))
    ahead = Prefetcher(make_batches(steps, 0, LAST, workers=0), CPU)
    losses, others = train_on(ahead)
    assert losses == plain and len(losses) == LAST
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    assert train_on(make_batches(steps, 1, LAST + 1, workers=0))[0] != plain  # the control: a step too far
    ahead.close()
    assert not ahead.thread.is_alive()


def test_batches_bring_their_weight_so_that_no_step_counts_on_the_device() -> None:
    steps = text_steps(micro=6)
    batch = steps[0][0]
    assert batch.weight == Causal().weight(batch) == 6 * LENGTH
    assert batch.to(CPU).weight == batch.weight
    bare = Batch(batch.inputs, batch.targets, batch.rows)
    assert Causal().known_weight(bare) == 48 and Causal().known_weight(replace(bare, weight=1)) == 1


def slow_batches(seconds: float, made: list[int]) -> Iterator[list[Batch]]:
    steps = text_steps()
    for step in range(1000):
        time.sleep(seconds)
        made.append(step)
        yield steps[step]


@pytest.mark.alone
def test_a_step_takes_as_long_as_the_slower_of_data_and_work() -> None:
    """Data and work of 30 ms each: 20 steps take about 0.6 s ahead, and 1.2 s in turns."""

    def seconds(batches: Iterator[list[Batch]]) -> float:
        began = time.perf_counter()
        for _ in range(20):
            next(batches)
            time.sleep(0.03)
        return time.perf_counter() - began

    ahead = Prefetcher(slow_batches(0.03, []), CPU)
    together, in_turns = seconds(ahead), seconds(slow_batches(0.03, []))
    ahead.close()
    assert together < 0.75 * in_turns, (together, in_turns)


def test_it_runs_only_a_few_steps_ahead() -> None:
    made: list[int] = []
    ahead = Prefetcher(slow_batches(0.0, made), CPU)
    next(ahead)
    time.sleep(0.3)
    assert made and max(made) <= DEPTH + 1  # those that wait, and the one in hand
    ahead.close()


def failing(at: int) -> Iterator[list[Batch]]:
    steps = text_steps()
    for step in range(at):
        yield steps[step]
    raise UserError("row 7 cannot be read", where="book.txt", fix="fix it")


def test_the_error_of_a_fetch_comes_at_its_step_with_its_own_words() -> None:
    ahead = Prefetcher(failing(at=2), CPU)
    time.sleep(0.2)  # the thread has failed long before
    assert len(next(ahead)) == 2 and len(next(ahead)) == 2
    for _ in range(2):  # and whoever asks again hears it again, rather than waiting for ever
        with pytest.raises(UserError, match="row 7 cannot be read"):
            next(ahead)
    ahead.close()
    assert not ahead.thread.is_alive()


def test_closing_in_the_middle_leaves_no_thread() -> None:
    before = threading.active_count()
    ahead = Prefetcher(slow_batches(0.01, []), CPU)
    next(ahead)
    ahead.close()
    assert threading.active_count() == before
