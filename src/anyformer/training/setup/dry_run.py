"""A training without its steps: the data looked at, everything decided and said, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from anyformer.inference.predictor import pick_device
from anyformer.safe_files import scratch_folder
from anyformer.training.run.folder import check_new
from anyformer.training.setup.new_run import create
from anyformer.training.setup.request import Request
from anyformer.training.trainer import Session


def rehearse(request: Request, say: Callable[[str], None], *, timed: bool) -> dict[str, Any]:
    """What a run would be. `timed` also does a few steps, to say how long all of them would take."""
    place = pick_device(request.device)
    if request.out is not None:
        check_new(request.out)
    threads = torch.get_num_threads()
    try:
        with scratch_folder() as folder:
            run = create(replace(request, out=folder / "run"), say, place, weights=timed)
            plan: dict[str, Any] = {}
            if timed:
                Session(run, place, say, progress="silent").settle()
                plan = run.read_json("plan.json")
            config = run.config()
            count = sum(p.numel() for p in config.model.build(device="meta").parameters())
            data = {name: value for name, value in run.read_json("data.json").items() if name != "notes"}
            return {"task": config.task, "model": config.preset, "parameters": count, "data": data,
                    "settings": config.to_dict(), "plan": plan}  # fmt: skip
    finally:
        torch.set_num_threads(threads)
