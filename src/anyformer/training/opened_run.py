"""OpenedRun: a run folder read back into objects: config, data, model and batches, and the planned number of steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from anyformer import faults
from anyformer.data.order import Order, Stages
from anyformer.data.reopen import reopen
from anyformer.errors import UserError
from anyformer.log import Log
from anyformer.training.distributed.parallel import open_parallel
from anyformer.training.distributed.peers import Peers
from anyformer.training.distributed.world import ALONE
from anyformer.training.duration import PLAN_FILE, RunClock
from anyformer.training.loader import Steps
from anyformer.training.out_of_memory import enough_memory, too_large
from anyformer.training.run.folder import CONFIG_FILE, RunFolder
from anyformer.training.settings import Training, batch_stages
from anyformer.training.setup.budget import decide_length, measure
from anyformer.training.step import put
from anyformer.training.step_planner import describe_length, first_plan


class OpenedRun:
    """Everything in a run folder, as one process uses it before the first step."""

    def __init__(
        self, folder: RunFolder, device: torch.device, log: Log, *, peers: Peers | None = None,
        started: float | None = None,
    ) -> None:  # fmt: skip
        self.clock = RunClock(started)  # includes the time to read and prepare data
        self.folder, self.device, self.log = folder, device, log
        self.peers = Peers(ALONE, device) if peers is None else peers
        self.opened_with = folder.config_text()
        self.config = folder.config()
        self.task = folder.task()
        opened = reopen(folder.cache)
        if opened is None:
            raise UserError("the prepared data is damaged", where=str(folder.cache), fix="train again")
        self.data = opened
        settings = self.config.training
        torch.set_num_threads(settings.threads or torch.get_num_threads())
        self.parallel = open_parallel(self.config, self.peers)
        if not self.peers.world.is_alone:
            log(f"parallel {self.peers.world.size} processes, {self.parallel.name}")
        self.model = self.parallel.build(self.config.model, settings)
        self.batch_size = settings.batch_size or 1
        self.order = self.order_rows()
        parts = self.parallel.parts
        micro = min(settings.micro_batch_size or self.batch_size, max(1, self.batch_size // parts))
        self.steps = Steps(self.data.train, self.order, self.config.objective, micro, self.parallel.part, parts)
        self.done = 0  # steps

    def order_rows(self, sizes: Stages = ()) -> Order:
        """The rows of each step; without `sizes` all steps have the full batch size."""
        whole = self.config.objective.min_batch_size > 1
        return Order.of(self.data.train, self.batch_size, self.config.training.seed, whole_batches=whole, sizes=sizes)

    def measure_and_plan(self) -> None:
        """Time a few steps, restore the weights, then fix the number of steps and the settings that depend on it."""
        kept = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        with faults.paused(), self.enough_memory(lambda: self.steps[0]):
            found = measure(self.model, self.config, self.data, self.steps, self.device, kept, self.parallel,
                            self.log, self.clock.elapsed())  # fmt: skip
        put(self.model, kept)
        asked = self.config.training
        training, budget = decide_length(self.config, found, self.data, self.device, self.clock.elapsed())
        training = Training.from_dict(self.peers.broadcast(training.to_dict))
        self.config = self.config.replace(training=training)
        self.folder.write(CONFIG_FILE, self.config.to_yaml())
        self.folder.update(settled=True, total=training.steps)
        self.folder.write_json(PLAN_FILE, first_plan(training, found, budget))
        for line in describe_length(training, found, self.order_rows(batch_stages(training, training.steps or 1))):
            self.log(line)
        if asked.minutes is not None and asked.steps is None and budget is not None and budget.most == training.steps:
            self.log("enough   more epochs than such data usually needs would only overfit: the rest of the time is "
                     "not used; --epochs N for more")  # fmt: skip
        faults.point("settled")

    def enough_memory(self, micros: Callable[[], list[Any]]) -> AbstractContextManager[None]:
        """On out of memory inside, raise an error with the sizes that were tried and three ways to use less."""
        return enough_memory(lambda: too_large(
            self.config.training, self.done + 1, len(micros()[0]), self.data.preprocess.length, self.folder.path
        ))  # fmt: skip
