"""Batches made and copied ahead on a GPU: the same training to the bit, and no step that waits for its data."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from anyformer.data.datasets.windows import Windows
from anyformer.data.order import Order
from anyformer.objectives import Batch, Causal
from anyformer.presets.decoders import gpt2
from anyformer.training.duration import Plan
from anyformer.training.loader import Steps, make_batches, stream
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
VOCAB, LENGTH, LAST = 64, 128, 40  # steps


def text_steps(rows: int) -> Steps:
    examples = Windows(np.random.default_rng(0).integers(0, VOCAB, 200_000), LENGTH, vocab=VOCAB)
    return Steps(examples, Order.of(examples, rows, seed=1), Causal(), rows // 2)


def losses_on(batches: Iterator[list[Batch]]) -> list[float]:
    model = gpt2(64, 2, 2, vocab=VOCAB, length=LENGTH).build(seed=0, device=torch.device("cuda"))
    engine = TrainingEngine(model, Causal(), Training(precision="fp32", threads=1), Plan(LAST))
    return [float(engine.step(step, micros).loss) for step, micros in enumerate(batches)]


def test_prefetched_training_has_the_same_losses() -> None:
    """A batch that was overwritten while a step still reads it, or read before it had come, would change a loss."""
    steps = text_steps(rows=16)
    plain = losses_on(make_batches(steps, 0, LAST, workers=0))
    for _ in range(3):
        with stream(steps, 0, LAST, workers=0, device=torch.device("cuda")) as batches:
            ahead = losses_on(batches)
        assert np.allclose(ahead, plain, rtol=1e-5), [a - b for a, b in zip(ahead, plain, strict=True)]


def test_every_batch_arrives_as_it_was_made() -> None:
    steps = text_steps(rows=64)
    with stream(steps, 0, 200, workers=0, device=torch.device("cuda")) as batches:
        for step, micros in enumerate(batches):
            for found, made in zip(micros, steps[step], strict=True):
                assert found.targets.is_cuda and found.weight == made.weight
                assert torch.equal(found.inputs[0].cpu(), made.inputs[0])


def test_the_wait_for_data_is_small_beside_the_work() -> None:
    """A batch takes 5 ms to make and a step 10 ms: the thread is always ahead."""
    steps = text_steps(rows=16)

    class Slow(Steps):
        def __getitem__(self, step: int) -> list[Batch]:
            time.sleep(0.005)
            return super().__getitem__(step)

    slow = Slow(steps.examples, steps.order, steps.objective, steps.micro)
    waited = 0.0
    with stream(slow, 0, 100, workers=0, device=torch.device("cuda")) as batches:
        next(batches)
        began = time.perf_counter()
        for _ in range(80):
            time.sleep(0.01)
            asked = time.perf_counter()
            next(batches)
            waited += time.perf_counter() - asked
        # Without the thread a third of the time would be waiting; other tests run beside this one.
        assert waited < 0.1 * (time.perf_counter() - began), waited
