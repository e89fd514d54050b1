"""The order of training rows as a pure function of the seed and the step. There is no iterator, so none is restored."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anyformer.data.examples import Draw, Examples

POOL = 50  # batches whose rows are sorted by length together; more saves padding, fewer shuffles better


@dataclass
class Order:
    """Which rows make which step. Every epoch is a new permutation; each row comes once in it.

    Rows of like length share a batch where the data knows lengths. The last batch of an epoch holds what is left,
    unless the data cuts every epoch anew, as windows of a text do, or a small batch would harm (see
    `Objective.min_batch_size`): then it is left out.
    """

    count: int
    batch: int
    seed: int
    lengths: np.ndarray | None = None
    keep_rest: bool = True
    held: dict[int, np.ndarray] = field(default_factory=dict, repr=False)  # the epoch in use; made again at will

    @classmethod
    def of(cls, examples: Examples, batch: int, seed: int, *, whole_batches: bool = False) -> Order:
        """The order of some examples; with `whole_batches` the rest of an epoch is left out."""
        keep_rest = not (examples.cut_anew or whole_batches)
        return cls(len(examples), min(batch, len(examples)), seed, examples.lengths, keep_rest)

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        whole, rest = divmod(self.count, self.batch)
        return whole + (1 if rest and self.keep_rest else 0)

    def at(self, step: int) -> tuple[np.ndarray, Draw]:
        """The rows of a step, and where their randomness comes from."""
        epoch, inside = divmod(step, self.steps)
        if epoch not in self.held:
            self.held = {epoch: self.epoch(epoch)}
        return self.held[epoch][inside * self.batch : (inside + 1) * self.batch], Draw(self.seed, epoch)

    def epoch(self, epoch: int) -> np.ndarray:
        """All rows in the order of one epoch."""
        generator = np.random.default_rng((self.seed, epoch))
        rows = generator.permutation(self.count)
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
