"""A dry run: prepare the data, resolve and log everything, train nothing and leave no files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from anyformer.inference.devices import pick_device
from anyformer.log import Log
from anyformer.planning.parameters import count_parameters
from anyformer.safe_files import scratch_folder
from anyformer.training.opened_run import OpenedRun
from anyformer.training.run.folder import check_new
from anyformer.training.setup.new_run import create
from anyformer.training.setup.planned_run import PlannedRun, plan_run
from anyformer.training.setup.request import Request


def rehearse(request: Request, log: Log, *, timed: bool) -> dict[str, Any]:
    """Report what a run would do. `timed` also runs a few steps to estimate the total time."""
    place = pick_device(request.device)
    if request.out is not None:
        check_new(request.out)
    threads = torch.get_num_threads()
    try:
        with scratch_folder() as folder:
            run = create(replace(request, out=folder / "run"), log, place, weights=timed)
            measured: dict[str, Any] = {}
            planned: PlannedRun | None = None
            if timed:
                opened = OpenedRun(run, place, log)
                opened.measure_and_plan()
                measured = run.read_json("plan.json")
                planned = plan_opened(opened, log)
            config = run.config()
            count = count_parameters(config.model.build(device="meta")).total
            data = {name: value for name, value in run.read_json("data.json").items() if name != "notes"}
            return {"task": config.task, "model": config.preset, "parameters": count, "data": data,
                    "settings": config.to_dict(), "plan": measured,
                    "planned": None if planned is None else planned.to_dict()}  # fmt: skip
    finally:
        torch.set_num_threads(threads)


def plan_opened(opened: OpenedRun, log: Log) -> PlannedRun | None:
    """The planner's estimate of the run; None, with the reason logged, if a user-defined part cannot be counted."""
    training = opened.config.training
    try:
        found = plan_run(opened.config.model, opened.steps, training.steps or 1, opened.model,
                         precision=training.precision, device=opened.device)  # fmt: skip
    except Exception as error:  # a user-defined part may raise anything on the meta device
        log(f"plan     none: {' '.join(str(error).split())[:120] or type(error).__name__}")
        return None
    for line in found.lines():
        log(line)
    return found
