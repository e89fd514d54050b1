"""One checkpoint: a model folder that opens alone, with what going on from it needs beside the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from anyformer.checkpoints import store, tensors
from anyformer.checkpoints.folder import SPEC_FILE
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import FILE as PREPROCESS_FILE
from anyformer.errors import UserError
from anyformer.inference.predictor import GENERATION_FILE, IMAGES_FILE
from anyformer.tasks import find
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
    state = {"step": step, "engine": engine.state(), "standing": dict(standing), "config": config.to_dict(),
             "data": data_facts(data)}  # fmt: skip
    writers: list[store.Writer] = [
        ("weights", lambda folder: write_model(folder, config, data, weights)),
        ("optimizer", lambda folder: tensors.write(folder / OPTIM_FILE, memory)),
        ("state", lambda folder: write_json(folder / STATE_FILE, state)),
    ]
    needed = size_of(weights) + size_of(memory)
    return store.commit(path.parent, path.name, writers, facts_of(config, data, step), needed=needed)


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


def write_model(folder: Path, config: Config, data: Prepared, weights: dict[str, Tensor]) -> None:
    """Spec, weights, tokenizer and preprocessing: all that using the model needs."""
    config.model.save(folder / SPEC_FILE)
    tensors.write_shards(folder, weights, shard_bytes=SHARD_BYTES)
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


def read_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    """The weights of a checkpoint, each in memory of its own: a view into the file would change the last bits."""
    return {name: entry.read().to(device) for name, entry in tensors.read_folder(path).items()}


def read_checkpoint(path: Path, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Weights, optimizer tensors and state of a verified checkpoint."""
    memory = {name: value.clone().to(device) for name, value in load_file(path / OPTIM_FILE).items()}
    return read_weights(path, device), memory, json.loads((path / STATE_FILE).read_text(encoding="utf-8"))


def mean_of(paths: list[Path], device: torch.device) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in double precision."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, value in read_weights(path, device).items():
            total[name] = value.double() if name not in total else total[name] + value.double()
    kinds = {name: value.dtype for name, value in read_weights(paths[0], device).items()}
    return {name: (value / len(paths)).to(kinds[name]) for name, value in total.items()}
