"""Batch size over a run: rows per step as a pure function of the step, so there is no state to restore."""

from __future__ import annotations

from typing import Self

from anyformer.errors import UserError, check_at_least
from anyformer.spec import Spec


class BatchSchedule(Spec, slot=True):
    """`stages(batch, steps)`: the rows per step of each stage; the last stage has the full `batch`."""

    def stages(self, batch: int, steps: int) -> tuple[tuple[int, int], ...]:
        """(first step, rows) of each stage in order, starting at step 0, for a run of `steps` steps."""
        raise NotImplementedError

    def resolve(self, steps: int) -> Self:
        """Replace fractions of the run by step numbers, so that changing the run's length no longer changes any
        batch."""
        raise NotImplementedError

    def check_batch(self, batch: int) -> None:
        """Reject a full batch size that this schedule cannot reach."""


class Grow(BatchSchedule):
    """Small batches first, doubled at equal intervals up to the full one: early gradients may be noisy (1711.00489).

    >>> Grow(start=8, until=0.5).stages(batch=64, steps=600)
    ((0, 8), (100, 16), (200, 32), (300, 64))
    """

    start: int | None = None
    """Rows of the first steps; an eighth of the full batch if not given."""
    until: float = 0.5
    """When the full batch is reached: below 1 a fraction of all steps, else a step."""

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
        return tuple(firsts.items())  # of stages that start at the same step the largest stays

    def resolve(self, steps: int) -> Self:
        return self if self.until >= 1 else self.replace(until=float(max(1, round(self.until * steps))))
