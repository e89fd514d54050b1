"""How rows are usually trained when nobody says, by what they consist of. Every value can be set."""

from __future__ import annotations

from collections.abc import Sequence

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
