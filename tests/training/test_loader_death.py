"""A worker that dies is found at the next fetch, never in the middle of something else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from anyformer.data.order import Order
from anyformer.objectives import Batch
from anyformer.training.loader import Steps, make_batches


class Slow(Steps):
    def __init__(self) -> None:
        super().__init__(None, Order(8, 2, 0), None, 2)  # type: ignore[arg-type]

    def __getitem__(self, step: int) -> list[Batch]:
        time.sleep(0.05)
        return []


def test_a_dead_worker_does_not_interrupt_what_is_under_way() -> None:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    if not listed.is_file():
        pytest.skip("this system does not list the children of a process")
    batches = make_batches(Slow(), 0, 1000, workers=1)
    assert next(batches) == []
    os.kill(int(listed.read_text().split()[-1]), signal.SIGKILL)
    for _ in range(20):  # something else is under way while the death is told
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for _ in batches:
            pass
