"""Whether compiling pays off within a run, by its cost and gain the last time.

A small record beside the compiler's own cache holds how long compiling took for a model, its shapes and this machine,
and how much faster steps became. Missing or invalid records are ignored.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.kernels.compile_cache import use_private_cache
from anyformer.objectives import Batch
from anyformer.safe_files import read_json, replace_file
from anyformer.training.display.format import duration
from anyformer.training.settings import Config

FOLDER = "compile-times"
CLEARLY = 1.5  # compiling must save this many times its cost: both are estimates, and it delays the first step
WARM = 0.25  # cost of compiling with a warm cache, as a fraction of the first compilation


@dataclass(frozen=True)
class CompileCost:
    """Cost and gain of compiling a step."""

    seconds: float  # compile time
    gain: float  # speed-up of a step
    is_warm: bool = False  # whether the code was in the cache already

    def pays(self, eager: float) -> bool:
        """Whether it saves clearly more than it costs in a run that takes `eager` seconds without it."""
        return eager * (1 - 1 / self.gain) > CLEARLY * self.seconds


UNKNOWN = {"cuda": CompileCost(20.0, 1.3), "cpu": CompileCost(30.0, 1.15)}  # defaults without a record, by device


def record_path(config: Config, batch: Batch, device: torch.device) -> Path:
    """The record file for this model, batch shapes, device and torch version."""
    shapes: list[str] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(f"{tensor.dtype} {tuple(tensor.shape)}")
        return tensor

    batch.map(note)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {torch.get_num_threads()}"
    facts = [
        config.model.to_dict(),
        config.objective.to_dict(),
        config.training.precision,
        shapes,
        torch.__version__,
        name,
    ]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    return use_private_cache() / FOLDER / f"{key}.json"


def read_cost(path: Path) -> CompileCost | None:
    """The recorded cost; None if missing or invalid."""
    try:
        found = CompileCost(**read_json(path))
        numbers = (found.seconds, found.gain)
        sound = all(isinstance(n, int | float) and math.isfinite(n) and n > 0 for n in numbers)
        return found if sound and isinstance(found.is_warm, bool) else None
    except (OSError, UserError, TypeError, ValueError):
        return None


def write_cost(path: Path, cost: CompileCost) -> None:
    """Record the cost for the next run; write errors are ignored."""
    with suppress(OSError, UserError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(path, json.dumps(asdict(cost)))


def expect_cost(path: Path, device: torch.device) -> CompileCost:
    """The expected cost and gain of compiling here."""
    found = read_cost(path)
    if found is None:
        return UNKNOWN.get(device.type, UNKNOWN["cpu"])
    return found if found.is_warm else CompileCost(WARM * found.seconds, found.gain, is_warm=True)


def has_compiler(device: torch.device) -> bool:
    """Whether torch can compile here: a C++ compiler for a CPU, triton for a GPU."""
    if device.type == "cpu":
        return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return device.type == "cuda" and find_spec("triton") is not None


def explain_choice(expected: CompileCost, eager: float) -> str:
    """The decision as a log line."""
    if expected.gain <= 1:
        return "compile  off: steps were no faster with it the last time"
    left, takes = duration(eager), duration(expected.seconds)
    return f"compile  {'on' if expected.pays(eager) else 'off'}: {left} of training left, compiling takes about {takes}"
