"""Training settings, and the complete settings of a run as one tree."""

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
    """How a model is trained. None and "auto" are decided before the first step, logged and saved.

    `steps` or `epochs` is its length, `minutes` its time limit. A step takes `batch_size` rows, `micro_batch_size` at a
    time with gradient accumulation. `grad_clip` is the maximal gradient norm, None for no clipping. `ema` is the decay
    of a moving average of the weights, which is then evaluated and saved; `average` n takes the mean of the last n
    checkpoints at the end. `patience` stops after that many epochs, and at least three evaluations, without improvement
    of the validation metric or loss. `metric` selects the checkpoint: those within one standard error of the best are a
    tie, and the loss decides between them.
    """

    steps: int | None = None
    """Optimizer steps of the run; by `epochs`, `minutes` or the kind of data if not given."""
    epochs: float | None = None
    """Passes over the training rows, instead of steps."""
    minutes: float | None = None
    """Time limit of the run in minutes."""
    batch_size: int | None = None
    """Rows per step, of all processes together; by the kind of data if not given."""
    micro_batch_size: int | None = None
    """Rows per forward pass, with gradient accumulation; the whole batch if not given."""
    batch_size_schedule: BatchSchedule | None = None
    """Smaller batches for the first steps; `batch_size` rows in every step if not given."""
    optimizer: Optimizer = field(default_factory=AdamW)
    """What updates the weights."""
    schedule: Schedule = field(default_factory=Cosine)
    """The learning rate over the run."""
    freeze: tuple[str, ...] | None = None
    """Paths of frozen modules, such as embed or stack.blocks.0; `*` matches anything; none if not given."""
    unfreeze: Unfreeze | None = None
    """Gradual unfreezing of layers; all are trained from the first step if not given."""
    lora: LoRA | None = None
    """Train LoRA adapters instead of the weights of the start model; the weights themselves if not given."""
    grad_clip: float | None = 1.0
    """Maximal gradient norm; None: no clipping."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto: bf16 where the device has it."""
    compile: Literal["auto"] | bool = "auto"
    """Whether the model is compiled; auto: where it saves more time than it takes."""
    cuda_graph: Literal["auto"] | bool = "auto"
    """Whether a step is captured as one CUDA graph; auto: where kernel launches would take longer than the work."""
    parallel: ParallelKind = "auto"
    """How processes share a step: ddp splits rows, fsdp also weights, tensor splits heads and channels; auto: ddp."""
    deterministic: bool = False
    """Whether torch must use deterministic algorithms; the cost is measured and logged."""
    ema: float | None = None
    """Decay of a moving average of the weights, which is then evaluated and saved; none if not given."""
    average: int = 0
    """Number of last checkpoints averaged at the end; 0: none."""
    patience: float | None = None
    """Epochs without improvement of metric or loss after which the run stops; never if not given."""
    metric: str | None = None
    """The metric that selects the checkpoint and the threshold; the task's own if not given."""
    threshold: Literal["auto"] | float | None = "auto"
    """Probability from which the second of two classes, or a label, is predicted; auto: by validation; null: 0.5."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether rare classes get the same total weight as frequent ones."""
    save_every: int | None = None
    """Steps between checkpoints; with every evaluation if not given."""
    eval_every: int | None = None
    """Steps between evaluations; about 20 evaluations per run if not given."""
    eval_rows: int | None = 10_000
    """Rows per evaluation during training; the final evaluation takes all."""
    keep: int = 2
    """Checkpoints kept, beside the best."""
    probe: Probe | None = None
    """Internal statistics of the model measured every few steps; none if not given."""
    workers: int | None = None
    """Processes that prepare batches; 0: the training process itself; only if training would wait if not given."""
    seed: int = 0
    """Seed of all randomness."""
    threads: int | None = None
    """CPU threads; the fastest number here if not given."""

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
            raise UserError("adapters cannot be averaged: their mean has a higher rank", where="training.average",
                            fix="leave it out, or use training.ema")  # fmt: skip
        if self.batch_size is not None and self.batch_size_schedule is not None:
            self.batch_size_schedule.check_batch(self.batch_size)
        if self.seed >= 2**31:
            raise UserError(f"seed {self.seed} is too large", where="training.seed", fix="use one below 2147483648")


def batch_stages(settings: Training, steps: int) -> tuple[tuple[int, int], ...]:
    """(first step, rows) of each stage in a run of `steps` steps; empty if every step has `batch_size` rows."""
    schedule = settings.batch_size_schedule
    return () if schedule is None else schedule.stages(settings.batch_size or 1, steps)


class Config(Spec):
    """Everything that determines a run except the data files: the contents of `config.yaml`."""

    task: str
    data: Data
    model: Network
    objective: Objective
    training: Training
    preset: str = ""  # where the model's sizes came from; informational
    start: str = ""  # the folder whose weights it starts from
