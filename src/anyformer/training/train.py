"""`train` and `resume`: what the command line and `anyformer.train` call."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anyformer.deprecated_names import log_of
from anyformer.errors import Stopped, UserError
from anyformer.evaluation.bootstrap import relate
from anyformer.evaluation.run_files import read_evaluation
from anyformer.evaluation.sentences import difference_of, differences_beside, show_difference, undecided
from anyformer.inference.devices import pick_device
from anyformer.inference.opening import load
from anyformer.inference.predictor import Predictor
from anyformer.log import Log, silence
from anyformer.slots import Network
from anyformer.training.display.format import figure
from anyformer.training.display.lines import of_few_outputs
from anyformer.training.distributed.peers import Peers, join
from anyformer.training.distributed.world import ALONE, World, report_once_per_host
from anyformer.training.finish import finish, rewrite_report
from anyformer.training.run.folder import ReadOnlyRunFolder, RunFolder
from anyformer.training.setup.initial_weights import save_start_weights
from anyformer.training.setup.new_run import create, run_name
from anyformer.training.setup.pretraining import PRETRAIN_FOLDER
from anyformer.training.setup.request import Request
from anyformer.training.signals import Requests
from anyformer.training.trainer import Session
from anyformer.training.tune import DEFAULTS, TUNE_FOLDER, Search, has_search

logger = logging.getLogger("anyformer")


class Run:
    """A finished (or stopped) training: its folder, its metrics and the trained model."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = RunFolder.open(Path(folder))

    def __repr__(self) -> str:
        facts = self.facts
        return f"Run({str(self.path)!r}, {facts['status']} at step {facts['step']} of {facts['total']})"

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def facts(self) -> dict[str, Any]:
        """The contents of run.json."""
        return self.folder.facts

    @property
    def metrics(self) -> dict[str, float]:
        """The final metrics on the test rows or, without any, the validation rows."""
        found = self.evaluation
        return (found.get("metrics") or {}).get(found.get("split") or "valid", {})

    @property
    def evaluation(self) -> dict[str, Any]:
        """Everything evaluated at the end: every split, the baselines, the data of the report."""
        return read_evaluation(self.path)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every logged step and evaluation."""
        return self.folder.metrics()

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def summary(self) -> list[str]:
        """The metrics and the baselines in a few lines."""
        found = self.evaluation
        if not found:
            return [f"{self.facts['status']} at step {self.facts['step']}"]
        split = str(found.get("split", "valid"))
        names, more = of_few_outputs(self.metrics)
        lines = [f"{split:<10} " + ", ".join([f"{name} {figure(self.metrics[name])}" for name in names] + more)]
        for kind, facts in (found.get("baselines") or {}).items():
            shown = [f"{name} {figure(v)}" for name, v in facts["metrics"].items() if name in self.metrics]
            name = facts.get("name")
            lines.append(f"{kind:<10} {', '.join(shown[:3])} ({name})" if shown else f"{kind:<10} {name}")
        return lines + verdict_lines(found)

    def next_commands(self) -> list[str]:
        """Commands to use the run."""
        return [f"report   {self.report}", f"use it   {self.folder.task().next_command(self.path)}"]

    def predictor(self, device: str = "cpu") -> Predictor:
        """The best model, loaded for inference."""
        return load(self.path, device=device)


def verdict_lines(evaluation: Mapping[str, Any]) -> list[str]:
    """How much better or worse the model is than the strong baseline, if both have results for each row."""
    strong = (evaluation.get("baselines") or {}).get("strong") or {}
    difference, main = difference_of(strong), str(evaluation.get("main") or "")
    if difference is None:
        return []
    said = f"{relate(main, difference)} {strong.get('name')}: {main} {show_difference(difference)}, 95 % by bootstrap"
    lines = [said, *differences_beside(strong), undecided(evaluation.get("baselines") or {})]
    return [f"{'verdict':<10} {one}" for one in lines if one]


def train(
    data: Any,
    task: str | None = None,
    model: str | Network | None = None,
    target: str | Sequence[str] | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    start: str | Path | None = None,
    pretrain: str | None = None,
    teacher: str | Path | None = None,
    tune: float | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    progress: str = "auto",
    quiet: bool = False,
) -> Run:
    """Train on files (a path or several) or on data in Python (a DataFrame, a dictionary of columns, texts).

    What is not given is decided by the data, and logged; `quiet` logs nothing. `model` is a preset's name, or your own
    network (`Model(...)`), which gets the vocabulary, lengths and head that the data needs. `steps` or `epochs` is the
    length of the training, `minutes` its time limit. `settings` are dotted paths as on the command line, for everything
    else: `{"training.save_every": 50, "data.split.valid": 0.2, "model.stack.depth": 4}`.
    `start` is a model folder to fine-tune. `pretrain` is a task such as "masked" to pretrain on the texts of the
    training rows, labelled or not, before training on the labels. `teacher` is a model folder to distill from. `tune`
    is the number of minutes for a search over settings before the run itself.
    """
    named = {"training.steps": steps, "training.epochs": epochs, "training.minutes": minutes, "training.seed": seed,
             "training.optimizer.lr": lr, "training.batch_size": batch_size}  # fmt: skip
    asked = dict(settings or {}) | {path: value for path, value in named.items() if value is not None}
    if teacher is not None:
        asked["objective.teacher"] = str(teacher)
    if target is not None:
        asked["data.target"] = (target,) if isinstance(target, str) else tuple(target)
    source = as_source(data)
    words = ["anyformer", "train", *(str(path) for path in source)] if is_paths(source) else ["anyformer.train(...)"]
    request = Request(
        source, task=task, preset=model, start=None if start is None else Path(start), pretrain=pretrain,
        out=None if out is None else Path(out), device=device, settings=asked, command=shlex.join(words),
    )  # fmt: skip
    log = silence if quiet else logger.info
    if tune is not None:
        return run_search(request, tune, log=log, progress=progress, quiet=quiet)
    return run_request(request, log=log, progress=progress, quiet=quiet)


def run_request(
    request: Request, *, log: Log, progress: str = "auto", quiet: bool = False, world: World = ALONE,
    started: float | None = None,
) -> Run:  # fmt: skip
    """Create a run and train it to the end; with several processes the first creates it and all train.

    The minutes of a run count from `started` on `time.perf_counter`, or from now.
    """
    started = time.perf_counter() if started is None else started
    if not world.is_first:
        log, quiet = silence, True
    with join(world, request.device) as peers:
        path = Path(peers.broadcast(lambda: str(create(request, log, peers.device, world=world).path)))
        log(f"run      {path}")
        folder = opened(path, peers)
        work(folder, peers.device, log, progress=progress, quiet=quiet, peers=peers, started=started)
    return Run(path)


def run_search(
    request: Request, minutes: float, *, log: Log, progress: str = "auto", quiet: bool = False,
    started: float | None = None,
) -> Run:  # fmt: skip
    """Search settings for that many minutes; the best trial becomes the run, which is then trained to its end."""
    if not 0 < minutes < 10**6:
        raise UserError(f"{minutes} minutes is outside (0, 1000000)", where="--tune", fix="use 10")
    path = request.out if request.out is not None else Path("runs") / run_name(request)
    search = Search.begin(request, path, minutes, pick_device(request.device), silence if quiet else log)
    log(f"run      {path}")
    search.run("silent" if quiet else progress)
    return resume(path, log=log, progress=progress, quiet=quiet, started=started)


def resume(
    path: str | Path, *, log: Log | None = None, progress: str = "auto", quiet: bool = False, device: str | None = None,
    world: World = ALONE, change: Callable[[], None] | None = None, started: float | None = None,
    say: Log | None = None,
) -> Run:  # fmt: skip
    """Resume a run from its newest intact checkpoint; one whose training is complete is only evaluated.

    `change` is called first, in the first process: it may write other settings into the run. `started` is when this
    session of it began. `say` is the old name of `log`.
    """
    log = silence if quiet or not world.is_first else log_of(log or logger.info, say)

    def look() -> dict[str, Any]:
        if change is not None:
            change()
        return RunFolder.open(Path(path)).facts

    if has_search(Path(path)):
        place = pick_device(device or str(RunFolder.open(Path(path) / TUNE_FOLDER / DEFAULTS).facts.get("device")))
        Search.open(Path(path), place, log).run("silent" if quiet else progress)
    with report_once_per_host(world):
        asked = device or str(RunFolder.open(Path(path)).facts.get("device") or "auto")
    with join(world, asked) as peers:
        facts = peers.broadcast(look)
        if facts.get("status") == "done":
            log(f"the run is complete: {facts['step']:,} steps, finished {facts.get('finished')}")
            if peers.is_first and not (Path(path) / "report.html").is_file():
                rewrite_report(RunFolder.open(Path(path)))
        else:
            silent, folder = quiet or not peers.is_first, opened(Path(path), peers)
            work(folder, peers.device, log, progress=progress, quiet=silent, peers=peers, started=started)
    return Run(path)


def opened(path: Path, peers: Peers) -> RunFolder:
    """The run folder for this process: the first may write, the others read only."""
    return RunFolder.open(path) if peers.is_first else ReadOnlyRunFolder.open(path)


def work(
    folder: RunFolder, device: torch.device, log: Log, *, progress: str, quiet: bool, peers: Peers | None = None,
    started: float | None = None,
) -> None:  # fmt: skip
    """Run the rest of a run; with several processes, the first continues alone after the last step."""
    if (folder.path / PRETRAIN_FOLDER).is_dir() and not folder.facts.get("start"):
        if peers is not None and not peers.world.is_alone:
            raise UserError("the first stage of a run is trained by one process", where=str(folder.path),
                            fix=f"anyformer resume {folder.path}")  # fmt: skip
        started = pretrain_first(folder, device, log, progress=progress, quiet=quiet, started=started)
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    peers = Peers(ALONE, device) if peers is None else peers
    try:
        session = Session(folder, device, log, progress="silent" if quiet else progress, peers=peers, started=started)
        session.run()
        session.take_whole_model()
        if not peers.is_first:
            return
        try:
            with session.ending.recorded(Requests(at_once=True), doing="after the last step: "):
                finish(session)
        except Stopped:
            raise
        except Exception:
            log(f"the model of step {session.done:,} is saved and can be used; for the rest: anyformer resume "
                f"{folder.path}")  # fmt: skip
            raise
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])


def pretrain_first(
    folder: RunFolder, device: torch.device, log: Log, *, progress: str, quiet: bool, started: float | None
) -> float:
    """Finish the pretraining stage of a run, and save its best weights for the second stage.

    Returns when the run began on `time.perf_counter`: the time budget covers both stages.
    """
    stage = RunFolder.open(folder.path / PRETRAIN_FOLDER)
    folder.lock()  # nobody else may train the second stage meanwhile
    try:
        if stage.facts["status"] != "done":
            log(f"stage 1  {stage.path}")
            work(stage, device, log, progress=progress, quiet=quiet, started=started)
        kept = save_start_weights(folder, load(stage.path), folder.config().model, stage.path, log)
        folder.update(start=kept)
        folder.event("pretrained", step=stage.facts["step"])
        log(f"stage 2  {folder.path}")
    except Stopped as error:
        folder.update(status="interrupted", reason=f"while pretraining: {error}"[:300])
        raise Stopped(f"stopped in the first stage; saved. Resume with: anyformer resume {folder.path}",
                      code=error.exit_code) from None  # fmt: skip
    except Exception as error:
        folder.update(status="failed", reason=f"while pretraining: {error}"[:300])
        raise
    finally:
        folder.unlock()
    return time.perf_counter() - float(stage.facts.get("seconds") or 0.0)


def as_source(data: Any) -> Any:
    """Paths as a list of paths; anything else as it is."""
    if isinstance(data, str | Path):
        return [Path(data)]
    if isinstance(data, list | tuple) and data and all(isinstance(item, Path) for item in data):
        return list(data)
    if isinstance(data, list | tuple) and data and all(isinstance(item, str) for item in data):
        paths = [Path(item) for item in data]
        # A short list of existing paths is files; anything else is texts.
        if len(paths) <= 16 and all(len(str(path)) < 1024 and path.exists() for path in paths):
            return paths
    if data is None:
        raise UserError("no data given", fix="give a file, a folder or a table")
    return data


def is_paths(source: Any) -> bool:
    return isinstance(source, list) and all(isinstance(item, Path) for item in source)
