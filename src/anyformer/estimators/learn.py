"""One fit: a training in a temporary folder, or a full run with its report if it is kept.

A grid search fits hundreds of times: without `keep`, there are no baselines, figures or timing trials, and the best
    weights stay in memory until the end.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoints import store
from anyformer.errors import Stopped
from anyformer.inference.devices import pick_device
from anyformer.inference.opening import load
from anyformer.inference.predictor import Predictor
from anyformer.log import Log, silence
from anyformer.safe_files import scratch_folder
from anyformer.training.calibrate import fit_calibration, write_calibration
from anyformer.training.checkpoint import save_model
from anyformer.training.setup.new_run import create, run_name
from anyformer.training.setup.request import Request
from anyformer.training.step import put
from anyformer.training.train import Run, work
from anyformer.training.trainer import Session

EVALUATIONS = 10  # per fit with a given number of steps
SMALL = 2**24  # parameters x rows per step below which a second thread does not help
logger = logging.getLogger("anyformer")


@dataclass
class FitResult:
    """The result of a fit."""

    predictor: Predictor
    history: list[dict[str, Any]]
    steps: int
    facts: dict[str, Any]  # about the data: columns, what was left out
    run: Run | None  # only of a kept fit


def learn(request: Request, keep: Path | None, *, quiet: bool, check: Callable[[dict[str, Any]], None]) -> FitResult:
    """Train as requested; `check` is called with the prepared data before the first step."""
    device = pick_device(request.device)
    log: Log = silence if quiet else logger.info
    scratch = None if keep is not None else Path(tempfile.mkdtemp(prefix="anyformer-"))
    request.out = scratch / "run" if scratch is not None else (keep or Path("runs")) / run_name(request)
    try:
        with aside():
            folder = create(request, log, device)
            facts = folder.read_json("data.json")
            check(facts)
            progress = "silent" if quiet else "auto"
            if scratch is None:
                work(folder, device, log, progress=progress, quiet=quiet)
            else:
                try:
                    InMemorySession(folder, device, log, progress=progress).run()
                finally:
                    folder.unlock()
            found = load(folder.path, device=str(device))
        steps = int(folder.facts["step"])
        return FitResult(found, folder.metrics(), steps, facts, None if scratch is not None else Run(folder.path))
    except Stopped:
        # A search treats a ValueError as one failed fit and continues; Ctrl-C must end the whole search.
        raise KeyboardInterrupt from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def aside() -> Iterator[None]:
    """Restore torch's random state, thread count and deterministic mode afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])


class InMemorySession(Session):
    """A training session that keeps only the best model and its curve."""

    best: dict[str, Tensor] | None = None

    def prepare(self) -> None:
        """Choose the thread count by model size instead of timing, so that two fits are bit-identical."""
        training = self.config.training
        if training.threads is None:
            size = sum(p.numel() for p in self.model.parameters()) * (training.batch_size or 1)
            torch.set_num_threads(1 if size < SMALL else torch.get_num_threads())
            self.config = self.config.replace(training=training.replace(threads=torch.get_num_threads()))
        super().prepare()

    def measure_and_plan(self) -> None:
        """Plan without a timing trial if the number of steps is given."""
        training = self.config.training
        if training.steps is None:
            super().measure_and_plan()
            return
        every = training.eval_every or max(1, -(-training.steps // EVALUATIONS))
        training = training.replace(eval_every=every, save_every=every, compile=training.compile is True)
        self.config = self.config.replace(training=training)

    def save(self) -> None:
        """Keep the best weights so far; the latest ones without validation rows."""
        self.flush()
        self.saver.refuse_nonfinite(self.done)
        self.fresh_best = False
        if self.best is None or self.data.valid is None or self.standing.best_step == self.done:
            self.best = {name: value.detach().clone() for name, value in self.engine.weights().items()}

    def run(self) -> None:
        """Train to the end and write the best model."""
        super().run()
        assert self.best is not None
        step = self.done if self.data.valid is None else self.standing.best_step or self.done
        save_model(self.folder.checkpoints / store.checkpoint_name(step), self.config, self.data, self.best, step)
        self.folder.update(step=self.done, best_step=step, status="done")
        self.fit_probabilities(store.checkpoint_name(step))

    def fit_probabilities(self, weights: str) -> None:
        """Fit temperatures on the validation rows; a threshold only if set, so that `predict` otherwise is the
        argmax."""
        if self.data.valid is None or not self.task.gives_probabilities:
            return
        assert self.best is not None
        put(self.model, self.best)
        answers = self.evaluator(self.model, self.data.valid, most=self.config.training.eval_rows, decode=False)
        asked = self.config.training
        asked = asked.replace(threshold=None if asked.threshold == "auto" else asked.threshold)
        fitted = fit_calibration(self.task, answers, self.data.preprocess, asked, self.standing.metric)
        if fitted is not None:
            write_calibration(self.folder, weights, fitted.calibration)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files of a model folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def open_files(files: dict[str, bytes], device: str) -> Predictor:
    """Load a model from its files in memory."""
    with scratch_folder() as folder:
        for file, data in files.items():
            (folder / Path(file).name).write_bytes(data)
        return load(folder, device=device)


def save_files(predictor: Predictor) -> dict[str, bytes]:
    """Save a model as files in memory."""
    with scratch_folder() as folder:
        return contents(predictor.save(folder / "model"))
