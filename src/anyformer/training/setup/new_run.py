"""A run's folder before its first step: the data prepared, everything decided, said and written down.

The folder is made beside its final place and renamed at the end: bad input leaves nothing behind, and a run that is
there can always be resumed.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.checkpoints import store, tensors
from anyformer.checkpoints.surgery import spread_layers
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.data.examples import Examples
from anyformer.data.order import Order
from anyformer.data.prepared import Given, Prepared
from anyformer.data.preprocess import sizes as sizes_of
from anyformer.data.reopen import keep
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.embeds import Tokens
from anyformer.errors import NoRoom, UserError
from anyformer.extras import require
from anyformer.inference.predictor import Predictor, load
from anyformer.nets.electra import DISCRIMINATOR
from anyformer.nets.sagan import SAGAN
from anyformer.objectives import Objective
from anyformer.own_parts import modules_outside
from anyformer.safe_files import FULL, digest, hold_lock, is_at, writing
from anyformer.slots import Network
from anyformer.tasks import Task, find
from anyformer.tasks.network import compares_texts, longest
from anyformer.tasks.prepare import prepare
from anyformer.training.distributed.parallel import check_processes, choose_trained
from anyformer.training.distributed.parts import copy_into
from anyformer.training.distributed.world import ALONE, World
from anyformer.training.run.folder import CONFIG_FILE, LOCK_FILE, RunFolder, check_new, now
from anyformer.training.settings import Config, Training, batch_stages
from anyformer.training.setup.bf16_probe import check_bf16
from anyformer.training.setup.defaults import default_training
from anyformer.training.setup.idle_settings import refuse_idle, refuse_overruled
from anyformer.training.setup.pretraining import PRETRAIN_FOLDER, first_stage, second_stage
from anyformer.training.setup.request import Request, replace_paths
from anyformer.training.setup.teacher import Teacher

Say = Callable[[str], None]
Fit = Callable[[list[str]], dict[str, Tensor]]  # values of some of these weights, by what the rows say
START_FILE = "start.safetensors"  # the weights of a run that began with `--from`, or that its rows gave
OWN = "own"  # how a network goes by that somebody gave instead of a name
NEW = ".new-"  # what a folder is called until it is complete
TRIES = 100  # names for it; there are places, such as /proc, where no folder can be made under any


def create(
    request: Request, say: Say, device: torch.device, *, weights: bool = True, world: World = ALONE
) -> RunFolder:  # fmt: skip
    """Prepare the data, decide the rest, and commit the folder of a new run.

    Without `weights` those to start from stay where they are: no step can be made. What the processes of `world` could
    not train together is refused.
    """
    require("yaml", "the settings of a run need")
    if request.task is not None:
        require_packages(find(request.task))
    name = run_name(request)
    path = request.out if request.out is not None else Path("runs") / name
    check_new(path)
    path = path.resolve() if path.is_symlink() else path  # a link to an empty folder: the run takes that folder's place
    made = [parent for parent in (path.parent, *path.parent.parents) if not parent.exists()]
    try:
        with starting(path):
            folder = claim_new(path.parent)
    except OSError as error:
        raise UserError(
            f"no folder can be made there ({error.strerror})", where=f"--out {path}", fix="give another --out"
        ) from None
    part = folder.path
    try:
        with starting(path):
            sweep_new(path.parent)
            start = None if request.start is None else load(request.start)
            teacher = None if request.teacher is None else Teacher.open(request.teacher)
            in_stages = request.pretrain is not None
            if in_stages:
                request, start = create_first_stage(request, start, part, path, say, device, world)
            config, prepared = decide(request, start, teacher, folder, say, device)
            check_processes(config, world)
            write_down(folder, request, config, prepared, path)
            if start is not None and request.start is not None and weights and not in_stages:
                fit = partial(fit_weights, config, prepared, say)
                folder.update(start=keep_start(folder, start, config.model, request.start, say, fit))
            elif start is None and weights:
                keep_fitted(folder, config, prepared, say)
        try:
            if path.is_dir():
                path.rmdir()  # it was seen to be empty
            part.rename(path)
        except OSError:
            check_new(path)  # another process was quicker
            raise
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):
            for parent in made:
                parent.rmdir()
        raise
    finally:
        folder.let_go()
    return RunFolder.open(path)


def create_first_stage(
    request: Request, start: Predictor | None, part: Path, path: Path, say: Say, device: torch.device, world: World
) -> tuple[Request, Predictor]:
    """Make the run on the texts inside the folder `part` that will be `path`: the request and start of the second."""
    if not world.is_alone:
        raise UserError(f"{world.size} processes cannot train two stages in one run", where="--pretrain",
                        fix=f"train --task {request.pretrain} first, then --from its run")  # fmt: skip
    settings = request.data(default_data(request, start))
    first = first_stage(request, given_by(request, start), settings, part / PRETRAIN_FOLDER)
    say(f"stage 1  {find(str(request.pretrain)).title} of {len(first.source):,} texts")
    stage = create(first, say, device)
    say("stage 2  the labels")
    return second_stage(request, stage, path / PRETRAIN_FOLDER)


def require_packages(task: Task) -> None:
    """Refuse a task whose packages are not installed, before any work."""
    for package in task.needs:
        require(package, f"{task.title} needs")


def claim_new(parent: Path) -> RunFolder:
    """A new folder in `parent` with its lock held, under a name that nobody has yet.

    Between its making and its lock another process may take it for a leftover, or remove an empty `parent`: then the
    next name is tried. From the lock on it is ours.
    """
    for last in [False] * TRIES + [True]:
        parent.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(parent / f"{NEW}{secrets.token_hex(8)}")
        try:
            folder.path.mkdir()
            folder.hold()
            return folder
        except (FileNotFoundError, FileExistsError, UserError) as error:
            if last or isinstance(error, NoRoom) or not parent.is_dir():
                raise
    raise AssertionError("the last try raises")


@contextmanager
def starting(path: Path) -> Iterator[None]:
    """Whatever fills the disk before there is a run: nothing is left that could be resumed."""
    again = "make room, or give --out on another disk, and train again"
    try:
        with writing(path, noticed=FULL, fix=again):
            yield
    except NoRoom as error:
        raise NoRoom(error.what, where=str(path), fix=again) from None


def sweep_new(parent: Path) -> None:
    """Remove what a process left that was killed while it prepared its data; one that lives holds the lock."""
    for path in parent.glob(f"{NEW}*"):
        if path.is_symlink():
            continue
        with suppress(OSError):
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if hold_lock(lock) and is_at(lock, path / LOCK_FILE):  # it may have got its final name just now
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def run_name(request: Request) -> str:
    """Date, time and what is trained, with a few letters that keep names apart."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H%M%S")
    source = request.source
    first = source[0] if isinstance(source, list) and source and isinstance(source[0], Path) else None
    word = "".join(c if c.isalnum() or c in "-_" else "-" for c in (first.name.split(".")[0] if first else "data"))[:24]
    return f"{stamp}-{word or 'data'}-{secrets.token_hex(3)}"


def decide(
    request: Request, start: Predictor | None, teacher: Teacher | None, folder: RunFolder, say: Say,
    device: torch.device,
) -> tuple[Config, Prepared]:  # fmt: skip
    """Everything that the first step needs to know."""
    if teacher is not None:
        request = teacher.choose_task(request)
    seed = int(request.section("training").get("seed", 0) or 0)
    settings = request.data(default_data(request, start))
    prepared = prepare(
        request.source,
        task=request.task,
        settings=settings,
        seed=seed,
        cache=folder.cache,
        given=given_by(request, start) if teacher is None else teacher.complete(given_by(request, start)),
        say=say,
    )
    task = find(prepared.task)
    require_packages(task)
    refuse_idle(request, prepared)
    keep(prepared, folder.cache)
    sizes = Sizes.of(sizes_of(prepared.preprocess, prepared.tokenizer) | {"rows": len(prepared.train)})
    gpu = device.type != "cpu"
    spec, name = chosen_network(request, task, sizes, start, gpu=gpu)
    check_length(spec, sizes)
    rows = len(prepared.train)
    asked = request.section("training")
    has_length = asked.get("steps") is not None or asked.get("epochs") is not None
    training = default_training(task, sizes, rows, gpu=gpu, start=start is not None, seed=seed, has_length=has_length)
    training = replace_paths(training, asked, "training")
    target = prepared.preprocess.target
    counts = None if target is None else target.label_counts()
    objective = task.default_objective(sizes, counts, balanced=training.class_weights == "balanced")
    objective = replace_paths(request.taught(objective), request.section("objective"), "objective")
    spec = task.extend_network(spec, name, objective)
    objective = task.fit_objective(objective, spec)
    if teacher is not None:
        objective = teacher.settle(objective, prepared, spec)
        say(f"teacher  {request.teacher}: {teacher.describe()}")
    check_compile(training, objective)
    check_phases(training, objective)
    check_batch_size(training, objective)
    training = resolve_settings(training, prepared.train, objective, device)
    check_batch_size(training, objective)
    check_bf16(training, device)
    training = resolve_adapters(training, spec, start)
    config = Config(
        task=prepared.task, data=prepared.settings or settings, model=spec, objective=objective, training=training,
        preset=name,
        start=str(request.start.resolve()) if request.start is not None else "",
    )  # fmt: skip
    network = spec.build(device="meta")
    count = sum(p.numel() for p in network.parameters() if p.requires_grad)
    how = f"from {request.start}" if start is not None else name
    say(f"model    {how}: {count / 1e6:.2f} M parameters, {describe_network(spec)}")
    grown = "".join(f" (from {rows} on)" for _, rows in batch_stages(training, steps=1000)[:1])
    say(
        f"training {optimizer_words(training)}, batch {training.batch_size}{grown}"
        f"{'' if training.micro_batch_size == training.batch_size else f' in parts of {training.micro_batch_size}'}, "
        f"{training.precision} on {device}, seed {training.seed}"
    )
    tell_trained(network, training, say)
    return config, prepared


def resolve_adapters(training: Training, spec: Network, start: Predictor | None) -> Training:
    """LoRA with what learns beside its adapters written out: modules that the model to start from does not have."""
    lora = training.lora
    if lora is None:
        return training
    if start is None:
        raise UserError("adapters change a trained model, and there is none to start from", where="training.lora",
                        fix="give --from FOLDER")  # fmt: skip
    _, fresh = shared_weights(start.model, spec)
    modules = tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in fresh))
    return training if lora.trained is not None or not modules else training.replace(lora=lora.replace(trained=modules))


def tell_trained(network: nn.Module, training: Training, say: Say) -> None:
    """Refuse paths that are not in the network, on shapes alone, and say how much of it learns."""
    choose_trained(network, training)
    if training.freeze is not None or training.lora is not None:
        counts = {
            learns: sum(p.numel() for p in network.parameters() if p.requires_grad is learns)
            for learns in (True, False)
        }
        say(f"trained  {counts[True]:,} parameters; {counts[False]:,} are frozen")


def default_data(request: Request, start: Predictor | None) -> Data:
    """The settings of the data where nothing is said, as a task that was named and its network want them."""
    if request.task is None:
        return Data()
    named = None if request.preset is None else request.network()
    return find(request.task).default_data(named if start is None else start.spec)


def check_batch_size(training: Training, objective: Objective) -> None:
    """Refuse batches that are smaller than the objective needs."""
    sizes = [("batch_size", training.batch_size), ("micro_batch_size", training.micro_batch_size)]
    for name, size in [*sizes, *(("batch_size_schedule", rows) for _, rows in batch_stages(training, steps=1000))]:
        if size is not None and size < objective.min_batch_size:
            raise UserError(f"{name} {size} is below {objective.min_batch_size}", where=f"training.{name}",
                            fix="use 64: batch norm needs more")  # fmt: skip


def check_compile(training: Training, objective: Objective) -> None:
    """Refuse to compile what cannot be."""
    if training.compile is True and not objective.compiles:
        raise UserError(f"the losses of {type(objective).__name__} cannot be compiled", where="training.compile",
                        fix="leave it out")  # fmt: skip


def check_phases(training: Training, objective: Objective) -> None:
    """Refuse to unfreeze layer by layer where several networks are moved in turn."""
    if training.unfreeze is not None and len(objective.phases()) > 1:
        raise UserError(f"{type(objective).__name__} moves two networks in turn, which have no common layers",
                        where="training.unfreeze", fix="leave it out")  # fmt: skip


def given_by(request: Request, start: Predictor | None) -> Given:
    """What the network, or a model to start from, says about the data."""
    if start is None:
        return Given(segments=request.preset is None or compares_texts(request.network()) or None)
    return Given(tokenizer=start.tokenizer, images=start.images, length=longest(start.spec),
                 segments=compares_texts(start.spec) or None)  # fmt: skip


def chosen_network(
    request: Request, task: Task, sizes: Sizes, start: Predictor | None, *, gpu: bool
) -> tuple[Network, str]:
    """The network's spec and the name it goes by."""
    changes = request.section("model")
    if start is not None:
        if request.preset is not None:
            raise UserError("both --preset and --from are given", where="--preset", fix="give one of them")
        spec = task.adapt_network(start.spec, str(request.start), sizes)
        return replace_paths(spec, changes, "model"), Path(str(request.start)).name
    task.check_changes(changes)
    if request.preset is None:
        request = dataclasses.replace(request, preset=task.default_preset(sizes, gpu=gpu))
    base = request.network()
    name = request.preset if isinstance(request.preset, str) else OWN
    early = {path: value for path, value in changes.items() if path.startswith(("stack", "encoder", "decoder", "init"))}
    base = replace_paths(base, early, "model")
    spec = task.fit_network(base, name, sizes)
    late = {path: value for path, value in changes.items() if path not in early}
    refuse_overruled(request, replace_paths(spec, early, "model"), spec, early)
    return replace_paths(spec, late, "model"), name


def check_length(spec: Network, sizes: Sizes) -> None:
    """Refuse rows of text that are longer than the network has positions, before the first step meets one."""
    if sizes.length is None:
        return
    reader: Any = spec.encoder if isinstance(spec, Seq2Seq) else spec
    limit = longest(spec) if not isinstance(spec, Streams) and isinstance(reader.embed, Tokens) else None
    if limit is not None and limit < sizes.length:
        raise UserError(f"rows of up to {sizes.length} tokens do not fit the network's {limit} positions",
                        where="model", fix=f"add --set data.tokenizer.max_length={limit}")  # fmt: skip


def resolve_settings(training: Training, examples: Examples, objective: Objective, device: torch.device) -> Training:
    """The settings with everything decided that does not need a clock; epochs become steps."""
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
    """Steps that pass over the data as often as asked for."""
    epochs, whole = training.epochs or 1.0, objective.min_batch_size > 1

    def order_of(steps: int) -> Order:
        sizes = batch_stages(training, steps)
        return Order.of(examples, training.batch_size or 1, training.seed, whole_batches=whole, sizes=sizes)

    least = max(1, round(epochs * order_of(1).steps))  # with the full batch; smaller ones make more steps
    if training.batch_size_schedule is None:
        return least
    most = least
    while order_of(most).passes(0, most) < epochs:
        most *= 2
    return bisect_left(range(least, most), epochs, key=lambda steps: order_of(steps).passes(0, steps)) + least


def describe_network(spec: Any) -> str:
    """A network in a few words."""
    if isinstance(spec, Seq2Seq):
        a, b = spec.encoder.stack, spec.decoder.stack
        return f"{len(a.layers)} + {len(b.layers)} layers, {a.width} wide"
    if isinstance(spec, Streams):
        a, b = spec.first.stack, spec.second.stack
        return f"{len(a.layers)} layers, {a.width} wide, beside {len(b.layers)}, {b.width} wide"
    if isinstance(spec, SAGAN):
        return f"images of {spec.size} x {spec.size}, {spec.width} wide"
    members = f", {spec.ensemble.members} members" if isinstance(spec, Model) and spec.ensemble is not None else ""
    return f"{len(spec.stack.layers)} layers, {spec.stack.width} wide{members}"


def optimizer_words(training: Training) -> str:
    kind = type(training.optimizer).__name__
    return f"{kind} at {training.optimizer.lr:g} ({type(training.schedule).__name__.lower()})"  # type: ignore[attr-defined]


def write_down(folder: RunFolder, request: Request, config: Config, prepared: Prepared, path: Path) -> None:
    """All files of the folder that are known before the first step."""
    folder.write(CONFIG_FILE, config.to_yaml())
    folder.write("command.txt", request.command + "\n")
    folder.write("overrides.txt", "".join(f"{name}={value}\n" for name, value in request.settings.items()))
    folder.write_json("data.json", prepared.facts | {"notes": prepared.notes})
    for line in prepared.notes:
        folder.log(line)
    folder.write_json("run.json", {
        "id": path.name, "status": "prepared", "task": config.task, "model": config.preset,
        "data": ", ".join(source_names(request.source)), "step": 0, "total": config.training.steps, "best_step": None,
        "best": None, "modules": modules_needed(config, prepared), "started": now(),
        "finished": None, "seconds": 0.0, "reason": "", "device": request.device,
    })  # fmt: skip


def modules_needed(config: Config, prepared: Prepared) -> list[str]:
    """The modules outside the library whose parts a run uses: whoever opens it has to import them."""
    parts = [part for spec in (config, prepared.preprocess) for _, part in spec.walk()]
    return modules_outside([type(part) for part in (*parts, find(config.task))])


def source_names(source: Any) -> list[str]:
    return (
        [path.name for path in source]
        if isinstance(source, list) and all(isinstance(p, Path) for p in source)
        else ["rows"]
    )


def keep_start(
    folder: RunFolder, start: Predictor, spec: Network, source: Path, say: Say, fit: Fit | None = None
) -> dict[str, str]:
    """Keep the weights to start from in the run itself, so that it never needs the folder they came from again.

    By name and shape; what has no counterpart there starts anew, by what `fit` finds for it if anything. A shallower
    network takes layers from the first to the last, evenly spread. Where the weights came from, their hash, and the
    family.
    """
    kept, fresh = shared_weights(start.model, spec)
    kept |= {} if fit is None else fit(fresh)
    fresh = [name for name in fresh if name not in kept]
    path = folder.path / START_FILE
    with store.writing(path, sum(t.numel() * t.element_size() for t in kept.values())):
        tensors.write(path, kept)
        store.flush(path)
    shown = f" ({', '.join(fresh[:3])}{' ...' if len(fresh) > 3 else ''})" if fresh else ""
    say(f"weights  from {source}; {len(fresh)} tensors start anew{shown}")
    family = start.opened.family
    return {
        "path": str(source.resolve()), "sha256": digest(path), "model_type": "" if family is None else family.model_type
    }  # fmt: skip


def keep_fitted(folder: RunFolder, config: Config, prepared: Prepared, say: Say) -> None:
    """Keep the weights that the training rows give, if any: every process of a run starts from the same numbers."""
    names = [name for name, _ in config.model.build(device="meta").named_parameters()]
    fitted = fit_weights(config, prepared, say, names)
    if fitted:
        path = folder.path / START_FILE
        tensors.write(path, fitted)
        store.flush(path)
        folder.update(start={"sha256": digest(path)}, fitted=True)


def fit_weights(config: Config, prepared: Prepared, say: Say, fresh: list[str]) -> dict[str, Tensor]:
    """What the training rows give of the weights that start anew; how is said where it is used."""
    notes: list[str] = []
    found = find(config.task).fit_weights(config.model, prepared, notes.append)
    used = {name: value for name, value in found.items() if name in fresh}
    for line in notes if used else ():
        say(line)
    return used


def shared_weights(model: nn.Module, spec: Network) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a trained network that another one takes over, by name and shape, and the names of its others."""
    wanted = dict(spec.build(device="meta").named_parameters())
    trained = spread_layers(dict(model.named_parameters()), wanted)
    kept = {
        name: found.detach()
        for name, parameter in wanted.items()
        if (found := counterpart(name, trained)) is not None and found.shape == parameter.shape
    }
    return kept, [name for name in wanted if name not in kept]


def counterpart(name: str, trained: Mapping[str, Tensor]) -> Tensor | None:
    """The trained parameter of a name.

    The body of a lone encoder and of an ELECTRA's discriminator are each other's; the pooler of a head for pairs is
    that of a classifier.
    """
    body = () if name.startswith("head.") else (f"{DISCRIMINATOR}{name}", name.removeprefix(DISCRIMINATOR))
    names = (name, *body, name.replace("head.dense.", "head.pair.dense."))
    return next((trained[each] for each in names if each in trained), None)


def start_weights(model: nn.Module, folder: RunFolder) -> None:
    """Copy the weights that a run keeps to start from into its network."""
    path, facts = folder.path / START_FILE, folder.facts.get("start") or {}
    if not path.is_file() or digest(path) != facts.get("sha256"):
        what = "damaged" if path.is_file() else "not there"
        raise UserError(f"the weights to start from are {what}", where=str(path), fix="train again")
    found = tensors.read_header(path)
    for name, parameter in model.named_parameters():
        if name in found:
            copy_into(parameter, found[name].read())
