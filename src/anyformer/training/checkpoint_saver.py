"""CheckpointSaver: when a run saves, what it commits, and which checkpoints it deletes."""

from __future__ import annotations

from pathlib import Path

import torch

from anyformer import faults
from anyformer.checkpoints import store
from anyformer.data.prepared import Prepared
from anyformer.errors import Diverged
from anyformer.training.best import BestCheckpoint
from anyformer.training.checkpoint import give_parts, save_checkpoint
from anyformer.training.distributed.parts import local
from anyformer.training.distributed.peers import Peers
from anyformer.training.duration import RunClock
from anyformer.training.run.folder import METRICS_FILE, RunFolder
from anyformer.training.settings import Config
from anyformer.training.step import TrainingEngine
from anyformer.training.step_planner import StepPlanner


class CheckpointSaver:
    """Commits checkpoints and deletes the oldest; the best and the newest are kept."""

    def __init__(
        self, folder: RunFolder, config: Config, data: Prepared, engine: TrainingEngine, planner: StepPlanner,
        clock: RunClock, peers: Peers,
    ) -> None:  # fmt: skip
        self.folder, self.config, self.data, self.engine = folder, config, data, engine
        self.planner, self.clock, self.peers = planner, clock, peers

    def path(self, step: int) -> Path:
        """Path of the checkpoint of a step."""
        return self.folder.checkpoints / store.checkpoint_name(step)

    def save(self, step: int, standing: BestCheckpoint) -> None:
        """Commit the checkpoint of this step: the first process writes it, the others send it their shards."""
        self.refuse_nonfinite(step)
        missing = self.peers.broadcast(lambda: bool(store.problem(self.path(step))))
        if missing and self.engine.parallel.shards and not self.peers.is_first:
            give_parts(self.engine)
        self.peers.broadcast(lambda: self.commit(step, standing))

    def commit(self, step: int, standing: BestCheckpoint) -> None:
        """Write the checkpoint of this step, unless it exists, and delete the oldest."""
        if store.problem(self.path(step)):
            store.flush(self.folder.path / METRICS_FILE)  # no checkpoint without its log lines, even after a crash
            save_checkpoint(self.path(step), self.config, self.data, self.engine, step, vars(standing))
        faults.point("saved")
        self.rotate(step, standing)

    def rotate(self, step: int, standing: BestCheckpoint) -> None:
        """After a save, or one that was interrupted: delete old checkpoints and update run.json."""
        best = standing.best_step
        store.rotate(self.folder.checkpoints, self.config.training.keep, [] if best is None else [best],
                     newest=step, counts=lambda one: self.is_save_step(one, done=step))  # fmt: skip
        value = None if standing.best is None else {"metric": standing.metric, "value": standing.best}
        self.folder.update(step=step, best_step=best, best=value, **self.clock.facts())

    def is_save_step(self, step: int, *, done: int) -> bool:
        """Whether an uninterrupted run saves at this step; a checkpoint from a stop is deleted after the next save, so
        that a run leaves the same checkpoints however often it was stopped."""
        total = self.planner.total(done)
        return step == total or step % (self.config.training.save_every or total) == 0

    def refuse_nonfinite(self, step: int) -> None:
        """Reject a checkpoint with a weight that is not finite: resuming from it could only fail again."""
        for name, value in self.engine.weights().items():
            if not bool(torch.isfinite(local(value)).all()):
                raise Diverged(f"step {step:,}: the weight {name} is not finite", where=str(self.folder.path),
                               fix="lower the learning rate: --set training.optimizer.lr=0.0003",
                               details=["it was not saved; the checkpoint before is intact"])  # fmt: skip
