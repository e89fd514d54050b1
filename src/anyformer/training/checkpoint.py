"""One checkpoint: a model folder that opens alone, with what going on from it needs beside the weights."""

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
# Settings that may change while a run is stopped. Other threads or processes may change the last bits, which is said.
FREE = ("training.workers", "training.threads", "training.keep", "training.parallel", "start", "preset")


def save_checkpoint(
    path: Path, config: Config, data: Prepared, engine: TrainingEngine, step: int, standing: Mapping[str, Any]
) -> Path:
    """Commit the state after `step` steps as the folder `path`."""
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
    """A file of tensors that are spread over processes; the others call `give_parts` meanwhile."""
    tensors.write_one_by_one(path, parts, whole)


def give_parts(engine: TrainingEngine) -> None:
    """While the first process writes a checkpoint: give it the parts that are here, tensor by tensor in its order."""
    files = [*tensors.split(engine.weights().items(), SHARD_BYTES), engine.memory()]
    for file in files:
        for name in tensors.file_order(file):
            whole(file[name])


def save_model(path: Path, config: Config, data: Prepared, weights: Mapping[str, Tensor], step: int) -> Path:
    """Commit a model folder without optimizer, such as the mean of several checkpoints."""
    writers: list[store.Writer] = [("weights", lambda folder: write_model(folder, config, data, dict(weights)))]
    return store.commit(path.parent, path.name, writers, facts_of(config, data, step), needed=size_of(weights))


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of a file of tensors, and a little for what lies beside it."""
    return sum(t.numel() * t.element_size() for t in tensors.values()) + 2**19


def facts_of(config: Config, data: Prepared, step: int) -> dict[str, Any]:
    """What a manifest says beside the files: what this checkpoint belongs to."""
    return {
        "step": step, "anyformer": __version__, "torch": torch.__version__,
        "config": hashlib.sha256(config.to_json().encode()).hexdigest(), **data_facts(data),
    }  # fmt: skip


def data_facts(data: Prepared) -> dict[str, str]:
    """Hashes that tell whether rows and words are still the same."""
    tokenizer = "" if data.tokenizer is None else data.tokenizer.sha256
    return {"data": str(data.facts.get("fingerprint", "")), "tokenizer": tokenizer}


def check_same(state: Mapping[str, Any], config: Config, data: Prepared, allowed: Sequence[str] = ()) -> None:
    """Refuse to go on from a checkpoint with other settings, rows or words: the rest would be another run.

    `allowed` are settings that somebody changed in this run on purpose; see `change.change_run`.
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
    """Spec, weights, tokenizer and preprocessing: all that using the model needs."""
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
    """Tensors of a file or folder, each read when it is asked for: a process that keeps a part of each never holds all.

    Each comes in memory of its own: a view into the file would change the last bits.
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
