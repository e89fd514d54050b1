"""Creating a run's folder: the data prepared, all settings resolved, logged and saved."""

from __future__ import annotations

import secrets
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anyformer.data.prepared import Prepared
from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.inference.opening import load
from anyformer.inference.predictor import Predictor
from anyformer.log import Log
from anyformer.own_parts import modules_outside
from anyformer.tasks import find
from anyformer.training.distributed.parallel import check_processes
from anyformer.training.distributed.world import ALONE, World
from anyformer.training.run.folder import CONFIG_FILE, RunFolder, check_new, now
from anyformer.training.settings import Config
from anyformer.training.setup.initial_weights import fit_weights, save_fitted_weights, save_start_weights
from anyformer.training.setup.pretraining import PRETRAIN_FOLDER, first_stage, second_stage
from anyformer.training.setup.request import Request
from anyformer.training.setup.resolve import default_data, given_by, require_packages, resolve_config
from anyformer.training.setup.staging import staged
from anyformer.training.setup.teacher import Teacher


def create(
    request: Request, log: Log, device: torch.device, *, weights: bool = True, world: World = ALONE
) -> RunFolder:  # fmt: skip
    """Prepare the data, resolve the config, and create the folder of a new run.

    Without `weights` the start weights are not copied, and the run cannot be trained. A config that the processes of
    `world` could not train together is rejected.
    """
    require("yaml", "the settings of a run need")
    if request.task is not None:
        require_packages(find(request.task))
    name = run_name(request)
    path = request.out if request.out is not None else Path("runs") / name
    check_new(path)
    path = path.resolve() if path.is_symlink() else path  # a link to an empty folder: the run takes that folder's place
    with staged(path) as folder:
        start = None if request.start is None else load(request.start)
        teacher = None if request.teacher is None else Teacher.open(request.teacher)
        in_stages = request.pretrain is not None
        if in_stages:
            request, start = create_first_stage(request, start, folder.path, path, log, device, world)
        config, prepared = resolve_config(request, start, teacher, folder, log, device)
        check_processes(config, world)
        write_run_files(folder, request, config, prepared, path)
        if start is not None and request.start is not None and weights and not in_stages:
            fit = partial(fit_weights, config, prepared, log)
            folder.update(start=save_start_weights(folder, start, config.model, request.start, log, fit))
        elif start is None and weights:
            save_fitted_weights(folder, config, prepared, log)
    return RunFolder.open(path)


def create_first_stage(
    request: Request, start: Predictor | None, part: Path, path: Path, log: Log, device: torch.device, world: World
) -> tuple[Request, Predictor]:
    """Create the pretraining run inside the folder `part`, which will be `path`; request and start of the second."""
    if not world.is_alone:
        raise UserError(f"{world.size} processes cannot train two stages in one run", where="--pretrain",
                        fix=f"train --task {request.pretrain} first, then --from its run")  # fmt: skip
    settings = request.data(default_data(request, start))
    first = first_stage(request, given_by(request, start), settings, part / PRETRAIN_FOLDER)
    log(f"stage 1  {find(str(request.pretrain)).title} of {len(first.source):,} texts")
    stage = create(first, log, device)
    log("stage 2  the labels")
    return second_stage(request, stage, path / PRETRAIN_FOLDER)


def run_name(request: Request) -> str:
    """Date, time and data name, with a random suffix for uniqueness."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H%M%S")
    source = request.source
    first = source[0] if isinstance(source, list) and source and isinstance(source[0], Path) else None
    word = "".join(c if c.isalnum() or c in "-_" else "-" for c in (first.name.split(".")[0] if first else "data"))[:24]
    return f"{stamp}-{word or 'data'}-{secrets.token_hex(3)}"


def write_run_files(folder: RunFolder, request: Request, config: Config, prepared: Prepared, path: Path) -> None:
    """Write all files of the folder that are known before the first step."""
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
    """The user modules whose parts a run uses: they must be imported to open it."""
    parts = [part for spec in (config, prepared.preprocess) for _, part in spec.walk()]
    return modules_outside([type(part) for part in (*parts, find(config.task))])


def source_names(source: Any) -> list[str]:
    """The names of the data files; data in memory is "rows"."""
    return (
        [path.name for path in source]
        if isinstance(source, list) and all(isinstance(p, Path) for p in source)
        else ["rows"]
    )
