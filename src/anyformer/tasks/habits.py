"""How rows are usually trained when nobody says, by what they consist of, and what a search tries beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from anyformer.data.columns.kinds import only_modality
from anyformer.data.habit import TrainingDefaults

MIXED = TrainingDefaults(epochs=40, batch_size=32, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=5e-4)
FINE_TUNE = TrainingDefaults(
    epochs=5, batch_size=16, lr=5e-5, weight_decay=0.01, gpu_batch_size=32, gpu_lr=5e-5, layer_lr_decay=0.9
)


def habit_for(parts: Sequence[str], *, start: bool, rows: int | None = None) -> TrainingDefaults:
    """The habit for `rows` training rows of these parts; `start` is whether there is a model to start from."""
    if start:
        return FINE_TUNE
    alone = only_modality(parts)
    own = None if alone is None else alone.habit_for(rows)
    return MIXED if own is None else own


class TunedSetting(NamedTuple):
    """A setting that a search draws: some factors of what the defaults have there, or some values."""

    path: str
    factors: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def options(self, usual: Any) -> list[Any]:
        """What may stand there; whole numbers stay whole and above zero.

        >>> TunedSetting("model.stack.depth", factors=(0.5, 1.0, 2.0)).options(3)
        [2, 3, 6]
        """
        if self.values:
            return list(self.values)
        found = [usual * factor for factor in self.factors]
        return [max(1, round(one)) for one in found] if isinstance(usual, int) else found
