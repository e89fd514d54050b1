"""Batch sizes over a run: which steps take how many rows, as a pure function of the step, so nothing is restored."""

from __future__ import annotations

from typing import Self

from anyformer.errors import UserError, check_at_least
from anyformer.spec import Spec


class BatchSchedule(Spec, slot=True):
    """`stages(batch, steps)`: from which step on how many rows make a step; the last stage has the full `batch`."""

    def stages(self, batch: int, steps: int) -> tuple[tuple[int, int], ...]:
        """(first step, rows) in order, the first of step 0, for a run of `steps` steps."""
        raise NotImplementedError

    def resolve(self, steps: int) -> Self:
        """The same with its shares as numbers of steps: another length of the run then changes no batch any more."""
        raise NotImplementedError

    def check_batch(self, batch: int) -> None:
        """Refuse a full batch that this cannot lead to."""


class Grow(BatchSchedule):
    """Small batches first, doubled at even distances until the full one: early steps need no precision (1711.00489).

    >>> Grow(start=8, until=0.5).stages(batch=64, steps=600)
    ((0, 8), (100, 16), (200, 32), (300, 64))
    """

    start: int | None = None
    """Rows of the first steps; an eighth of the full batch if not given."""
    until: float = 0.5
    """Where the full batch is reached: a share of all steps below 1, or a step."""

    def check(self) -> None:
        where = "training.batch_size_schedule"
        check_at_least(where, "start", self.start, 1, fix="use 32")
        if not self.until > 0:
            raise UserError(f"until {self.until} is not positive", where=f"{where}.until", fix="use 0.5")

    def check_batch(self, batch: int) -> None:
        if self.start is not None and self.start >= batch:
            raise UserError(f"start {self.start} is not below batch_size {batch}",
                            where="training.batch_size_schedule.start", fix=f"use {max(1, batch // 4)}")  # fmt: skip

    def stages(self, batch: int, steps: int) -> tuple[tuple[int, int], ...]:
        sizes = [self.start or max(1, batch // 8)]
        while 2 * sizes[-1] < batch:
            sizes.append(2 * sizes[-1])
        end = self.resolve(steps).until
        firsts = {round(end * number / len(sizes)): rows for number, rows in enumerate([*sizes, batch])}
        return tuple(firsts.items())  # of stages without a step the largest stays

    def resolve(self, steps: int) -> Self:
        return self if self.until >= 1 else self.replace(until=float(max(1, round(self.until * steps))))
