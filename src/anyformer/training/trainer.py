"""Training in a run's folder, from its first step or from where it was left.

A new run and a resumed one go the same way: everything is read from the folder, the newest whole checkpoint is put
back if there is one, and steps follow until the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer import faults
from anyformer.checkpoints import store
from anyformer.core.building import check_buffers
from anyformer.data.order import Order, Stages
from anyformer.data.reopen import reopen
from anyformer.errors import INTERRUPTED, AlreadyReported, Diverged, NoRoom, Stopped, UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.bootstrap import standard_error
from anyformer.evaluation.metrics import direction
from anyformer.inspection.routing import routed
from anyformer.objectives import Batch
from anyformer.objectives.draw import EVALUATION
from anyformer.tasks import Evaluator
from anyformer.training.best import BestCheckpoint, EvaluationResult, choosing_metric, line_of
from anyformer.training.checkpoint import check_same, give_parts, read_checkpoint, save_checkpoint
from anyformer.training.culprit import find_culprit
from anyformer.training.display.display import display
from anyformer.training.display.format import duration
from anyformer.training.display.progress import Progress
from anyformer.training.distributed.parallel import open_parallel
from anyformer.training.distributed.parts import local
from anyformer.training.distributed.peers import Peers
from anyformer.training.distributed.world import ALONE
from anyformer.training.duration import PLAN_FILE, WINDOW, Budget, Correction, Plan, Throughput, size_at
from anyformer.training.layers import layer_rates
from anyformer.training.loader import Steps, stream
from anyformer.training.lora import remove_adapters
from anyformer.training.out_of_memory import enough_memory, lost_worker, too_large
from anyformer.training.run.folder import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    RunFolder,
    environment,
    other_machine,
)
from anyformer.training.settings import Training, batch_stages
from anyformer.training.setup.budget import TrialTimes, decide_length, mean_step_size, measure
from anyformer.training.setup.determinism import is_deterministic, use_deterministic
from anyformer.training.setup.device_peaks import peak_flops
from anyformer.training.setup.initial_weights import load_start_weights
from anyformer.training.setup.memory import Memory, usage
from anyformer.training.setup.trial import time_writing
from anyformer.training.signals import Requests
from anyformer.training.step import StepResult, TrainingEngine, put

LEAST_EVALUATIONS = 3  # without a better one before patience can end; a single one may have been bad luck
SAMPLES = 8  # of a run, of what its model makes
LATE = 10  # steps whose losses are read together on a GPU
SPEED_FILE = "speed.jsonl"
LAYERS_FILE = "layers.json"
ENDLESS = 2**62  # steps of a run whose number the clock may still raise


class Session:
    """One process's work on a run. Of several, the first decides what depends on the clock, and alone writes."""

    def __init__(
        self, folder: RunFolder, device: torch.device, say: Callable[[str], None], *, progress: str = "auto",
        peers: Peers | None = None, started: float | None = None,
    ) -> None:  # fmt: skip
        self.started = time.perf_counter() if started is None else started  # reading and preparing data counts too
        self.folder, self.device, self.say, self.mode = folder, device, say, progress
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
            say(f"parallel {self.peers.world.size} processes, {self.parallel.name}")
        self.model = self.parallel.build(self.config.model, settings)
        self.batch = settings.batch_size or 1
        self.order = self.order_rows()
        parts = self.parallel.parts
        micro = min(settings.micro_batch_size or self.batch, max(1, self.batch // parts))
        self.steps = Steps(self.data.train, self.order, self.config.objective, micro, self.parallel.part, parts)
        target = self.data.preprocess
        self.standing = BestCheckpoint(settings.metric or choosing_metric(self.task, target))
        self.done = 0
        self.seconds = 0.0  # of earlier processes

    def order_rows(self, sizes: Stages = ()) -> Order:
        """Which rows make which step; without `sizes` all steps have the full batch."""
        whole = self.config.objective.min_batch_size > 1
        return Order.of(self.data.train, self.batch, self.config.training.seed, whole_batches=whole, sizes=sizes)

    # ------------------------------------------------------------ before the first step

    def run(self) -> None:
        """Train to the end, unless stopped; then the work is saved and `Stopped` raised."""
        with self.recorded(Requests()):
            self.folder.sweep()
            if self.peers.is_first and self.folder.config_text() != self.opened_with:
                raise UserError("another process has just changed it", where=str(self.folder.path), fix="try again")
            self.prepare()
            self.train()
            self.engine.release()
            remove_adapters(self.model)

    @contextmanager
    def recorded(self, asked: Requests, doing: str = "") -> Iterator[None]:
        """With the folder held: however what is done inside ends, run.json says so. `doing` names it in the reason."""
        self.folder.lock()
        self.asked = asked
        self.peers.asked = lambda: asked.code
        self.peers.on_abort = lambda reason: self.record("failed", reason)
        try:
            with asked:
                yield
        except KeyboardInterrupt:
            self.record("interrupted", f"{doing}stopped at once")
            raise Stopped(f"stopped at once; the last checkpoint is intact. Resume with: anyformer resume "
                          f"{self.folder.path}", code=asked.code or INTERRUPTED) from None  # fmt: skip
        except (RuntimeError, ConnectionError, EOFError) as error:
            found = lost_worker(error, self.folder.path)
            self.record("failed", f"{doing}{self.peers.explain(found)}")
            raise found from None
        except BaseException as error:
            how = "interrupted" if isinstance(error, Stopped) else "failed"
            self.record(how, doing + (self.peers.explain(error) if how == "failed" else str(error)))
            raise
        finally:
            self.folder.unlock()

    def record(self, status: str, reason: str) -> None:
        """Let the folder say how it ended; a full disk must not hide why."""
        with suppress(OSError, NoRoom):
            self.folder.update(status=status, reason=reason[:300], step=self.done, **self.seconds_spent())
            self.folder.event(status, step=self.done, reason=reason[:300])

    def prepare(self) -> None:
        """Settle what needs a clock, build the engine, and go back to where the run was left."""
        facts, newest = self.peers.broadcast(self.find_checkpoint)
        self.seconds = float(facts.get("seconds") or 0.0)
        if (self.config.start or facts.get("fitted")) and (newest is None or self.config.training.lora is not None):
            load_start_weights(self.model, self.folder)  # checkpoints hold adapters merged into them
        if not facts.get("settled"):
            self.measure_and_plan()
        settings = self.config.training
        self.order = self.steps.order = self.order_rows(batch_stages(settings, settings.steps or 1))
        self.read_plan()
        use_deterministic(is_deterministic(settings, self.device, compiled=settings.compile is True))
        self.engine = TrainingEngine(self.model, self.config.objective, settings, self.plan, self.parallel)
        if settings.compile is True:
            self.engine.compile()
        self.report_layer_rates()
        if settings.probe is not None and self.parallel.shards:
            self.say("probe    off: each process holds a part of the model (training.parallel)")
        if newest is not None:
            self.restore(self.folder.checkpoints / newest, facts.get("allowed") or ())
        elif facts.get("settled"):
            self.folder.cut_back(-1)  # what was logged before the first checkpoint comes again, step 0 included
            self.folder.event("resume", step=0)
        here = environment(self.device, torch.get_num_threads(), self.peers.world.size)
        if before := self.folder.side_facts(ENVIRONMENT_FILE):
            for line in other_machine(before, here):
                self.say(line)
        self.folder.write_json(ENVIRONMENT_FILE, here)
        self.folder.start(step=self.done, total=self.total)
        if newest is not None and self.peers.is_first:
            self.rotate_checkpoints()

    def report_layer_rates(self) -> None:
        """Say and write down what learns and how fast, where that is not the same for all layers."""
        lines = layer_rates(self.model, self.engine.optimizers)
        if len({line.lr for line in lines}) == 1 and self.config.training.unfreeze is None:
            return
        for line in lines:
            self.say(f"layer    {line}")
        self.folder.write_json(LAYERS_FILE, {"layers": [asdict(line) for line in lines]})

    def unfreeze(self, step: int) -> None:
        """Let those layers learn that this step belongs to, as a pure function of the step."""
        rule, layers = self.config.training.unfreeze, self.engine.layers
        if rule is None:
            return
        count = rule.trained_layers(self.order.passes(0, step), len(layers))
        if self.engine.train_last(count):
            self.progress.note(f"training {layers[-count].name} and all above it", keep=True)
            self.folder.event("unfreeze", step=step, layers=[layer.name for layer in layers[-count:]])

    def find_checkpoint(self) -> tuple[dict[str, Any], str | None]:
        """What run.json says, and the name of the newest whole checkpoint."""
        newest = store.latest(self.folder.checkpoints, self.say)
        return self.folder.facts, None if newest is None else newest[1].name

    def read_plan(self) -> None:
        """The number of steps with its corrections, and the time they must keep to, if any."""

        def look() -> tuple[dict[str, Any], int]:
            path = self.folder.path / PLAN_FILE
            facts = self.folder.read_json(PLAN_FILE) if path.is_file() else {}
            return facts, max((int(line["step"]) for line in self.folder.metrics()), default=0)

        # Steps that an earlier process has done and logged are done again as they were, without new decisions.
        facts, self.decided = self.peers.broadcast(look)
        self.plan = Plan.of(self.config.training.steps or 1, facts)
        self.budget = Budget.of(facts)

    @property
    def total(self) -> int:
        """Steps of the whole run, as the plan stands now."""
        return self.plan.total(self.done)

    def restore(self, path: Path, allowed: Sequence[str]) -> None:
        """Put a whole checkpoint back; it must be one of these settings and these rows."""
        weights, memory, state = read_checkpoint(path, self.device)
        check_same(state, self.config, self.data, allowed)
        self.engine.load(weights, memory, state["engine"])
        self.done = int(state["step"])
        self.standing = BestCheckpoint(**state["standing"])
        self.folder.cut_back(self.done)
        self.folder.event("resume", step=self.done)
        self.say(f"resume   from step {self.done:,} of {self.total:,}")

    def measure_and_plan(self) -> None:
        """Time a few steps on weights that are then put back; fix the number of steps and what follows from it."""
        kept = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        with faults.paused(), self.enough_memory(lambda: self.steps[0]):
            found = measure(self.model, self.config, self.data, self.steps, self.device, kept, self.parallel,
                            self.say, self.elapsed())  # fmt: skip
        put(self.model, kept)
        asked = self.config.training
        training, budget = decide_length(self.config, found, self.data, self.device, self.elapsed())
        training = Training.from_dict(self.peers.broadcast(training.to_dict))
        self.config = self.config.replace(training=training)
        self.folder.write(CONFIG_FILE, self.config.to_yaml())
        self.folder.update(settled=True, total=training.steps)
        self.folder.write_json(PLAN_FILE, {
            "predicted": {"step_seconds": found.step, "seconds": found.step * (training.steps or 1),
                          "memory_bytes": found.memory, "limit_bytes": found.limit},
            "compile": training.compile, "steps": training.steps, "eval_every": training.eval_every,
            "budget": None if budget is None else budget.plain(), "corrections": [],
        })  # fmt: skip
        for line in describe_length(training, found, self.order_rows(batch_stages(training, training.steps or 1))):
            self.say(line)
        if asked.minutes is not None and asked.steps is None and budget is not None and budget.most == training.steps:
            self.say("enough   more epochs than such data usually needs would only overfit: the rest of the time is "
                     "not used; --epochs N for more")  # fmt: skip
        faults.point("settled")

    # ------------------------------------------------------------ the loop

    def train(self) -> None:
        """All steps that are left."""
        settings = self.config.training
        self.progress = self.new_progress()
        self.evaluator = Evaluator(self.config.objective, self.data.preprocess, self.data.tokenizer,
                           batch=max(32, self.steps.micro), autocast=self.engine.autocast())  # fmt: skip
        self.pending: list[StepResult] = []
        self.lap, self.waited, self.paused = time.perf_counter(), 0.0, 0.0
        self.pace = Throughput(WINDOW * (self.budget.seconds if self.budget is not None else 60.0))
        end = ENDLESS if self.budget is not None and self.done < self.total else self.total
        fetching = stream(self.steps, self.done, end, workers=settings.workers or 0, device=self.device)
        with fetching as batches, display(self.progress, self.mode) if self.mode != "silent" else nullcontext():
            if self.done == 0 and self.folder.facts.get("fitted") and self.standing.best is None:
                self.evaluate(last=False)  # what the rows gave without a step may stay the best
                self.save()
            while self.done < self.total:
                if self.is_out_of_patience():  # also where a run is resumed that had stopped early
                    self.progress.note(self.explain_stop(), keep=True)
                    self.folder.event("early stop", step=self.done, best_step=self.standing.best_step)
                    break
                waiting = time.perf_counter()
                with self.enough_memory(lambda: self.steps[self.done]):
                    micros = next(batches)
                self.waited += time.perf_counter() - waiting
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
        """A step, and what is to be known of it."""
        self.unfreeze(step)
        with self.enough_memory(lambda: micros):
            step_result = self.engine.step(step, micros)
        step_result.rows = [self.steps.rows(step)]  # of all processes
        self.pending.append(step_result)
        late = self.engine.update.is_late
        looked_at = self.pending[-2:-1] if late else self.pending[-1:]
        for found in looked_at:
            if not self.engine.finite(found):
                self.diverged(found, micros if not late else self.steps[found.step - 1])
        if step == 0:  # a part of one's own may count in buffers, which no checkpoint holds: known now, not at the end
            check_buffers(self.config.model, self.model, "the model")
        self.done = step + 1
        self.peers.note_step(self.done)
        self.look_inside(step_result)
        if len(self.pending) >= (LATE if late else 1) or self.done == self.total:
            self.flush()

    def correct_plan(self) -> None:
        """Change the number of steps where the clock asks for it; it is written down before a step depends on it."""
        if self.budget is None or self.pending or self.done < self.decided:
            return
        found = self.peers.broadcast(self.find_correction)
        if found is None:
            return
        correction = Correction(**found)
        facts = self.folder.read_json(PLAN_FILE)
        facts["corrections"] = [*(facts.get("corrections") or ()), found]
        self.folder.write_json(PLAN_FILE, facts)
        self.plan.correct(correction)
        self.folder.update(total=correction.steps)
        self.folder.event("plan", step=correction.step, steps=correction.steps)
        self.progress.planned(correction.steps)

    def find_correction(self) -> dict[str, Any] | None:
        """The correction that the clock asks for, if any."""
        assert self.budget is not None
        found = self.budget.corrected(self.plan, self.done, self.elapsed(), self.pace, self.every,
                                      self.step_sizes)  # fmt: skip
        return None if found is None else asdict(found)

    @property
    def every(self) -> int:
        """Steps from one evaluation to the next."""
        return self.config.training.eval_every or self.total

    @property
    def step_sizes(self) -> list[tuple[int, float]]:
        """From which step on how large steps are, in full batches."""
        return [(stage.first, stage.batch / self.order.batch) for stage in self.order.stages]

    def flush(self) -> None:
        """Read the losses of the last steps and write them down."""
        if not self.pending:
            return
        for found in self.pending:
            if not self.engine.finite(found):
                self.diverged(found, self.steps[found.step - 1])
        rows = [line_of(step_result) for step_result in self.pending]
        self.folder.append(METRICS_FILE, rows)
        clock = time.perf_counter()
        seconds, count = max(1e-9, clock - self.lap - self.paused), len(self.pending)
        last = rows[-1]
        full = sum(size_at(self.step_sizes, step_result.step - 1) for step_result in self.pending)
        self.pace.stepped(full, seconds)
        units = full * self.progress.per_step
        self.progress.step(self.done, seconds, last["loss"], last["lr"], last["grad_norm"], self.waited, count=units)
        per_second = units / seconds
        self.folder.append(SPEED_FILE, [{"step": self.done, "seconds": round(seconds / count, 6),
                                         f"{self.progress.unit}_per_s": round(per_second, 1),
                                         "wait": round(self.waited / seconds, 4)}])  # fmt: skip
        self.lap, self.waited, self.paused = clock, 0.0, 0.0
        self.pending = []

    # ------------------------------------------------------------ between steps

    def evaluate(self, *, last: bool) -> None:
        """Evaluate the validation rows, remember the best, and let the model show what it makes."""
        began = time.perf_counter()
        self.flush()
        if self.data.valid is not None:
            self.progress.doing("evaluating")
            with self.enough_memory(lambda: self.steps[self.done - 1]), self.engine.evaluating() as model:
                with routed(model) as experts:
                    answers = self.evaluator(model, self.data.valid, most=self.config.training.eval_rows, decode=False)
                rows = min(len(self.data.valid), self.config.training.eval_rows or len(self.data.valid))
                self.pace.evaluated_rows(rows, time.perf_counter() - began)
                self.sample(model, last=last)
            scores, found = self.peers.broadcast(lambda: self.score(answers))
            if self.standing.take(EvaluationResult(*found), self.done):
                self.fresh_best = True
            line: dict[str, Any] = {"step": self.done, "eval": {"split": "valid", **scores},
                                    "choice": EvaluationResult(*found)._asdict()}  # fmt: skip
            self.folder.append(METRICS_FILE, [line | experts.facts()])
            self.progress.evaluated(self.done, scores)
            faults.point("evaluated")
        self.pace.evaluated(time.perf_counter() - began)
        self.time_decoding()
        self.paused += time.perf_counter() - began

    def score(self, answers: Answers) -> tuple[dict[str, float], EvaluationResult]:
        """All metrics of the validation rows, and what chooses between checkpoints."""
        scores, metric = self.task.all_metrics(answers), self.standing.metric
        if metric not in scores:
            raise UserError(f"unknown metric {metric!r} of {self.task.title}", where="training.metric",
                            fix=did_you_mean(metric, scores))  # fmt: skip
        sums = None if answers.predicted is None else self.task.row_sums(answers, metric)
        error = 0.0 if sums is None else standard_error(sums)
        return scores, EvaluationResult(scores[metric], self.task.selection_loss(answers), error)

    def time_decoding(self) -> None:
        """See now and then how long the texts of the final evaluation will take: a trained model ends them sooner."""
        if self.budget is None or not self.task.decodes or not self.peers.world.is_alone:
            return
        if self.elapsed() < self.decoding_known_until:
            return
        with self.engine.evaluating() as model:
            self.pace.decoding = time_writing(
                model, self.config, self.data, self.pace.row or 0.0, most=self.evaluator.batch
            )
        self.decoding_known_until = self.elapsed() + self.budget.seconds / 4

    decoding_known_until: float = 0.0  # seconds of the run

    def sample(self, model: Any, *, last: bool) -> None:
        """Keep something the model makes, a few times in a run; what cannot be made is no reason to stop."""
        every = max(1, self.total // SAMPLES)
        if self.parallel.shards or not self.peers.is_first:  # a model in parts writes one token after the other slowly
            return
        if not last and self.done % every >= (self.config.training.eval_every or 1):
            return
        try:
            made = self.task.write_sample(model, self.data, seed=self.config.training.seed)
            if isinstance(made, bytes):
                self.folder.write(f"samples/step-{self.done:06}.png", made)
            elif made is not None:
                self.folder.write(f"samples/step-{self.done:06}.txt", made + "\n")
                self.progress.sample(self.done, made)
        except Exception as error:
            self.folder.event("sample failed", step=self.done, error=short_error(error))

    def look_inside(self, step_result: StepResult) -> None:
        """Measure the model on the rows of the probe, where this step is one that it asks for."""
        probe = self.config.training.probe
        if probe is None or self.done % probe.every or self.parallel.shards or not self.peers.is_first:
            return
        from anyformer.inspection.probe_figures import probe_figures

        try:
            with self.engine.evaluating() as model, self.engine.autocast():
                step_result.probe = probe_figures(model, self.probe_batch, layers=probe.layers)
        except Exception as error:  # what cannot be measured is no reason to stop
            self.folder.event("probe failed", step=self.done, error=short_error(error))

    @cached_property
    def probe_batch(self) -> Batch:
        """The rows that are looked at again and again: the first validation rows, or of training without them."""
        assert self.config.training.probe is not None
        examples = self.data.train if self.data.valid is None else self.data.valid
        rows = np.arange(min(len(examples), self.config.training.probe.rows))
        return self.config.objective.corrupt(examples.batch(rows), EVALUATION, examples).to(self.device)

    @contextmanager
    def saved_on_failure(self) -> Iterator[None]:
        """Steps that are done are kept even where what comes between them fails."""
        try:
            yield
        except Exception:
            if self.peers.world.is_alone:  # others would have to take part, and do not know
                with suppress(Exception):  # the first error is the one to tell
                    self.save()
            raise

    fresh_best: bool = False
    pause_after: float | None = None  # seconds of the run after which it stops at the next evaluation, to be resumed
    has_paused: bool = False

    def is_pause(self, *, evaluated: bool) -> bool:
        """Whether a search has given this run as much time as it had for it."""
        return self.pause_after is not None and evaluated and self.elapsed() >= self.pause_after

    def is_out_of_patience(self) -> bool:
        """Whether enough passes over the data, and enough evaluations, have bettered neither metric nor loss."""
        patience, moved = self.config.training.patience, self.standing.moved_step
        if patience is None or moved is None or self.standing.since < LEAST_EVALUATIONS:
            return False
        return self.order.passes(moved, self.done) >= patience

    def explain_stop(self) -> str:
        """Why a run ends before its last step."""
        standing = self.standing
        passes = self.order.passes(standing.moved_step or 0, self.done)
        what = "loss" if standing.metric == "loss" else f"{standing.metric} or loss"
        return (
            f"stopped early at step {self.done:,} of {self.total:,}: no better {what} of the validation rows in "
            f"{passes:,.0f} passes over the data; more would only overfit (training.patience)"
        )

    def save(self) -> None:
        """Commit a checkpoint, then delete the oldest; the best one and the newest stay."""
        began = time.perf_counter()
        self.flush()
        self.progress.doing("saving")
        self.refuse_nonfinite()
        missing = self.peers.broadcast(lambda: bool(store.problem(self.checkpoint)))
        if missing and self.parallel.shards and not self.peers.is_first:
            give_parts(self.engine)
        self.peers.broadcast(self.commit)
        self.fresh_best = False
        self.progress.note(f"saved step {self.done:,}")
        seconds = time.perf_counter() - began
        self.paused += seconds
        self.pace.saved(seconds)

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint of this step belongs."""
        return self.folder.checkpoints / store.checkpoint_name(self.done)

    def commit(self) -> None:
        """Write the checkpoint of this step, unless it is there, and delete the oldest."""
        if store.problem(self.checkpoint):
            store.flush(self.folder.path / METRICS_FILE)  # what is saved has its lines, whatever happens to the machine
            save_checkpoint(self.checkpoint, self.config, self.data, self.engine, self.done, vars(self.standing))
        faults.point("saved")
        self.rotate_checkpoints()

    def rotate_checkpoints(self) -> None:
        """After a save, or one that was cut short: delete old checkpoints, and let run.json say how the run stands."""
        best = self.standing.best_step
        store.rotate(self.folder.checkpoints, self.config.training.keep, [] if best is None else [best],
                     newest=self.done, counts=self.is_save_step)  # fmt: skip
        value = None if self.standing.best is None else {"metric": self.standing.metric, "value": self.standing.best}
        self.folder.update(step=self.done, best_step=best, best=value, **self.seconds_spent())

    def is_save_step(self, step: int) -> bool:
        """Whether a run that nobody stops saves at this step; a stop's own checkpoint goes when the next one is there,
        so that a run leaves the same checkpoints however often it was stopped."""
        return step == self.total or step % (self.config.training.save_every or self.total) == 0

    def refuse_nonfinite(self) -> None:
        """A checkpoint with a weight that is not finite could only be resumed into the same failure."""
        for name, value in self.engine.weights().items():
            if not bool(torch.isfinite(local(value)).all()):
                raise Diverged(f"step {self.done:,}: the weight {name} is not finite", where=str(self.folder.path),
                               fix="lower the learning rate: --set training.optimizer.lr=0.0003",
                               details=["it was not saved; the checkpoint before is intact"])  # fmt: skip

    def elapsed(self) -> float:
        """Seconds of this run, in all its processes."""
        return self.seconds + time.perf_counter() - self.started

    def seconds_spent(self) -> dict[str, Any]:
        return {"seconds": round(self.elapsed(), 1)}

    def new_progress(self) -> Progress:
        """What the display reads."""
        tokens = self.task.counts_tokens
        per_step = self.batch * (self.data.train.length if tokens else 1)  # type: ignore[attr-defined]
        metric = self.standing.metric
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        peak = peak_flops(gpu, self.config.training.precision) if gpu else None
        # Six operations a weight and token: two forward, four backward; attention and rows of padding are left out.
        flops = 6 * sum(p.numel() for p in self.model.parameters()) * per_step if tokens else None
        return Progress(
            self.total, per_step, unit="tokens" if tokens else "rows", metric=metric,
            better="lower" if direction(metric) == "min" else "higher", first=self.done, title=self.folder.path.name,
            memory=lambda: memory_of(self.device), flops_per_step=flops,
            peak=None if peak is None else peak * self.peers.world.size,
        )  # fmt: skip

    def take_whole_model(self) -> None:
        """After the last step: the first process has the whole model, where there were parts of it only."""
        self.peers.part()
        if self.parallel.shards and self.peers.is_first:
            self.model = self.config.model.build(seed=self.config.training.seed, device=self.device)

    # ------------------------------------------------------------ when it goes wrong

    def diverged(self, step_result: StepResult, micros: list[Any]) -> None:
        """Stop before anything is spoilt: the weights are those of the step before."""
        step = step_result.step - 1
        # The process whose rows did it can name them; the others see only that the sum is not finite.
        found = self.peers.gather(find_culprit(self.engine, step_result, micros))
        rows, tensor = next((pair for pair in found if pair[0]), found[0])
        if not self.peers.is_first:
            raise AlreadyReported(Diverged.exit_code)
        all_rows = torch.cat(step_result.rows).tolist()
        shown = [self.data.train.place(row) for row in (rows or all_rows)[:5]]
        self.done = step
        self.folder.append(METRICS_FILE, [line_of(found) for found in self.pending if found.step <= step_result.step])
        self.pending = []
        self.folder.write("crash.txt", f"step {step_result.step}: {tensor} is not finite\nrows {all_rows}\n")
        best = "" if not rows else f" at {shown[0]}"
        # Of several phases an earlier one may have moved its weights before a later one failed.
        kept = "the weights are those of the step before"
        kept = kept if len(self.engine.phases) == 1 else "nothing was saved; the last checkpoint is intact"
        raise Diverged(
            f"step {step_result.step:,}: {tensor} is not finite (loss {float(step_result.loss)}){best}; "
            f"rows {all_rows[:8]}",
            where=str(self.folder.path), fix="lower the learning rate: --set training.optimizer.lr=0.0003",
            details=[f"row {place}" for place in shown] + [kept],
        )  # fmt: skip

    def enough_memory(self, micros: Callable[[], list[Any]]) -> AbstractContextManager[None]:
        """Where memory runs out inside, what was tried is said, and three ways down."""
        return enough_memory(lambda: too_large(
            self.config.training, self.done + 1, len(micros()[0]), self.data.preprocess.length, self.folder.path
        ))  # fmt: skip


# ---------------------------------------------------------------- small things


def memory_of(device: torch.device) -> Memory:
    return usage(str(device))


def short_error(error: Exception) -> str:
    """An error as a line of a log."""
    return f"{type(error).__name__}: {error}"[:200]


def describe_length(training: Any, found: TrialTimes, order: Order) -> list[str]:
    """How long it will take, and how much memory."""
    epochs = order.passes(0, training.steps)
    seconds = training.steps * found.step * mean_step_size(training, training.steps) + found.pauses
    limit = f" of {found.limit / 2**30:,.1f} GiB" if found.limit else ""
    return [
        f"steps    {training.steps:,} ({epochs:,.1f} passes over the data), {found.step * 1e3:,.1f} ms each: about "
        f"{duration(seconds)}; {'compiled' if training.compile else 'not compiled'}",
        f"memory   {found.memory / 2**30:,.2f} GiB{limit} in the first steps",
    ]
