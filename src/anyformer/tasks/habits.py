"""Training defaults for rows by their modalities, and the search space around them."""

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
    """The defaults for `rows` training rows of these parts; `start` is whether there is a model to fine-tune."""
    if start:
        return FINE_TUNE
    alone = only_modality(parts)
    own = None if alone is None else alone.habit_for(rows)
    return MIXED if own is None else own


class TunedSetting(NamedTuple):
    """A setting of the search space: factors of its default, or values."""

    path: str
    factors: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def options(self, usual: Any) -> list[Any]:
        """The candidate values; integers stay integers of at least 1.

        >>> TunedSetting("model.stack.depth", factors=(0.5, 1.0, 2.0)).options(3)
        [2, 3, 6]
        """
        if self.values:
            return list(self.values)
        found = [usual * factor for factor in self.factors]
        return [max(1, round(one)) for one in found] if isinstance(usual, int) else found
