"""`plan` for every kind of source: a spec, a preset, a model folder, a run, or data that `train` would take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from anyformer.data.order import Order
from anyformer.data.reopen import reopen
from anyformer.deprecated_names import log_of
from anyformer.errors import UserError, did_you_mean
from anyformer.log import Log, silence
from anyformer.planning.devices import DeviceCeilings, find_device
from anyformer.planning.model_plan import ModelPlan
from anyformer.planning.model_plan import plan as plan_model
from anyformer.planning.sources import spec_in
from anyformer.presets import PRESETS, preset
from anyformer.safe_files import scratch_folder
from anyformer.slots import Network
from anyformer.training.distributed.parallel import choose_trained
from anyformer.training.loader import Steps
from anyformer.training.run.folder import RUN_FILE, RunFolder
from anyformer.training.setup.budget import SHARE, wanted_steps
from anyformer.training.setup.defaults import MINUTES
from anyformer.training.setup.new_run import create
from anyformer.training.setup.planned_run import look_at_steps
from anyformer.training.setup.request import Request

MODEL_FILES = ("config.json", "anyformer.json")


@dataclass(frozen=True)
class PlannedSource:
    """A model, and its training if known: the micro-batch, micro-batches per step, and steps."""

    spec: Network
    name: str
    batch: int = 1
    length: int | None = None
    parts: int = 1
    steps: int | None = None  # None: as many as fit the minutes, at most `wanted`
    wanted: int | None = None  # default number of steps; None if nothing is trained
    minutes: float | None = None
    learning: int | None = None

    def steps_on(self, found: ModelPlan) -> int | None:
        """Steps of the run, if any; a time-limited run has as many as fit on the device."""
        if self.steps is not None or self.wanted is None:
            return self.steps
        minutes = MINUTES[found.device.kind] if self.minutes is None else self.minutes
        return max(2, min(self.wanted, int(minutes * 60 * (1 - SHARE) / found.seconds_of_step(self.parts))))


def plan(
    source: Network | str | Path, *, batch: int | None = None, length: int | None = None,
    device: str | DeviceCeilings = "h200", processes: int = 1, dtype: torch.dtype | None = None,
    train_tokens: float | None = None, price: float | None = None, name: str | None = None,
    learning: int | None = None, log: Log = silence, say: Log | None = None,
) -> ModelPlan:  # fmt: skip
    """Estimate a model's parameters, FLOPs, memory, KV cache, time and parallel split; nothing is allocated.

    `source` is a spec, the name of a preset, a model folder, the folder of a run, or data to train on. A run and data
    have their own batch, length and number of steps as defaults; data is prepared as by `train`, and `log` gets its
    messages. `length` is the number of tokens per text, by default the model's maximum (1,024 at most). Numbers are
    bf16 on a GPU and float32 on a CPU unless `dtype` is given. `learning` is the number of trained weights, if not all
    are. `say` is the old name of `log`.

    >>> found = plan("gpt2", batch=8, length=1024)
    >>> found.parameters.total, found.caches[0].bytes // 8 // 1024
    (124439808, 36864)
    """
    place = find_device(device)
    given = find_source(source, log_of(log, say))
    found = plan_model(
        given.spec, batch=given.batch if batch is None else batch, length=given.length if length is None else length,
        device=place, processes=processes, dtype=dtype, train_tokens=train_tokens, price=price,
        name=given.name if name is None else name, learning=given.learning if learning is None else learning,
    )  # fmt: skip
    steps, parts = given.steps_on(found), given.parts if batch is None else 1
    if steps is None or train_tokens is not None:
        return found
    return replace(found, steps=steps, parts=parts, train_tokens=float(steps) * parts * found.tokens)


def find_source(source: Network | str | Path, log: Log = silence) -> PlannedSource:
    """Resolve a source: its spec, its display name, and its training if known."""
    if isinstance(source, Network):
        return PlannedSource(source, type(source).__name__)
    if str(source) in PRESETS:
        return PlannedSource(preset(str(source)), str(source))
    path = Path(source)
    if (path / RUN_FILE).is_file():
        return of_run(RunFolder.open(path))
    if path.is_dir() and any((path / name).is_file() for name in MODEL_FILES):
        return PlannedSource(spec_in(path), path.name)
    if path.exists():
        with scratch_folder() as folder:
            request = Request([path], device="cpu", out=folder / "run")
            run = create(request, log, torch.device("cpu"), weights=False)
            return replace(of_run(run), name=path.name)
    raise UserError(f"{str(source)!r} is neither a preset nor a path", where="plan",
                    fix=did_you_mean(str(source), PRESETS))  # fmt: skip


def of_run(run: RunFolder) -> PlannedSource:
    """A run, by its settings and first batches."""
    config = run.config()
    settings = config.training
    data, batch = reopen(run.cache), settings.batch_size or 1
    micro = min(settings.micro_batch_size or batch, batch)
    with torch.device("meta"):
        net = config.model.build(device="meta")
        choose_trained(net, settings)
    learning = sum(p.numel() for p in net.parameters() if p.requires_grad)
    if data is None:  # the prepared rows were deleted: use the settings only
        return PlannedSource(config.model, run.path.name, micro, None, -(-batch // micro), settings.steps,
                             learning=learning)  # fmt: skip
    whole = config.objective.min_batch_size > 1
    order = Order.of(data.train, batch, settings.seed, whole_batches=whole)
    steps = Steps(data.train, order, config.objective, micro)
    count = settings.steps or wanted_steps(config, data)
    rows, length, parts = look_at_steps(config.model, steps, count)
    return PlannedSource(config.model, run.path.name, rows, length, parts, settings.steps, count, settings.minutes,
                         learning)  # fmt: skip
