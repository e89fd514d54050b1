"""Default training settings by task, data size and device. Every value can be overridden."""

from __future__ import annotations

from anyformer.data.habit import TrainingDefaults
from anyformer.data.sizes import Sizes
from anyformer.tasks import Task
from anyformer.training.optim import AdamW
from anyformer.training.schedule import Cosine, Linear
from anyformer.training.settings import Training
from anyformer.training.setup.request import replace_paths

MINUTES = {"cpu": 5.0, "gpu": 10.0}  # default time limit
EVALUATIONS = 20  # per run, unless they would take too much of its time
MOST_EVALUATIONS = 60  # per run of many epochs over few rows
PATIENCE = 1 / 3  # of the default number of epochs
LEAST_STEPS = 200
MIN_PATIENCE = 3  # epochs


def default_training(
    task: Task, sizes: Sizes, rows: int, *, gpu: bool, start: bool, seed: int, has_length: bool = False
) -> Training:
    """Default settings for `rows` training rows (windows, for a language model); `has_length` is whether steps or
    epochs
    were given."""
    habit = task.habit(sizes, start=start)
    wanted = habit.gpu_batch_size if gpu else habit.batch_size
    # A small data set still needs some tens of steps per epoch.
    batch = max(4, min(wanted, rows // 8)) if rows > 4 else rows
    steps = max(LEAST_STEPS, habit.epochs * -(-rows // batch))
    made = Training(
        steps=None, batch_size=batch, seed=seed, patience=default_patience(habit, rows, batch, has_length=has_length),
        optimizer=AdamW(
            lr=habit.gpu_lr if gpu else habit.lr, weight_decay=habit.weight_decay, layer_lr_decay=habit.layer_lr_decay
        ),
        schedule=Linear(warmup=0.06) if start else Cosine(warmup=min(0.05, 200 / steps)),
    )  # fmt: skip
    return replace_paths(made, dict(habit.settings), "training")


def default_patience(habit: TrainingDefaults, rows: int, batch_size: int, *, has_length: bool) -> int | None:
    """Early-stopping patience in epochs: the task's own, else a fraction of its default epochs unless a length was
    given."""
    if habit.patience is None and has_length:
        return None
    passes = habit.patience or max(MIN_PATIENCE, round(PATIENCE * habit.epochs))
    # An epoch over few rows is a handful of steps, and tells little.
    return max(passes, -(-LEAST_STEPS * batch_size // max(1, rows)))


def default_steps(task: Task, sizes: Sizes, rows: int, batch_size: int, *, start: bool) -> int:
    """Default number of steps, before the time budget is considered."""
    return max(LEAST_STEPS, task.habit(sizes, start=start).epochs * -(-rows // batch_size))
