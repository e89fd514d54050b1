"""Settings of a training, and the whole of a run's settings in one tree."""

from __future__ import annotations

from typing import Literal

from anyformer.data.settings import Data
from anyformer.errors import UserError, check_fraction
from anyformer.objectives import Objective
from anyformer.slots import Network
from anyformer.spec import Spec, field
from anyformer.training.batch_schedule import BatchSchedule
from anyformer.training.freezing import Unfreeze
from anyformer.training.lora import LoRA
from anyformer.training.optim import AdamW, Optimizer
from anyformer.training.probe import Probe
from anyformer.training.schedule import Cosine, Schedule

Precision = Literal["auto", "fp32", "bf16", "fp16"]
ParallelKind = Literal["auto", "ddp", "fsdp", "tensor"]


class Training(Spec):
    """How a model is trained. None and "auto" are decided before the first step, printed and written down.

    `steps` or `epochs` is its length, `minutes` its time at most. `batch_size` rows make a step, taken
    `micro_batch_size` at a time. `grad_clip` is the norm that gradients are cut to, None for none. `ema` is the decay
    of a running mean of the weights, which is then evaluated and saved; `average` n takes the mean of the last n
    checkpoints at the end. `patience` stops after that many passes over the data, three evaluations at least, in which
    neither the metric nor the loss of the validation rows got better. `metric` chooses the checkpoint: those within one
    standard error of the best are a tie, and the loss decides between them.
    """

    steps: int | None = None
    """Optimizer steps of the run; by `epochs`, `minutes` or the kind of data if not given."""
    epochs: float | None = None
    """Passes over the training rows, in place of steps."""
    minutes: float | None = None
    """Time of the run at most."""
    batch_size: int | None = None
    """Rows a step, in all processes together; by the kind of data if not given."""
    micro_batch_size: int | None = None
    """Rows taken at a time, with the same result; the whole batch if not given."""
    batch_size_schedule: BatchSchedule | None = None
    """Smaller batches for the first steps; `batch_size` rows in every step if not given."""
    optimizer: Optimizer = field(default_factory=AdamW)
    """What updates the weights."""
    schedule: Schedule = field(default_factory=Cosine)
    """The learning rate over the run."""
    freeze: tuple[str, ...] | None = None
    """Paths of modules that learn nothing, such as embed or stack.blocks.0; `*` is anything; none if not given."""
    unfreeze: Unfreeze | None = None
    """Layers that learn only later in the run; all from the first step on if not given."""
    lora: LoRA | None = None
    """Adapters that learn in place of the weights of a model to start from; the weights themselves if not given."""
    grad_clip: float | None = 1.0
    """Norm that gradients are clipped to; None: they are not."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto: bf16 where the device has it."""
    compile: Literal["auto"] | bool = "auto"
    """Whether the model is compiled; auto: where it saves more time than it takes."""
    cuda_graph: Literal["auto"] | bool = "auto"
    """Whether a step is recorded as one CUDA graph; auto: where launches would take longer than the work."""
    parallel: ParallelKind = "auto"
    """How several processes share a step: ddp each its rows, fsdp weights too, tensor heads and channels; auto: ddp."""
    deterministic: bool = False
    """Whether torch must use deterministic algorithms; what that costs is timed and said."""
    ema: float | None = None
    """Decay of a running mean of the weights, which is then evaluated and saved; none if not given."""
    average: int = 0
    """Number of last checkpoints averaged at the end; 0: none."""
    patience: float | None = None
    """Passes after which the run stops if neither metric nor loss got better; never if not given."""
    metric: str | None = None
    """The metric that chooses the checkpoint and the threshold; the task's own if not given."""
    threshold: Literal["auto"] | float | None = "auto"
    """From which probability on the second of two classes, or a label, is answered; auto: by validation; null: 0.5."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether rare classes weigh as much as frequent ones."""
    save_every: int | None = None
    """Steps from one checkpoint to the next; with every evaluation if not given."""
    eval_every: int | None = None
    """Steps from one evaluation to the next; about 20 in the run if not given."""
    eval_rows: int | None = 10_000
    """Rows of an evaluation while training; the final evaluation takes all."""
    keep: int = 2
    """Checkpoints kept, beside the best."""
    probe: Probe | None = None
    """What is measured inside the model every so many steps; nothing if not given."""
    workers: int | None = None
    """Processes that prepare batches; 0: the training process itself; where training would wait if not given."""
    seed: int = 0
    """What everything random follows from."""
    threads: int | None = None
    """CPU threads; what is fastest here if not given."""

    def check(self) -> None:
        least = {"steps": 1, "batch_size": 1, "micro_batch_size": 1, "average": 0, "save_every": 1,
                 "eval_every": 1, "eval_rows": 1, "keep": 1, "workers": 0, "seed": 0, "threads": 1}  # fmt: skip
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise UserError(
                    f"{name} {value} is below {bound}", where=f"training.{name}", fix=f"use {max(1, bound)}"
                )
        if self.minutes is not None and not 0 < self.minutes < 10**6:
            raise UserError(f"minutes {self.minutes} is outside (0, 1000000)", where="training.minutes", fix="use 10")
        if self.epochs is not None and not 0 < self.epochs < 10**6:
            raise UserError(f"epochs {self.epochs} is outside (0, 1000000)", where="training.epochs", fix="use 3")
        if self.steps is not None and self.epochs is not None:
            raise UserError("both steps and epochs are given", where="training", fix="give one of them")
        if self.patience is not None and not self.patience > 0:
            raise UserError(f"patience {self.patience} is not positive", where="training.patience", fix="use 5")
        if isinstance(self.threshold, float) and not 0 < self.threshold < 1:
            raise UserError(f"threshold {self.threshold} is outside 0 to 1", where="training.threshold", fix="use 0.5")
        if self.grad_clip is not None and self.grad_clip <= 0:
            raise UserError(f"grad_clip {self.grad_clip} is not positive", where="training.grad_clip", fix="use 1.0")
        check_fraction("training", "ema", self.ema, zero=False, fix="use 0.999")
        if (
            self.batch_size is not None
            and self.micro_batch_size is not None
            and self.micro_batch_size > self.batch_size
        ):
            raise UserError(
                f"micro_batch_size {self.micro_batch_size} is larger than batch_size {self.batch_size}",
                where="training.micro_batch_size", fix=f"use {self.batch_size} or less",
            )  # fmt: skip
        if self.lora is not None and self.average > 1:
            raise UserError("the mean of several adapters has a higher rank", where="training.average",
                            fix="leave it out, or use training.ema")  # fmt: skip
        if self.batch_size is not None and self.batch_size_schedule is not None:
            self.batch_size_schedule.check_batch(self.batch_size)
        if self.seed >= 2**31:
            raise UserError(f"seed {self.seed} is too large", where="training.seed", fix="use one below 2147483648")


def batch_stages(settings: Training, steps: int) -> tuple[tuple[int, int], ...]:
    """From which step on how many rows make a step, in a run of `steps` steps; nothing where all have `batch_size`."""
    schedule = settings.batch_size_schedule
    return () if schedule is None else schedule.stages(settings.batch_size or 1, steps)


class Config(Spec):
    """All that decides a run, beside the files: what `config.yaml` holds."""

    task: str
    data: Data
    model: Network
    objective: Objective
    training: Training
    preset: str = ""  # where the model's sizes came from, for people
    start: str = ""  # the folder whose weights it starts from
