"""Training in a run folder, from the first step or from a checkpoint.

A new run and a resumed one take the same path: everything is read from the folder, the newest intact checkpoint is
loaded if there is one, and the remaining steps are taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from anyformer import faults
from anyformer.checkpoints import store
from anyformer.core.building import check_buffers
from anyformer.errors import INTERRUPTED, AlreadyReported, Diverged, Stopped, UserError
from anyformer.evaluation.metric_directions import direction
from anyformer.inspection.routing import routed
from anyformer.log import Log
from anyformer.tasks import Evaluator
from anyformer.training.best import BestCheckpoint, EvaluationResult, choosing_metric, score_answers
from anyformer.training.checkpoint import check_same, read_checkpoint
from anyformer.training.checkpoint_saver import CheckpointSaver
from anyformer.training.culprit import divergence, find_culprit
from anyformer.training.display.display import display
from anyformer.training.display.progress import Progress
from anyformer.training.distributed.peers import Peers
from anyformer.training.layers import layer_rates
from anyformer.training.loader import stream
from anyformer.training.lora import remove_adapters
from anyformer.training.model_observer import ModelObserver
from anyformer.training.opened_run import OpenedRun
from anyformer.training.run.folder import (
    ENVIRONMENT_FILE,
    METRICS_FILE,
    RunFolder,
    environment,
    other_machine,
)
from anyformer.training.run_ending import RunEnding
from anyformer.training.settings import batch_stages
from anyformer.training.setup.determinism import is_deterministic, use_deterministic
from anyformer.training.setup.device_peaks import peak_flops
from anyformer.training.setup.initial_weights import load_start_weights
from anyformer.training.setup.memory import usage
from anyformer.training.setup.trial import time_writing
from anyformer.training.signals import Requests
from anyformer.training.step import StepResult, TrainingEngine
from anyformer.training.step_log import StepLog
from anyformer.training.step_planner import StepPlanner

LATE = 10  # steps whose losses are read together on a GPU, since each read synchronizes
LAYERS_FILE = "layers.json"
ENDLESS = 2**62  # upper bound on the steps of a run with a time budget, whose number the clock may still raise


class Session(OpenedRun):
    """One process's training of a run. Of several, the first takes decisions that depend on the clock, and alone
    writes."""

    def __init__(
        self, folder: RunFolder, device: torch.device, log: Log, *, progress: str = "auto",
        peers: Peers | None = None, started: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, device, log, peers=peers, started=started)
        self.mode = progress
        self.standing = BestCheckpoint(self.config.training.metric or choosing_metric(self.task, self.data.preprocess))
        self.ending = RunEnding(folder, self.peers, self.clock, lambda: self.done)

    # ------------------------------------------------------------ before the first step

    def run(self) -> None:
        """Train to the end; if stopped, save a checkpoint and raise `Stopped`."""
        with self.ending.recorded(Requests()):
            self.folder.sweep()
            if self.peers.is_first and self.folder.config_text() != self.opened_with:
                raise UserError("another process has just changed it", where=str(self.folder.path), fix="try again")
            self.prepare()
            self.train()
            self.engine.release()
            remove_adapters(self.model)

    def prepare(self) -> None:
        """Time and plan the run if not yet done, build the engine, and restore the newest checkpoint."""
        facts, newest = self.peers.broadcast(self.find_checkpoint)
        self.clock.earlier = float(facts.get("seconds") or 0.0)
        if (self.config.start or facts.get("fitted")) and (newest is None or self.config.training.lora is not None):
            load_start_weights(self.model, self.folder)  # LoRA checkpoints are merged: the base is needed too
        if not facts.get("settled"):
            self.measure_and_plan()
        settings = self.config.training
        self.order = self.steps.order = self.order_rows(batch_stages(settings, settings.steps or 1))
        self.planner = StepPlanner(self.folder, self.peers, self.clock, settings)
        use_deterministic(is_deterministic(settings, self.device, compiled=settings.compile is True))
        self.engine = TrainingEngine(self.model, self.config.objective, settings, self.planner.plan, self.parallel)
        self.saver = CheckpointSaver(self.folder, self.config, self.data, self.engine, self.planner, self.clock,
                                     self.peers)  # fmt: skip
        if settings.compile is True:
            self.engine.compile()
        self.report_layer_rates()
        if settings.probe is not None and self.parallel.shards:
            self.log("probe    off: each process holds a part of the model (training.parallel)")
        if newest is not None:
            self.restore(self.folder.checkpoints / newest, facts.get("allowed") or ())
        elif facts.get("settled"):
            self.folder.cut_back(-1)  # steps logged before the first checkpoint are repeated, step 0 included
            self.folder.event("resume", step=0)
        here = environment(self.device, torch.get_num_threads(), self.peers.world.size)
        if before := self.folder.side_facts(ENVIRONMENT_FILE):
            for line in other_machine(before, here):
                self.log(line)
        self.folder.write_json(ENVIRONMENT_FILE, here)
        self.folder.start(step=self.done, total=self.total)
        if newest is not None and self.peers.is_first:
            self.saver.rotate(self.done, self.standing)

    def report_layer_rates(self) -> None:
        """Log and save the learning rates of the layers, unless all are trained at the same one from the start."""
        lines = layer_rates(self.model, self.engine.optimizers)
        if len({line.lr for line in lines}) == 1 and self.config.training.unfreeze is None:
            return
        for line in lines:
            self.log(f"layer    {line}")
        self.folder.write_json(LAYERS_FILE, {"layers": [asdict(line) for line in lines]})

    def unfreeze(self, step: int) -> None:
        """Unfreeze the layers trained at this step, a pure function of the step."""
        rule, layers = self.config.training.unfreeze, self.engine.layers
        if rule is None:
            return
        count = rule.trained_layers(self.order.passes(0, step), len(layers))
        if self.engine.train_last(count):
            self.progress.note(f"training {layers[-count].name} and all above it", keep=True)
            self.folder.event("unfreeze", step=step, layers=[layer.name for layer in layers[-count:]])

    def find_checkpoint(self) -> tuple[dict[str, Any], str | None]:
        """The contents of run.json, and the name of the newest intact checkpoint."""
        newest = store.latest(self.folder.checkpoints, self.log)
        return self.folder.facts, None if newest is None else newest[1].name

    @property
    def total(self) -> int:
        """Steps of the whole run under the current plan."""
        return self.planner.total(self.done)

    def restore(self, path: Path, allowed: Sequence[str]) -> None:
        """Restore a checkpoint, which must have the same settings and rows."""
        weights, memory, state = read_checkpoint(path, self.device)
        check_same(state, self.config, self.data, allowed)
        self.engine.load(weights, memory, state["engine"])
        self.done = int(state["step"])
        self.standing = BestCheckpoint(**state["standing"])
        self.folder.cut_back(self.done)
        self.folder.event("resume", step=self.done)
        self.log(f"resume   from step {self.done:,} of {self.total:,}")

    # ------------------------------------------------------------ the loop

    def train(self) -> None:
        """Take all remaining steps."""
        settings = self.config.training
        self.progress = self.new_progress()
        self.evaluator = Evaluator(self.config.objective, self.data.preprocess, self.data.tokenizer,
                           batch_size=max(32, self.steps.micro), autocast=self.engine.autocast())  # fmt: skip
        self.observer = ModelObserver(self.folder, self.config, self.data, self.task, self.engine, self.progress)
        self.step_log = StepLog(self.folder, self.progress, self.planner.pace)
        end = ENDLESS if self.planner.budget is not None and self.done < self.total else self.total
        fetching = stream(self.steps, self.done, end, workers=settings.workers or 0, device=self.device)
        with fetching as batches, display(self.progress, self.mode) if self.mode != "silent" else nullcontext():
            if self.done == 0 and self.folder.facts.get("fitted") and self.standing.best is None:
                self.evaluate(last=False)  # the fitted initial weights may stay the best
                self.save()
            while self.done < self.total:
                if self.is_out_of_patience():  # also on resuming a run that had stopped early
                    self.progress.note(self.standing.explain_stop(self.order, self.done, self.total), keep=True)
                    self.folder.event("early stop", step=self.done, best_step=self.standing.best_step)
                    break
                waiting = time.perf_counter()
                with self.enough_memory(lambda: self.steps[self.done]):
                    micros = next(batches)
                self.step_log.waited += time.perf_counter() - waiting
                self.take_step(self.done, micros)
                self.correct_plan()
                last = self.done == self.total
                if last or (settings.eval_every and self.done % settings.eval_every == 0):
                    with self.saved_on_failure():
                        self.evaluate(last=last)
                code = self.peers.stop_code()
                if self.is_pause(evaluated=last or bool(settings.eval_every and self.done % settings.eval_every == 0)):
                    self.has_paused, code = True, INTERRUPTED
                if code is not None or self.is_out_of_patience() or self.fresh_best or self.is_save_step(self.done):
                    self.save()
                if code is not None and not last:
                    self.flush()
                    raise Stopped(f"stopped at step {self.done:,} of {self.total:,}; saved. "
                                  f"Resume with: anyformer resume {self.folder.path}", code=code)  # fmt: skip
            self.flush()

    def take_step(self, step: int, micros: list[Any]) -> None:
        """Take one step, check that it is finite, and log it."""
        self.unfreeze(step)
        with self.enough_memory(lambda: micros):
            step_result = self.engine.step(step, micros)
        step_result.rows = [self.steps.rows(step)]  # across all processes
        self.step_log.pending.append(step_result)
        late = self.engine.update.is_late
        looked_at = self.step_log.pending[-2:-1] if late else self.step_log.pending[-1:]
        for found in looked_at:
            if not self.engine.finite(found):
                self.diverged(found, micros if not late else self.steps[found.step - 1])
        if step == 0:  # a custom part may keep state in buffers, which checkpoints do not save: fail now, not late
            check_buffers(self.config.model, self.model, "the model")
        self.done = step + 1
        self.peers.note_step(self.done)
        if self.is_observing():
            self.observer.probe(step_result, self.done)
        if len(self.step_log.pending) >= (LATE if late else 1) or self.done == self.total:
            self.flush()

    def correct_plan(self) -> None:
        """Change the number of steps if the time budget requires it."""
        if self.step_log.pending or not self.planner.is_due(self.done):
            return
        correction = self.planner.correct(self.done, self.step_sizes)
        if correction is not None:
            self.progress.planned(correction.steps)

    @property
    def step_sizes(self) -> list[tuple[int, float]]:
        """Step sizes in full batches, each with the first step that has it."""
        return [(stage.first, stage.batch / self.order.batch) for stage in self.order.stages]

    def flush(self) -> None:
        """Log the pending steps, unless one of them is not finite."""
        for found in self.step_log.pending:
            if not self.engine.finite(found):
                self.diverged(found, self.steps[found.step - 1])
        self.step_log.write(self.done, self.step_sizes)

    # ------------------------------------------------------------ between steps

    def evaluate(self, *, last: bool) -> None:
        """Evaluate on the validation rows, track the best checkpoint, and save a sample of the model's output."""
        began = time.perf_counter()
        self.flush()
        if self.data.valid is not None:
            self.progress.doing("evaluating")
            with self.enough_memory(lambda: self.steps[self.done - 1]), self.engine.evaluating() as model:
                with routed(model) as experts:
                    answers = self.evaluator(model, self.data.valid, most=self.config.training.eval_rows, decode=False)
                rows = min(len(self.data.valid), self.config.training.eval_rows or len(self.data.valid))
                self.planner.pace.evaluated_rows(rows, time.perf_counter() - began)
                if self.is_observing():  # generating token by token with a sharded model is slow
                    self.observer.keep_sample(model, self.done, self.total, last=last)
            scores, found = self.peers.broadcast(lambda: score_answers(self.task, answers, self.standing.metric))
            if self.standing.take(EvaluationResult(*found), self.done):
                self.fresh_best = True
            line: dict[str, Any] = {"step": self.done, "eval": {"split": "valid", **scores},
                                    "choice": EvaluationResult(*found)._asdict()}  # fmt: skip
            self.folder.append(METRICS_FILE, [line | experts.facts()])
            self.progress.evaluated(self.done, scores)
            faults.point("evaluated")
        self.planner.pace.evaluated(time.perf_counter() - began)
        self.time_decoding()
        self.step_log.paused += time.perf_counter() - began

    def time_decoding(self) -> None:
        """Re-estimate now and then the time of the final generation: a trained model ends its texts sooner."""
        budget = self.planner.budget
        if budget is None or not self.task.decodes or not self.peers.world.is_alone:
            return
        if self.clock.elapsed() < self.decoding_known_until:
            return
        with self.engine.evaluating() as model:
            pace = self.planner.pace
            pace.decoding = time_writing(model, self.config, self.data, pace.row or 0.0, most=self.evaluator.batch_size)
        self.decoding_known_until = self.clock.elapsed() + budget.seconds / 4

    decoding_known_until: float = 0.0  # in seconds of the run

    def is_observing(self) -> bool:
        """Whether this process observes the model: the first, if the model is not sharded."""
        return self.peers.is_first and not self.parallel.shards

    @contextmanager
    def saved_on_failure(self) -> Iterator[None]:
        """Save a checkpoint if the work between steps fails, so that finished steps are not lost."""
        try:
            yield
        except Exception:
            if self.peers.world.is_alone:  # saving is collective, and the other processes do not know of it
                with suppress(Exception):  # report the first error
                    self.save()
            raise

    fresh_best: bool = False
    pause_after: float | None = None  # run time in seconds after which it pauses at the next evaluation, to be resumed
    has_paused: bool = False

    def is_pause(self, *, evaluated: bool) -> bool:
        """Whether the time that a search has given this run is used up."""
        return self.pause_after is not None and evaluated and self.clock.elapsed() >= self.pause_after

    def is_out_of_patience(self) -> bool:
        """Whether to stop early."""
        return self.standing.is_out_of_patience(self.config.training.patience, self.order, self.done)

    def save(self) -> None:
        """Commit a checkpoint of this step."""
        began = time.perf_counter()
        self.flush()
        self.progress.doing("saving")
        self.saver.save(self.done, self.standing)
        self.fresh_best = False
        self.progress.note(f"saved step {self.done:,}")
        seconds = time.perf_counter() - began
        self.step_log.paused += seconds
        self.planner.pace.saved(seconds)

    def is_save_step(self, step: int) -> bool:
        """Whether an uninterrupted run saves at this step."""
        return self.saver.is_save_step(step, done=self.done)

    def new_progress(self) -> Progress:
        """A new progress for the display."""
        tokens = self.task.counts_tokens
        per_step = self.batch_size * (self.data.train.length if tokens else 1)  # type: ignore[attr-defined]
        metric = self.standing.metric
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        peak = peak_flops(gpu, self.config.training.precision) if gpu else None
        # Six FLOPs per weight and token: two forward, four backward; attention and padding rows are not counted.
        flops = 6 * sum(p.numel() for p in self.model.parameters()) * per_step if tokens else None
        return Progress(
            self.total, per_step, unit="tokens" if tokens else "rows", metric=metric,
            better=direction(metric), first=self.done, title=self.folder.path.name,
            memory=lambda: usage(str(self.device)), flops_per_step=flops,
            peak=None if peak is None else peak * self.peers.world.size,
        )  # fmt: skip

    def take_whole_model(self) -> None:
        """After the last step, build the whole model in the first process if it was sharded."""
        self.peers.part()
        if self.parallel.shards and self.peers.is_first:
            self.model = self.config.model.build(seed=self.config.training.seed, device=self.device)

    # ------------------------------------------------------------ when it goes wrong

    def diverged(self, step_result: StepResult, micros: list[Any]) -> None:
        """Stop before anything is damaged: the weights are those of the previous step."""
        step = step_result.step - 1
        # Only the process whose rows caused it can name them; the others just see a sum that is not finite.
        found = self.peers.gather(find_culprit(self.engine, step_result, micros))
        rows, tensor = next((pair for pair in found if pair[0]), found[0])
        if not self.peers.is_first:
            raise AlreadyReported(Diverged.exit_code)
        self.done = step
        self.step_log.write_until(step_result.step)
        all_rows = torch.cat(step_result.rows).tolist()
        self.folder.write("crash.txt", f"step {step_result.step}: {tensor} is not finite\nrows {all_rows}\n")
        raise divergence(step_result, rows, tensor, self.data.train, self.folder.path, phases=len(self.engine.phases))
