"""One checkpoint: a self-contained model folder, plus the optimizer and training state needed to resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoints import store, tensors
from anyformer.checkpoints.folder import SPEC_FILE
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import FILE as PREPROCESS_FILE
from anyformer.errors import UserError
from anyformer.inference.decoding_settings import GENERATION_FILE
from anyformer.inference.saving import IMAGES_FILE
from anyformer.tasks import find
from anyformer.training.distributed.parts import whole
from anyformer.training.run.folder import CONFIG_FILE
from anyformer.training.settings import Config
from anyformer.training.step import TrainingEngine
from anyformer.version import __version__

OPTIM_FILE, STATE_FILE = "optim.safetensors", "state.json"
SHARD_BYTES = 5 * 10**9
# Settings that may change on resume. A different number of threads or processes may change the last bits; this is
# logged.
FREE = ("training.workers", "training.threads", "training.keep", "training.parallel", "start", "preset")


def save_checkpoint(
    path: Path, config: Config, data: Prepared, engine: TrainingEngine, step: int, standing: Mapping[str, Any]
) -> Path:
    """Write the state after `step` steps atomically as the folder `path`."""
    weights, memory = engine.weights(), engine.memory()
    write = write_gathered if engine.parallel.shards else tensors.write
    state = {"step": step, "engine": engine.state(), "standing": dict(standing), "config": config.to_dict(),
             "data": data_facts(data)}  # fmt: skip
    writers: list[store.Writer] = [
        ("weights", lambda folder: write_model(folder, config, data, weights, write)),
        ("optimizer", lambda folder: write(folder / OPTIM_FILE, memory)),
        ("state", lambda folder: write_json(folder / STATE_FILE, state)),
    ]
    needed = size_of(weights) + size_of(memory)
    return store.commit(path.parent, path.name, writers, facts_of(config, data, step), needed=needed)


def write_gathered(path: Path, parts: dict[str, Tensor]) -> None:
    """Write a file of sharded tensors, gathering each; the other processes call `give_parts` at the same time."""
    tensors.write_one_by_one(path, parts, whole)


def give_parts(engine: TrainingEngine) -> None:
    """Take part in the gather of every tensor, in file order, while the first process writes a checkpoint."""
    files = [*tensors.split(engine.weights().items(), SHARD_BYTES), engine.memory()]
    for file in files:
        for name in tensors.file_order(file):
            whole(file[name])


def save_model(path: Path, config: Config, data: Prepared, weights: Mapping[str, Tensor], step: int) -> Path:
    """Write a model folder without optimizer state, such as the mean of several checkpoints."""
    writers: list[store.Writer] = [("weights", lambda folder: write_model(folder, config, data, dict(weights)))]
    return store.commit(path.parent, path.name, writers, facts_of(config, data, step), needed=size_of(weights))


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of a file of tensors, plus a margin for the small files beside it."""
    return sum(t.numel() * t.element_size() for t in tensors.values()) + 2**19


def facts_of(config: Config, data: Prepared, step: int) -> dict[str, Any]:
    """Manifest entries that identify the checkpoint: step, versions and hashes of config and data."""
    return {
        "step": step, "anyformer": __version__, "torch": torch.__version__,
        "config": hashlib.sha256(config.to_json().encode()).hexdigest(), **data_facts(data),
    }  # fmt: skip


def data_facts(data: Prepared) -> dict[str, str]:
    """Hashes of the data and the tokenizer, to detect changes on resume."""
    tokenizer = "" if data.tokenizer is None else data.tokenizer.sha256
    return {"data": str(data.facts.get("fingerprint", "")), "tokenizer": tokenizer}


def check_same(state: Mapping[str, Any], config: Config, data: Prepared, allowed: Sequence[str] = ()) -> None:
    """Reject resuming a checkpoint with different settings, rows or tokenizer.

    `allowed` are settings that were changed deliberately for this run; see `changes.change_run`.
    """
    mine = tuple(f"{name}." for name in allowed)
    saved, here = flat(state["config"]), flat(config.to_dict())
    for path in sorted(saved.keys() | here.keys()):
        if saved.get(path) != here.get(path) and path not in FREE and not f"{path}.".startswith(mine):
            raise UserError(f"{path} is {here.get(path)}, was {saved.get(path)} at step {state['step']}",
                            where=CONFIG_FILE, fix=f"put {saved.get(path)} back, or train a new run")  # fmt: skip
    for name, value in data_facts(data).items():
        if value != state["data"][name]:
            raise UserError(f"the {name} is not what it was at step {state['step']}", where="data",
                            fix="copy the run's folder again, or train a new run")  # fmt: skip


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Nested settings by dotted path."""
    if not isinstance(tree, dict):
        return {path: list(tree) if isinstance(tree, tuple) else tree}
    return {
        name: value for key, inner in tree.items() for name, value in flat(inner, f"{path}.{key}".lstrip(".")).items()
    }


def write_model(
    folder: Path, config: Config, data: Prepared, weights: dict[str, Tensor],
    write: Callable[[Path, dict[str, Tensor]], None] = tensors.write,
) -> None:  # fmt: skip
    """Write spec, weights, tokenizer and preprocessing: everything needed for inference."""
    config.model.save(folder / SPEC_FILE)
    tensors.write_shards(folder, weights, shard_bytes=SHARD_BYTES, write=write)
    (folder / PREPROCESS_FILE).write_text(data.preprocess.to_json(), encoding="utf-8")
    if data.tokenizer is not None:
        data.tokenizer.save(folder)
    if data.images is not None:
        write_json(folder / IMAGES_FILE, data.images.to_dict())
    decoding = find(config.task).generation_config(config.objective, data, config.model)
    if decoding is not None:
        write_json(folder / GENERATION_FILE, decoding)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


class SavedTensors(Mapping[str, Tensor]):
    """Lazily read tensors of a file or folder, so that a process that keeps shards never holds all of them.

    Each is copied into its own memory: a misaligned view into the file would change the last bits.
    """

    def __init__(self, entries: Mapping[str, tensors.Entry], device: torch.device) -> None:
        self.entries, self.device = entries, device

    def __getitem__(self, name: str) -> Tensor:
        return self.entries[name].read().to(self.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def read_weights(path: Path, device: torch.device) -> SavedTensors:
    """The weights of a checkpoint."""
    return SavedTensors(tensors.read_folder(path), device)


def read_checkpoint(path: Path, device: torch.device) -> tuple[SavedTensors, SavedTensors, dict[str, Any]]:
    """Weights, optimizer tensors and state of a verified checkpoint."""
    memory = SavedTensors(tensors.read_header(path / OPTIM_FILE), device)
    return read_weights(path, device), memory, json.loads((path / STATE_FILE).read_text(encoding="utf-8"))


def mean_of(paths: list[Path], device: torch.device) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in double precision."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, value in read_weights(path, device).items():
            total[name] = value.double() if name not in total else total[name] + value.double()
    kinds = {name: value.dtype for name, value in read_weights(paths[0], device).items()}
    return {name: (value / len(paths)).to(kinds[name]) for name, value in total.items()}
