"""Does attention lower FID? SAGAN with and without it on one set of images, everything else alike.

    python recipes/sagan.py fashion_mnist/ --steps 10000
    python recipes/sagan.py cifar10_subset/ --steps 20000 --seeds 0 1

IMAGES is a folder of class folders, of IDX files, or of sheets of small images (`train_0.webp`, `train_labels.txt`).
FID and IS are by the features of a classifier: the folder given by --classifier, else a ViT trained here first. They
compare with each other, not with published figures, which are by an Inception network on ImageNet:
without attention 22.96, with attention at 32x32 18.28 (1805.08318, table 1). Called again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer import load, preset
from anyformer.data.examples import Examples
from anyformer.data.reopen import reopen
from anyformer.errors import Diverged, UserError
from anyformer.evaluation.image_scores import ClassifierFeatures, features_of, frechet_distance, image_scores
from anyformer.nets.sagan import SAGAN
from anyformer.tasks.adversarial import draw_images, to_pixels
from anyformer.training.run.folder import RUN_FILE
from anyformer.training.setup.settings_file import parse_settings
from anyformer.training.train import Run, resume, train


def main() -> None:
    asked = arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    spec = preset(asked.preset)
    if not isinstance(spec, SAGAN):
        raise UserError(f"{asked.preset} is not a SAGAN", where="--preset", fix="use sagan-32")
    images = from_sheets(asked.images, asked.out / "sheets")
    began = time.monotonic()
    features = classifier(asked, images)
    found: dict[str, list[dict[str, Any]]] = {"attention": [], "plain": []}
    for seed in asked.seeds:
        for way, rows in found.items():
            net = spec if way == "attention" else spec.replace(attention=None)
            rows.append(one_run(net, way, seed, images, asked, features))
            print(json.dumps(rows[-1]), flush=True)
    fids = {way: [row["fid"] for row in rows if row["fid"] is not None] for way, rows in found.items()}
    means = {way: round(float(np.mean(values)), 4) if values else None for way, values in fids.items()}
    with_it, without = means["attention"], means["plain"]
    print(json.dumps({
        "recipe": "sagan", "images": asked.images.name, "preset": asked.preset, "steps": asked.steps,
        "attention": spec.attention, "seeds": asked.seeds, "fid": means, "fid_by_seed": fids,
        "fid_of_test_set": found["attention"][0].get("fid_of_test_set"),
        "attention_lowers_fid": None if with_it is None or without is None else with_it < without,
        "features": found["attention"][0].get("features"), "scored": found["attention"][0].get("scored"),
        "seconds": round(time.monotonic() - began, 1),
    }))  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--preset", default="sagan-32")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--classifier", type=Path, help="an anyformer image classifier whose features to use")
    parser.add_argument("--classifier-steps", type=int, default=3000)
    parser.add_argument("--classifier-preset", default="vit-small")
    parser.add_argument("--count", type=int, default=10_000, help="images of each kind that are scored")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/sagan"))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting of both runs: model.width=32, training.ema=0.9999")  # fmt: skip
    return parser.parse_args()


def classifier(asked: argparse.Namespace, images: Path) -> ClassifierFeatures:
    """The network whose features are compared."""
    out = asked.classifier or asked.out / "classifier"
    if asked.classifier is None:
        train_classifier(asked, images, out)
    opened = load(out, device=asked.device)
    return ClassifierFeatures(opened.opened, opened.images)


def train_classifier(asked: argparse.Namespace, images: Path, out: Path) -> None:
    if (out / RUN_FILE).is_file():
        resume(out)
    else:
        settings = {"training.steps": asked.classifier_steps, "training.batch_size": 128, "training.seed": 0}
        run = train(images, "classify", asked.classifier_preset, device=asked.device, settings=settings, out=out,
                    progress="lines")  # fmt: skip
        print(json.dumps({"recipe": "sagan", "classifier": run.evaluation["metrics"]}), flush=True)


def one_run(
    spec: SAGAN, way: str, seed: int, images: Path, asked: argparse.Namespace, features: ClassifierFeatures
) -> dict[str, Any]:
    """Train one network and score it; a run that diverged is a row without figures."""
    row: dict[str, Any] = {"recipe": "sagan", "way": way, "seed": seed, "steps": asked.steps, "fid": None}
    began, out = time.monotonic(), asked.out / f"{way}-{seed}"
    settings = {"training.steps": asked.steps, "training.batch_size": asked.batch_size, "training.seed": seed}
    try:
        run = resume(out) if (out / RUN_FILE).is_file() else train(
            images, "adversarial", spec, device=asked.device, out=out,
            settings=settings | parse_settings(asked.settings), progress="lines",
        )  # fmt: skip
    except Diverged as error:
        return row | {"diverged": str(error)}
    seconds = time.monotonic() - began
    real, held = own_images(run, asked.count)
    net = load(run.folder.checkpoints / f"step-{run.facts['step']:06}", device=asked.device).model
    labels = torch.arange(len(real)) % net.spec.classes
    scores = image_scores(real, draw_images(net, labels, seed=seed), features)
    assert scores.inception is not None and scores.inception_of_real is not None
    nets = {"generator": net.generator, "discriminator": net.discriminator}
    gates = {name: round(net.attention.gamma.item(), 4) for name, net in nets.items() if net.attention is not None}
    # What a generator as good as the camera would get.
    floor = None if held is None else round(frechet_distance(*(features_of(p, features)[0] for p in (real, held))), 4)
    last = [line for line in run.history if "loss" in line][-1]
    return row | {
        "fid": round(scores.fid, 4), "inception": round(scores.inception.mean, 4),
        "inception_of_real": round(scores.inception_of_real.mean, 4), "fid_of_test_set": floor, "scored": len(real),
        "gamma": gates, "features": scores.features, "seconds": round(seconds, 1),
        **{name: round(last[name], 4) for name in ("discriminator_loss", "generator_loss")},
    }  # fmt: skip


def own_images(run: Run, count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The images that a run was trained on, and those that it kept aside for testing."""
    data = reopen(run.folder.cache)
    assert data is not None
    return some(data.train, count), None if data.test is None else some(data.test, count)


def some(examples: Examples, count: int) -> np.ndarray:
    """At most so many images, drawn once and for all."""
    rows = np.sort(np.random.default_rng(0).permutation(len(examples))[:count])
    return to_pixels(examples.batch(rows).inputs[0])


def from_sheets(folder: Path, out: Path) -> Path:
    """Sheets of 32 x 32 images with a text file of labels as IDX files; any other folder as it is."""
    if not (folder / "train_labels.txt").is_file():
        return folder
    from PIL import Image

    out.mkdir(parents=True, exist_ok=True)
    for side, name in (("train", "train"), ("test", "t10k")):
        kinds = (folder / f"{side}_labels.txt").read_text().split()
        names = sorted(set(kinds))
        sheets = sorted(folder.glob(f"{side}_*.webp"), key=lambda path: int(path.stem.rpartition("_")[2]))
        parts = []
        for path in sheets:
            with Image.open(path) as sheet:
                whole = np.asarray(sheet.convert("RGB"))
            rows, columns = whole.shape[0] // 32, whole.shape[1] // 32
            parts.append(whole.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3))
        pixels = np.concatenate(parts)[: len(kinds)]
        labels = np.array([names.index(kind) for kind in kinds], np.uint8)
        for kind, array in (("images-idx4", pixels), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (out / f"{name}-{kind}-ubyte").write_bytes(head + np.ascontiguousarray(array).tobytes())
    return out


if __name__ == "__main__":
    main()
