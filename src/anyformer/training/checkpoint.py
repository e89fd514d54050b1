"""One checkpoint: a model folder that opens alone, with what going on from it needs beside the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from anyformer.checkpoints import store, tensors
from anyformer.checkpoints.folder import SPEC_FILE
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import FILE as PREPROCESS_FILE
from anyformer.predictor import GENERATION_FILE, IMAGES_FILE
from anyformer.training.engine import Engine
from anyformer.training.judge import decoding
from anyformer.training.settings import Config
from anyformer.version import __version__

OPTIM_FILE, STATE_FILE = "optim.safetensors", "state.json"
SHARD_BYTES = 5 * 10**9


def save_checkpoint(
    path: Path, config: Config, data: Prepared, engine: Engine, step: int, standing: Mapping[str, Any]
) -> Path:
    """Commit the state after `step` steps as the folder `path`."""
    weights, memory = engine.weights(), engine.memory()
    state = {"step": step, "engine": engine.state(), "standing": dict(standing), "seed": config.training.seed}
    needed = sum(t.numel() * t.element_size() for t in (*weights.values(), *memory.values())) + 2**20
    writers: list[store.Writer] = [
        ("weights", lambda folder: write_model(folder, config, data, weights)),
        ("optimizer", lambda folder: tensors.write(folder / OPTIM_FILE, memory)),
        ("state", lambda folder: write_json(folder / STATE_FILE, state)),
    ]
    return store.commit(path.parent, path.name, writers, facts_of(config, data, step), needed=needed)


def save_model(path: Path, config: Config, data: Prepared, weights: Mapping[str, Tensor], step: int) -> Path:
    """Commit a model folder without optimizer, such as the mean of several checkpoints."""
    writers: list[store.Writer] = [("weights", lambda folder: write_model(folder, config, data, dict(weights)))]
    return store.commit(path.parent, path.name, writers, facts_of(config, data, step))


def facts_of(config: Config, data: Prepared, step: int) -> dict[str, Any]:
    """What a manifest says beside the files: what this checkpoint belongs to."""
    return {
        "step": step, "anyformer": __version__, "torch": torch.__version__,
        "config": hashlib.sha256(config.to_json().encode()).hexdigest(),
        "data": data.facts.get("fingerprint", ""),
        "tokenizer": "" if data.tokenizer is None else data.tokenizer.sha256,
    }  # fmt: skip


def write_model(folder: Path, config: Config, data: Prepared, weights: dict[str, Tensor]) -> None:
    """Spec, weights, tokenizer and preprocessing: all that using the model needs."""
    config.model.save(folder / SPEC_FILE)
    tensors.write_shards(folder, weights, shard_bytes=SHARD_BYTES)
    (folder / PREPROCESS_FILE).write_text(data.preprocess.to_json(), encoding="utf-8")
    if data.tokenizer is not None:
        data.tokenizer.save(folder)
    if data.images is not None:
        write_json(folder / IMAGES_FILE, data.images.to_dict())
    if data.tokenizer is not None and config.task in ("lm", "translate"):
        write_json(folder / GENERATION_FILE, decoding_facts(config, data))


def decoding_facts(config: Config, data: Prepared) -> dict[str, Any]:
    """What `generate` should do unless told otherwise."""
    assert data.tokenizer is not None
    if config.task == "translate":
        chosen = decoding(config.objective, data.preprocess, data.tokenizer)
        names = (
            "num_beams",
            "length_penalty",
            "max_new_tokens",
            "decoder_start_token_id",
            "eos_token_id",
            "pad_token_id",
        )
        return {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}
    known = {"eos_token_id": data.tokenizer.eos, "pad_token_id": data.tokenizer.pad}
    return {name: value for name, value in known.items() if value is not None}


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
