"""Training a generator against a discriminator: two optimizers that take turns, in a folder that can be gone on from.

    run = train_sagan("photos/", "sagan-32", out="runs/photos", steps=20000)
    images = draw_images(run.net, torch.arange(8), seed=1)

Calling it again goes on where the folder stands. What step n sees (rows, noise) is a function of the seed and n alone,
so that on a CPU a run in parts equals a run at once, bit for bit.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer import faults
from anyformer.checkpoints import store, tensors
from anyformer.checkpoints.folder import SPEC_FILE
from anyformer.data.order import Order
from anyformer.data.prepared import Say
from anyformer.errors import UserError
from anyformer.evaluation.image_scores import whole_numbers
from anyformer.extras import require
from anyformer.inference.predictor import LABELS_FILE, pick_device
from anyformer.nets.sagan import SAGAN, SAGANModule
from anyformer.presets import preset
from anyformer.safe_write import make_folder, replacing
from anyformer.training.checkpoint import (
    OPTIM_FILE,
    SHARD_BYTES,
    STATE_FILE,
    read_checkpoint,
    size_of,
    write_json,
)
from anyformer.training.duel import Adversarial, Duel, noise
from anyformer.training.image_set import Images, ImageSet, read_images
from anyformer.training.run.folder import METRICS_FILE, RunFolder, check_new
from anyformer.training.step import put
from anyformer.version import __version__

log = logging.getLogger("anyformer")
FILE, SPEED_FILE = "adversarial.json", "speed.jsonl"  # what the folder is a run of; how long its steps took
LOG_EVERY, KEEP = 10, 2
COLUMNS, ROWS = 8, 10  # of a grid of samples, a row a class
FREE = ("steps", "save_every", "sample_every")  # may change when a run is gone on with


# ---------------------------------------------------------------- a run


@dataclass(frozen=True)
class AdversarialRun:
    """A finished training: its folder, the newest checkpoint (which `load` opens), and the nets to use."""

    path: Path
    checkpoint: Path
    net: SAGANModule
    classes: list[str]
    last: dict[str, Any]  # the last line of metrics.jsonl


def train_sagan(
    images: Images, network: str | SAGAN = "sagan-32", *, out: str | Path, device: str = "auto", say: Say = log.info,
    **settings: Any,
) -> AdversarialRun:  # fmt: skip
    """Train on a folder of class folders, IDX files or arrays (pixels, classes); `settings` are those of `Adversarial`.

    Writes into `out`: metrics.jsonl, samples/step-*.png of fixed noise, checkpoints. There is a run there already: it
    goes on, where settings and images are the same. Classes and colours of the network become those of the images.
    """
    spec = preset(network) if isinstance(network, str) else network
    if not isinstance(spec, SAGAN):
        raise UserError(f"{network} is no SAGAN", where="network", fix="use sagan-32, sagan-64 or sagan-128")
    chosen = Adversarial.from_dict({"type": "Adversarial"} | settings)
    folder = RunFolder(Path(out))
    if not (folder.path / FILE).is_file():
        check_new(folder.path)
    with store.writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    folder.hold()
    try:
        folder.sweep()
        data = read_images(images, spec.size, folder.cache, say=say)
        spec = spec.replace(classes=len(data.names), colours=data.colours)
        check_same(folder, {"network": spec.to_dict(), "training": chosen.to_dict(), "images": data.fingerprint})
        return run_all(folder, spec, chosen, data, pick_device(device), say)
    finally:
        folder.let_go()


def check_same(folder: RunFolder, facts: dict[str, Any]) -> None:
    """Refuse to go on with other settings or images: the rest would be another run."""
    if (folder.path / FILE).is_file():
        before = folder.read_json(FILE)
        pairs = [(path, before["training"].get(path), value) for path, value in facts["training"].items()]
        pairs += [(path, before["network"].get(path), value) for path, value in facts["network"].items()]
        for path, was, here in [*pairs, ("images", before["images"], facts["images"])]:
            if was != here and path not in FREE:
                what = "the images are others" if path == "images" else f"{path} is {here}, was {was}"
                raise UserError(what, where=str(folder.path), fix="give what it was, or another folder")
    folder.write_json(FILE, facts | {"anyformer": __version__, "torch": torch.__version__})


def run_all(
    folder: RunFolder, spec: SAGAN, settings: Adversarial, data: ImageSet, device: torch.device, say: Say
) -> AdversarialRun:
    """All steps that are left."""
    duel = Duel(spec.build(device=device, seed=settings.seed), settings)
    newest = store.latest(folder.checkpoints, say)
    done = 0
    if newest is not None:
        weights, memory, state = read_checkpoint(newest[1], device)
        duel.load(weights, memory)
        done = int(state["step"])
        say(f"resume   from step {done:,} of {settings.steps:,}")
    folder.cut_back(done)
    began = time.monotonic()
    order = Order(len(data), min(settings.batch_size, len(data)), settings.seed, keep_rest=False)
    for step in range(done, settings.steps):
        row = duel.step(step, *data.batch(order.at(step)[0]))
        last = step + 1 == settings.steps
        if last or (step + 1) % LOG_EVERY == 0:
            folder.append(METRICS_FILE, [row])
            folder.append(SPEED_FILE, [{"step": step + 1, "seconds": round(time.monotonic() - began, 3)}])
        if last or (step + 1) % settings.sample_every == 0:
            write_grid(folder.path / "samples" / f"{store.checkpoint_name(step + 1)}.png", duel, data)
            say(f"step {step + 1:,}  discriminator {row['discriminator_loss']:.3f}  "
                f"generator {row['generator_loss']:.3f}")  # fmt: skip
        if last or (step + 1) % settings.save_every == 0:
            save(folder.checkpoints, duel, spec, data, step + 1)
            store.rotate(folder.checkpoints, KEEP)
            faults.point("saved")
    put(duel.net, duel.weights())
    found = store.latest(folder.checkpoints)
    assert found is not None
    return AdversarialRun(folder.path, found[1], duel.net.eval(), data.names, folder.metrics()[-1])


def save(parent: Path, duel: Duel, spec: SAGAN, data: ImageSet, step: int) -> None:
    """Commit the state after `step` steps; the folder opens alone as a model."""
    weights, memory = duel.weights(), duel.memory()

    def write_model(folder: Path) -> None:
        spec.save(folder / SPEC_FILE)
        tensors.write_shards(folder, weights, shard_bytes=SHARD_BYTES)
        write_json(folder / LABELS_FILE, {"labels": data.names})

    writers: list[store.Writer] = [
        ("weights", write_model),
        ("optimizer", lambda folder: tensors.write(folder / OPTIM_FILE, memory)),
        ("state", lambda folder: write_json(folder / STATE_FILE, {"step": step})),
    ]
    facts = {"step": step, "anyformer": __version__, "torch": torch.__version__}
    store.commit(parent, store.checkpoint_name(step), writers, facts, needed=size_of(weights) + size_of(memory))


# ---------------------------------------------------------------- images out of it


@torch.inference_mode()
def draw_images(net: SAGANModule, labels: Tensor, *, seed: int = 0, batch: int = 100) -> np.ndarray:
    """Made images (N,C,H,W) in 0 to 255, one a label; the same for the same seed."""
    device = next(net.parameters()).device
    z, kinds = noise(net, len(labels), seed, 2), labels.to(device)
    made = [net.generate(z[i : i + batch], kinds[i : i + batch]) for i in range(0, len(labels), batch)]
    return whole_numbers(torch.cat(made).float())


def write_grid(path: Path, duel: Duel, data: ImageSet) -> None:
    """Samples of the mean generator from noise that never changes, a row a class."""
    require("PIL", "pictures need")
    from PIL import Image

    labels = torch.arange(min(ROWS, len(data.names))).repeat_interleave(COLUMNS)
    z = noise(duel.net, len(labels), duel.settings.seed, 0, 3)
    with torch.inference_mode():
        made = torch.cat([duel.mean(part, kinds.to(z.device)) for part, kinds in
                          zip(z.split(COLUMNS), labels.split(COLUMNS), strict=True)])  # fmt: skip
    picture = Image.fromarray(tiled(whole_numbers(made.float()), COLUMNS))
    with store.writing(path):
        make_folder(path.parent)
        with replacing(path) as part:
            picture.save(part, format="PNG")


def tiled(images: np.ndarray, columns: int) -> np.ndarray:
    """(N,C,H,W) as one picture (rows * H, columns * W[, C]).

    >>> tiled(np.zeros((6, 3, 4, 5), np.uint8), 3).shape
    (8, 15, 3)
    """
    count, colours, high, wide = images.shape
    rows = -(-count // columns)
    room = np.zeros((rows * columns, colours, high, wide), np.uint8)
    room[:count] = images
    grid = room.reshape(rows, columns, colours, high, wide).transpose(0, 3, 1, 4, 2)
    whole = grid.reshape(rows * high, columns * wide, colours)
    return whole[..., 0] if colours == 1 else whole
