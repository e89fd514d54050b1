"""ModelObserver: what a run records of its model during training: samples of its output, and probe figures."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from torch import nn

from anyformer.data.prepared import Prepared
from anyformer.objectives import Batch
from anyformer.objectives.draw import EVALUATION
from anyformer.tasks import Task
from anyformer.training.display.progress import Progress
from anyformer.training.run.folder import RunFolder
from anyformer.training.settings import Config
from anyformer.training.step import StepResult, TrainingEngine

SAMPLES = 8  # approximate number of samples saved in a run


class ModelObserver:
    """Used by one process; a failed sample or probe is logged as an event of the run and does not stop it."""

    def __init__(
        self, folder: RunFolder, config: Config, data: Prepared, task: Task, engine: TrainingEngine, progress: Progress
    ) -> None:
        self.folder, self.config, self.data, self.task = folder, config, data, task
        self.engine, self.progress = engine, progress

    def keep_sample(self, model: nn.Module, done: int, total: int, *, last: bool) -> None:
        """Save a sample of the model's output, a few times in a run."""
        every = max(1, total // SAMPLES)
        if not last and done % every >= (self.config.training.eval_every or 1):
            return
        try:
            made = self.task.write_sample(model, self.data, seed=self.config.training.seed)
            if isinstance(made, bytes):
                self.folder.write(f"samples/step-{done:06}.png", made)
            elif made is not None:
                self.folder.write(f"samples/step-{done:06}.txt", made + "\n")
                self.progress.sample(done, made)
        except Exception as error:
            self.folder.event("sample failed", step=done, error=short_error(error))

    def probe(self, step_result: StepResult, done: int) -> None:
        """Measure the model on the probe's rows, at every `probe.every`-th step."""
        probe = self.config.training.probe
        if probe is None or done % probe.every:
            return
        from anyformer.inspection.probe_figures import probe_figures

        try:
            with self.engine.evaluating() as model, self.engine.autocast():
                step_result.probe = probe_figures(model, self.probe_batch, layers=probe.layers)
        except Exception as error:
            self.folder.event("probe failed", step=done, error=short_error(error))

    @cached_property
    def probe_batch(self) -> Batch:
        """The fixed rows of the probe: the first validation rows, or training rows without a validation split."""
        assert self.config.training.probe is not None
        examples = self.data.train if self.data.valid is None else self.data.valid
        rows = np.arange(min(len(examples), self.config.training.probe.rows))
        return self.config.objective.corrupt(examples.batch(rows), EVALUATION, examples).to(self.engine.device)


def short_error(error: Exception) -> str:
    """An error as one line of a log."""
    return f"{type(error).__name__}: {error}"[:200]
