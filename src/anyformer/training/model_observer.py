"""ModelObserver: what a run keeps of its model while it learns: samples that it makes, and figures of its inside."""

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

SAMPLES = 8  # of a run, of what its model makes


class ModelObserver:
    """Of one process; what cannot be made or measured is an event of the run, and no reason to stop."""

    def __init__(
        self, folder: RunFolder, config: Config, data: Prepared, task: Task, engine: TrainingEngine, progress: Progress
    ) -> None:
        self.folder, self.config, self.data, self.task = folder, config, data, task
        self.engine, self.progress = engine, progress

    def keep_sample(self, model: nn.Module, done: int, total: int, *, last: bool) -> None:
        """Keep something the model makes, a few times in a run."""
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
        """Measure the model on the rows of the probe, where this step is one that it asks for."""
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
        """The rows that are looked at again and again: the first validation rows, or of training without them."""
        assert self.config.training.probe is not None
        examples = self.data.train if self.data.valid is None else self.data.valid
        rows = np.arange(min(len(examples), self.config.training.probe.rows))
        return self.config.objective.corrupt(examples.batch(rows), EVALUATION, examples).to(self.engine.device)


def short_error(error: Exception) -> str:
    """An error as a line of a log."""
    return f"{type(error).__name__}: {error}"[:200]
