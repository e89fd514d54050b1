"""The order of training rows as a pure function of the seed and the step, so that resuming needs no iterator state."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anyformer.data.examples import Draw, Examples
from anyformer.data.mixing import MixedRows

POOL = 50  # batches sorted by length together; more saves padding, fewer shuffles better

Stages = tuple[tuple[int, int], ...]  # first step and rows per step, of each stage


@dataclass(frozen=True)
class BatchStage:
    """Steps of equal size: the first step, its number of rows, and the epoch and row it begins with."""

    first: int
    batch: int
    epoch: int = 0
    row: int = 0


@dataclass
class Order:
    """The rows of each step. Every epoch is a new permutation, in which each row occurs once.

    Rows of similar length share a batch if lengths are known. The last batch of an epoch has the remaining rows, unless
    the data is cut differently in every epoch, like windows of a text, or a small batch would harm (see
    `Objective.min_batch_size`): then it is dropped. With a batch size schedule, `sizes` has its stages, and `batch` is
    the largest size; a larger batch continues at the row at which the smaller ones ended. If rows of several tasks are
    `mixed`, an epoch is as long, but some rows occur more often than others.
    """

    count: int
    batch: int
    seed: int
    lengths: np.ndarray | None = None
    keep_rest: bool = True
    sizes: Stages = ()
    mixed: MixedRows | None = None
    held: dict[int, np.ndarray] = field(default_factory=dict, repr=False)  # cache of the current epoch

    def __post_init__(self) -> None:
        self.stages = [BatchStage(0, self.batch)]
        if self.sizes:
            self.stages = [BatchStage(0, min(self.count, self.sizes[0][1]))]
            for first, batch in self.sizes[1:]:
                epoch, row = self.locate(first)
                self.stages.append(BatchStage(first, min(self.count, batch), epoch, row))

    @classmethod
    def of(cls, examples: Examples, batch: int, seed: int, *, whole_batches: bool = False, sizes: Stages = ()) -> Order:
        """The order of some examples; with `whole_batches` the last incomplete batch of an epoch is dropped."""
        keep_rest = not (examples.cut_anew or whole_batches)
        return cls(len(examples), min(batch, len(examples)), seed, examples.lengths, keep_rest, sizes, examples.mixed)

    @property
    def steps(self) -> int:
        """Steps per epoch, with the full batch."""
        return self.steps_over(self.count, self.batch)

    def steps_over(self, rows: int, batch: int) -> int:
        """Number of steps in the last `rows` rows of an epoch."""
        whole, rest = divmod(rows, batch)
        return whole + (1 if rest and self.keep_rest else 0)

    def stage(self, step: int) -> BatchStage:
        """The stage of a step."""
        return next(stage for stage in reversed(self.stages) if stage.first <= step)

    def locate(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and its first row in the order of that epoch."""
        stage = self.stage(step)
        inside, left = step - stage.first, self.steps_over(self.count - stage.row, stage.batch)
        if inside < left:
            return stage.epoch, stage.row + inside * stage.batch
        further, inside = divmod(inside - left, self.steps_over(self.count, stage.batch))
        return stage.epoch + 1 + further, inside * stage.batch

    def passes(self, since: int, until: int) -> float:
        """The number of passes over the data between two steps."""
        if not self.sizes:
            return (until - since) / self.steps
        (early, first), (late, last) = self.locate(since), self.locate(until)
        return late - early + (last - first) / self.count

    def at(self, step: int) -> tuple[np.ndarray, Draw]:
        """The rows of a step, and their source of randomness."""
        epoch, row = self.locate(step)
        if epoch not in self.held:
            self.held = {epoch: self.epoch(epoch)}
        return self.held[epoch][row : row + self.stage(step).batch], Draw(self.seed, epoch)

    def epoch(self, epoch: int) -> np.ndarray:
        """All rows in the order of one epoch."""
        generator = np.random.default_rng((self.seed, epoch))
        rows = generator.permutation(self.count if self.mixed is None else self.mixed.epoch(self.seed, epoch))
        if self.lengths is None:
            return rows
        pool = POOL * self.batch
        near = [
            part[np.argsort(self.lengths[part], kind="stable")]
            for part in np.split(rows, range(pool, self.count, pool))
        ]
        whole = self.count // self.batch * self.batch
        joined = np.concatenate(near)
        # Complete batches are shuffled; an incomplete one stays last.
        batches = joined[:whole].reshape(-1, self.batch)[generator.permutation(whole // self.batch)]
        return np.concatenate([batches.reshape(-1), joined[whole:]])
