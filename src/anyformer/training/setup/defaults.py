"""What a training is like when nobody says: by task, size of the data and device. Every value can be set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyformer.data.columns.kinds import only_modality
from anyformer.data.sizes import Sizes
from anyformer.objectives import OBJECTIVES, Objective
from anyformer.training.optim import AdamW
from anyformer.training.schedule import Cosine, Linear
from anyformer.training.settings import Training

MINUTES = {"cpu": 5.0, "gpu": 10.0}  # a run that nobody limited takes at most this long
EVALUATIONS = 20  # in a run, unless they would take too much of its time
LEAST_STEPS = 200


@dataclass(frozen=True)
class Habit:
    """How one kind of data is usually trained."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    gpu_batch_size: int
    gpu_lr: float
    patience: int | None = None  # passes over the data without a better evaluation


HABITS = {
    "lm": Habit(epochs=20, batch_size=8, lr=3e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=1e-3),
    "text": Habit(epochs=20, batch_size=32, lr=1e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=5e-4),
    "tag": Habit(epochs=20, batch_size=16, lr=1e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=1e-3),
    "table": Habit(
        epochs=100, batch_size=256, lr=5e-4, weight_decay=1e-5, gpu_batch_size=256, gpu_lr=3e-4, patience=40
    ),
    "image": Habit(epochs=40, batch_size=64, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=1e-3),
    "audio": Habit(epochs=40, batch_size=32, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=1e-3),
    "mixed": Habit(epochs=40, batch_size=32, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=5e-4),
    "forecast": Habit(epochs=20, batch_size=64, lr=1e-3, weight_decay=0.0, gpu_batch_size=128, gpu_lr=1e-3, patience=6),
    "detect": Habit(epochs=300, batch_size=16, lr=5e-4, weight_decay=1e-4, gpu_batch_size=32, gpu_lr=5e-4),
    "fine-tune-detect": Habit(epochs=50, batch_size=4, lr=1e-4, weight_decay=1e-4, gpu_batch_size=16, gpu_lr=1e-4),
    "translate": Habit(epochs=40, batch_size=64, lr=2e-3, weight_decay=0.01, gpu_batch_size=128, gpu_lr=2e-3),
    "fine-tune": Habit(epochs=5, batch_size=16, lr=5e-5, weight_decay=0.01, gpu_batch_size=32, gpu_lr=5e-5),
}


def kind_of(task: str, sizes: Sizes, *, start: bool = False) -> str:
    """The row of HABITS for this data; `start` is a model to start from."""
    if start:
        return "fine-tune-detect" if task == "detect" else "fine-tune"
    if task in HABITS:
        return task
    return sizes.parts[0] if len(sizes.parts) == 1 and sizes.parts[0] in HABITS else "mixed"


def default_training(task: str, sizes: Sizes, rows: int, *, gpu: bool, start: bool, seed: int) -> Training:
    """The settings of a training on `rows` training rows (windows, for a language model)."""
    habit = HABITS[kind_of(task, sizes, start=start)]
    wanted = habit.gpu_batch_size if gpu else habit.batch_size
    # A small data set still wants some tens of steps an epoch.
    batch = max(4, min(wanted, rows // 8)) if rows > 4 else rows
    steps = max(LEAST_STEPS, habit.epochs * -(-rows // batch))
    # A pass over few rows is a handful of steps, and says little.
    patience = None if habit.patience is None else max(habit.patience, -(-LEAST_STEPS * batch // max(1, rows)))
    return Training(
        steps=None, batch_size=batch, seed=seed, patience=patience,
        optimizer=AdamW(
            lr=habit.gpu_lr if gpu else habit.lr, weight_decay=habit.weight_decay,
            layer_lr_decay=0.9 if start and task != "lm" else 1.0,
        ),
        schedule=Linear(warmup=0.06) if start else Cosine(warmup=min(0.05, 200 / steps)),
    )  # fmt: skip


def default_steps(task: str, sizes: Sizes, rows: int, batch: int, *, start: bool) -> int:
    """Steps of a run that nobody limited, before its time is looked at."""
    habit = HABITS[kind_of(task, sizes, start=start)]
    return max(LEAST_STEPS, habit.epochs * -(-rows // batch))


def default_objective(task: str, sizes: Sizes, counts: tuple[int, ...] | None, balanced: bool) -> Objective:
    """The objective of a task; images of several classes are blended a little, classes weighted where asked."""
    settings: dict[str, Any] = {}
    if task == "classify":
        settings["multi"] = sizes.multi
        alone = only_modality(sizes.parts)
        if alone is not None and alone.smoothed and not sizes.multi:
            settings |= {"label_smoothing": 0.1}
        if balanced and counts:
            settings["weights"] = balanced_weights(counts, sizes.multi)
    return OBJECTIVES[task](**settings)


def balanced_weights(counts: tuple[int, ...], multi: bool = False) -> tuple[float, ...]:
    """Factors that make every class weigh the same in all.

    >>> balanced_weights((10, 30))
    (2.0, 0.6666666666666666)
    """
    whole, classes = sum(counts), len(counts)
    return tuple(1.0 if multi else whole / (classes * max(1, count)) for count in counts)
