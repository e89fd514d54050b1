"""From a request to a resolved config: data, network, training settings, objective, each checked."""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import nn

from anyformer.amounts import millions
from anyformer.data.examples import Examples
from anyformer.data.order import Order
from anyformer.data.prepared import Prepared, StartModelConstraints
from anyformer.data.preprocess import sizes as sizes_of
from anyformer.data.reopen import keep
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.inference.devices import pick_device
from anyformer.inference.predictor import Predictor
from anyformer.log import Log
from anyformer.objectives import Objective
from anyformer.slots import Network
from anyformer.tasks import Task, find
from anyformer.tasks.network import compares_texts, longest, reads_words
from anyformer.tasks.prepare import prepare
from anyformer.training.distributed.parallel import choose_trained
from anyformer.training.run.folder import RunFolder
from anyformer.training.settings import Config, Training, batch_stages
from anyformer.training.setup.bf16_probe import check_bf16
from anyformer.training.setup.choose_network import check_length, choose_network, describe_network
from anyformer.training.setup.defaults import default_training
from anyformer.training.setup.idle_settings import refuse_idle
from anyformer.training.setup.initial_weights import shared_weights
from anyformer.training.setup.reasons import report_choice, report_defaults, report_preset
from anyformer.training.setup.request import Request, replace_paths
from anyformer.training.setup.teacher import Teacher


def resolve_config(
    request: Request, start: Predictor | None, teacher: Teacher | None, folder: RunFolder, log: Log,
    device: torch.device,
) -> tuple[Config, Prepared]:  # fmt: skip
    """Prepare the data in the folder's cache, and resolve everything that needs no timing."""
    if teacher is not None:
        request = teacher.choose_task(request)
    seed = int(request.section("training").get("seed", 0) or 0)
    settings = request.data(default_data(request, start))
    given = given_by(request, start)
    prepared = prepare(
        request.source, task=request.task, settings=settings, seed=seed, cache=folder.cache,
        given=given if teacher is None else teacher.complete(given), log=log,
    )  # fmt: skip
    task = find(prepared.task)
    require_packages(task)
    refuse_idle(request, prepared)
    keep(prepared, folder.cache)
    sizes = Sizes.of(sizes_of(prepared.preprocess, prepared.tokenizer) | {"rows": len(prepared.train)})
    gpu = device.type != "cpu"
    spec, name = choose_network(request, task, sizes, start, gpu=gpu)
    check_length(spec, sizes)
    asked = request.section("training")
    training = default_training(
        task, sizes, len(prepared.train), gpu=gpu, start=start is not None, seed=seed,
        has_length=asked.get("steps") is not None or asked.get("epochs") is not None,
    )  # fmt: skip
    training = replace_paths(training, asked, "training")
    objective = default_objective(request, task, prepared, sizes, training)
    spec = task.extend_network(spec, name, objective)
    objective = task.fit_objective(objective, spec)
    if teacher is not None:
        objective = teacher.settle(objective, prepared, spec)
        log(f"teacher  {request.teacher}: {teacher.describe()}")
    training = resolve_training(training, prepared.train, objective, device)
    training = resolve_adapters(training, spec, start)
    config = Config(
        task=prepared.task, data=prepared.settings or settings, model=spec, objective=objective, training=training,
        preset=name,
        start=str(request.start.resolve()) if request.start is not None else "",
    )  # fmt: skip
    report_preset(request, name, task, sizes, log, gpu=gpu, start=start is not None)
    report_config(config, device, log, start=None if start is None else str(request.start))
    report_defaults(request, training, objective, task, sizes, log, start=start is not None)
    report_choice(training, task, prepared, log)
    return config, prepared


def report_config(config: Config, device: torch.device, log: Log, *, start: str | None) -> None:
    """Log the network and how it is trained; an unknown path in `training.freeze` is an error."""
    training, network = config.training, config.model.build(device="meta")
    count = sum(p.numel() for p in network.parameters() if p.requires_grad)
    how = config.preset if start is None else f"from {start}"
    log(f"model    {how}: {millions(count)} parameters, {describe_network(config.model)}")
    grown = "".join(f" (from {rows} on)" for _, rows in batch_stages(training, steps=1000)[:1])
    log(
        f"training {optimizer_words(training)}, batch {training.batch_size}{grown}"
        f"{'' if training.micro_batch_size == training.batch_size else f' in parts of {training.micro_batch_size}'}, "
        f"{training.precision} on {device}, seed {training.seed}"
    )
    report_trained(network, training, log)


def report_trained(network: nn.Module, training: Training, log: Log) -> None:
    """Reject paths that are not in the network (built on `meta`), and log how much of it is trained."""
    choose_trained(network, training)
    if training.freeze is not None or training.lora is not None:
        counts = {
            learns: sum(p.numel() for p in network.parameters() if p.requires_grad is learns)
            for learns in (True, False)
        }
        log(f"trained  {counts[True]:,} parameters; {counts[False]:,} are frozen")


def optimizer_words(training: Training) -> str:
    """The optimizer with its learning rate and schedule."""
    kind = type(training.optimizer).__name__
    return f"{kind} at {training.optimizer.lr:g} ({type(training.schedule).__name__.lower()})"  # type: ignore[attr-defined]


# ---------------------------------------------------------------- data


def require_packages(task: Task) -> None:
    """Reject a task whose packages are not installed, before any work."""
    for package in task.needs:
        require(package, f"{task.title} needs")


def default_data(request: Request, start: Predictor | None) -> Data:
    """Default data settings for the requested task and network."""
    if request.task is None:
        return Data()
    named = None if request.preset is None else request.network()
    return find(request.task).default_data(named if start is None else start.spec)


def given_by(request: Request, start: Predictor | None) -> StartModelConstraints:
    """Constraints on the data from the network or the start model."""
    if start is None:
        named = None if request.preset is None else request.network()
        return StartModelConstraints(segments=named is None or compares_texts(named) or None, network=named,
                     slow=pick_device(request.device).type == "cpu")  # fmt: skip
    columns = () if start.preprocess is None else start.preprocess.columns or ()
    return StartModelConstraints(
        tokenizer=start.tokenizer, images=start.images, length=longest(start.spec), columns=tuple(columns),
        segments=compares_texts(start.spec) or None, network=start.spec, reads_words=reads_words(start.spec),
    )  # fmt: skip


# ---------------------------------------------------------------- objective and training settings


def default_objective(
    request: Request, task: Task, prepared: Prepared, sizes: Sizes, training: Training
) -> Objective:  # fmt: skip
    """The task's objective, with the teacher and the requested settings on top."""
    target = prepared.preprocess.target
    counts = None if target is None else target.label_counts()
    objective = task.default_objective(sizes, counts, balanced=training.class_weights == "balanced")
    return replace_paths(request.taught(objective), request.section("objective"), "objective")


def resolve_training(training: Training, examples: Examples, objective: Objective, device: torch.device) -> Training:
    """Checked training settings for this objective and device, with everything resolved except what needs timing."""
    check_compile(training, objective)
    check_phases(training, objective)
    check_batch_size(training, objective)
    training = resolve_settings(training, examples, objective, device)
    check_batch_size(training, objective)
    check_bf16(training, device)
    return training


def resolve_settings(training: Training, examples: Examples, objective: Objective, device: torch.device) -> Training:
    """Resolve every setting that needs no timing; epochs become steps."""
    batch = min(training.batch_size or 32, len(examples))
    steps = training.steps
    if training.epochs is not None:
        steps = steps_of_epochs(training.replace(batch_size=batch), examples, objective)
    precision = training.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return training.replace(
        steps=steps, epochs=None, batch_size=batch, micro_batch_size=min(training.micro_batch_size or batch, batch),
        precision=precision, keep=max(training.keep, training.average, 2),
    )  # fmt: skip


def steps_of_epochs(training: Training, examples: Examples, objective: Objective) -> int:
    """The number of steps for the requested epochs."""
    epochs, whole = training.epochs or 1.0, objective.min_batch_size > 1

    def order_of(steps: int) -> Order:
        sizes = batch_stages(training, steps)
        return Order.of(examples, training.batch_size or 1, training.seed, whole_batches=whole, sizes=sizes)

    least = max(1, round(epochs * order_of(1).steps))  # with the full batch; smaller batches need more steps
    if training.batch_size_schedule is None:
        return least
    most = least
    while order_of(most).passes(0, most) < epochs:
        most *= 2
    return bisect_left(range(least, most), epochs, key=lambda steps: order_of(steps).passes(0, steps)) + least


def resolve_adapters(training: Training, spec: Network, start: Predictor | None) -> Training:
    """LoRA settings with `trained` resolved: modules that the start model lacks are trained fully."""
    lora = training.lora
    if lora is None:
        return training
    if start is None:
        raise UserError("adapters change a trained model, and there is none to start from", where="training.lora",
                        fix="give --from FOLDER")  # fmt: skip
    _, fresh = shared_weights(start.model, spec)
    modules = tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in fresh))
    return training if lora.trained is not None or not modules else training.replace(lora=lora.replace(trained=modules))


def check_batch_size(training: Training, objective: Objective) -> None:
    """Reject batches that are smaller than the objective needs."""
    sizes = [("batch_size", training.batch_size), ("micro_batch_size", training.micro_batch_size)]
    for name, size in [*sizes, *(("batch_size_schedule", rows) for _, rows in batch_stages(training, steps=1000))]:
        if size is not None and size < objective.min_batch_size:
            raise UserError(f"{name} {size} is below {objective.min_batch_size}", where=f"training.{name}",
                            fix="use 64: batch norm needs more")  # fmt: skip


def check_compile(training: Training, objective: Objective) -> None:
    """Reject compilation for objectives that do not support it."""
    if training.compile is True and not objective.compiles:
        raise UserError(f"the losses of {type(objective).__name__} cannot be compiled", where="training.compile",
                        fix="leave it out")  # fmt: skip


def check_phases(training: Training, objective: Objective) -> None:
    """Reject gradual unfreezing if several networks are trained in turn."""
    if training.unfreeze is not None and len(objective.phases()) > 1:
        raise UserError(f"{type(objective).__name__} moves two networks in turn, which have no common layers",
                        where="training.unfreeze", fix="leave it out")  # fmt: skip
