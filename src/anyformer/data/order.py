"""The order of training rows as a pure function of the seed and the step. There is no iterator, so none is restored."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anyformer.data.examples import Draw, Examples
from anyformer.data.mixing import MixedRows

POOL = 50  # batches whose rows are sorted by length together; more saves padding, fewer shuffles better

Stages = tuple[tuple[int, int], ...]  # from which step on how many rows make a step


@dataclass(frozen=True)
class BatchStage:
    """Steps of one size: the first of them, their rows, and the row of which epoch they begin with."""

    first: int
    batch: int
    epoch: int = 0
    row: int = 0


@dataclass
class Order:
    """Which rows make which step. Every epoch is a new permutation; each row comes once in it.

    Rows of like length share a batch where the data knows lengths. The last batch of an epoch holds what is left,
    unless the data cuts every epoch anew, as windows of a text do, or a small batch would harm (see
    `Objective.min_batch_size`): then it is left out. Where the batch size follows a schedule, `sizes` says so, and
    `batch` is the largest; a larger batch continues with the row at which the smaller ones ended. Where rows of several
    tasks are `mixed`, an epoch is as long, but some rows come more often than others.
    """

    count: int
    batch: int
    seed: int
    lengths: np.ndarray | None = None
    keep_rest: bool = True
    sizes: Stages = ()
    mixed: MixedRows | None = None
    held: dict[int, np.ndarray] = field(default_factory=dict, repr=False)  # the epoch in use; made again at will

    def __post_init__(self) -> None:
        self.stages = [BatchStage(0, self.batch)]
        if self.sizes:
            self.stages = [BatchStage(0, min(self.count, self.sizes[0][1]))]
            for first, batch in self.sizes[1:]:
                epoch, row = self.locate(first)
                self.stages.append(BatchStage(first, min(self.count, batch), epoch, row))

    @classmethod
    def of(cls, examples: Examples, batch: int, seed: int, *, whole_batches: bool = False, sizes: Stages = ()) -> Order:
        """The order of some examples; with `whole_batches` the rest of an epoch is left out."""
        keep_rest = not (examples.cut_anew or whole_batches)
        return cls(len(examples), min(batch, len(examples)), seed, examples.lengths, keep_rest, sizes, examples.mixed)

    @property
    def steps(self) -> int:
        """Steps of an epoch, with the full batch."""
        return self.steps_over(self.count, self.batch)

    def steps_over(self, rows: int, batch: int) -> int:
        """Steps that the last `rows` rows of an epoch make."""
        whole, rest = divmod(rows, batch)
        return whole + (1 if rest and self.keep_rest else 0)

    def stage(self, step: int) -> BatchStage:
        """The stage that a step belongs to."""
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
        """How many times the data is passed over from one step to another."""
        if not self.sizes:
            return (until - since) / self.steps
        (early, first), (late, last) = self.locate(since), self.locate(until)
        return late - early + (last - first) / self.count

    def at(self, step: int) -> tuple[np.ndarray, Draw]:
        """The rows of a step, and where their randomness comes from."""
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
        # Whole batches change places; the rest of the epoch stays last.
        batches = joined[:whole].reshape(-1, self.batch)[generator.permutation(whole // self.batch)]
        return np.concatenate([batches.reshape(-1), joined[whole:]])
