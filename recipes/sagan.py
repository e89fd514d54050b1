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
from anyformer.training.adversarial import draw_images, train_sagan
from anyformer.training.image_set import read_images

from anyformer import load, preset
from anyformer.errors import Diverged, UserError
from anyformer.evaluation.image_scores import features_of, frechet_distance, image_scores
from anyformer.inference.predictor import Predictor
from anyformer.nets.sagan import SAGAN
from anyformer.training.run.folder import RUN_FILE
from anyformer.training.setup.settings_file import parsed
from anyformer.training.train import resume, train


def main() -> None:
    asked = arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    spec = preset(asked.preset)
    if not isinstance(spec, SAGAN):
        raise UserError(f"{asked.preset} is no SAGAN", where="--preset", fix="use sagan-32")
    changes = parsed(asked.settings)
    spec = spec.replace(**{name: value for name, value in changes.items() if name in spec.settings()})
    settings = {name: value for name, value in changes.items() if name not in spec.settings()}
    images = from_sheets(asked.images, asked.out / "sheets")
    began = time.monotonic()
    judge = classifier(asked, images)
    real = some(read_images(images, spec.size, asked.out / "real").pixels, asked.count)
    floor = floor_of(images, spec.size, asked, judge, real)
    found: dict[str, list[dict[str, Any]]] = {"attention": [], "plain": []}
    for seed in asked.seeds:
        for way, rows in found.items():
            net = spec if way == "attention" else spec.replace(attention=None)
            rows.append(one_run(net, way, seed, images, settings, asked, judge, real))
            print(json.dumps(rows[-1]), flush=True)
    fids = {way: [row["fid"] for row in rows if row["fid"] is not None] for way, rows in found.items()}
    means = {way: round(float(np.mean(values)), 4) if values else None for way, values in fids.items()}
    with_it, without = means["attention"], means["plain"]
    print(json.dumps({
        "recipe": "sagan", "images": asked.images.name, "preset": asked.preset, "steps": asked.steps,
        "attention": spec.attention, "seeds": asked.seeds, "fid": means, "fid_by_seed": fids, "fid_of_test_set": floor,
        "attention_lowers_fid": None if with_it is None or without is None else with_it < without,
        "features": found["attention"][0].get("features"), "scored": len(real),
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
                        help="a setting of the network (width=32) or of its training (ema=0.9999)")  # fmt: skip
    return parser.parse_args()


def classifier(asked: argparse.Namespace, images: Path) -> Predictor:
    """The network whose features are compared."""
    if asked.classifier is not None:
        return load(asked.classifier, device=asked.device)
    out = asked.out / "classifier"
    if (out / RUN_FILE).is_file():
        resume(out)
    else:
        settings = {"training.steps": asked.classifier_steps, "training.batch_size": 128, "training.seed": 0}
        run = train(images, "classify", asked.classifier_preset, device=asked.device, settings=settings, out=out,
                    progress="lines")  # fmt: skip
        print(json.dumps({"recipe": "sagan", "classifier": run.evaluation["metrics"]}), flush=True)
    return load(out, device=asked.device)


def one_run(
    spec: SAGAN, way: str, seed: int, images: Path, settings: dict[str, Any], asked: argparse.Namespace,
    judge: Predictor, real: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """Train one network and score it; a run that diverged is a row without figures."""
    row: dict[str, Any] = {"recipe": "sagan", "way": way, "seed": seed, "steps": asked.steps, "fid": None}
    began = time.monotonic()
    try:
        run = train_sagan(images, spec, out=asked.out / f"{way}-{seed}", device=asked.device,
                          **({"steps": asked.steps, "batch_size": asked.batch_size, "seed": seed}
                             | settings))  # fmt: skip
    except Diverged as error:
        return row | {"diverged": str(error)}
    seconds = time.monotonic() - began
    labels = torch.arange(len(real)) % len(run.classes)
    scores = image_scores(real, draw_images(run.net, labels, seed=seed), judge)
    nets = {"generator": run.net.generator, "discriminator": run.net.discriminator}
    gates = {name: round(net.attention.gamma.item(), 4) for name, net in nets.items() if net.attention is not None}
    return row | {
        "fid": round(scores.fid, 4), "inception": round(scores.inception.mean, 4),
        "inception_of_real": round(scores.inception_of_real.mean, 4), "gamma": gates, "features": scores.features,
        "seconds": round(seconds, 1), **{name: round(value, 4) for name, value in run.last.items() if name != "step"},
    }  # fmt: skip


def floor_of(images: Path, size: int, asked: argparse.Namespace, judge: Predictor, real: np.ndarray) -> float | None:
    """FID of the set's own test images: what a generator as good as the camera would get."""
    try:
        held = read_images(images, size, asked.out / "held", side="test")
    except UserError:
        return None
    few = some(held.pixels, asked.count)
    return round(frechet_distance(*(features_of(part, judge)[0] for part in (real, few))), 4)


def some(pixels: np.ndarray, count: int) -> np.ndarray:
    """At most so many images, drawn once and for all."""
    if len(pixels) <= count:
        return np.asarray(pixels)
    return np.asarray(pixels[np.sort(np.random.default_rng(0).permutation(len(pixels))[:count])])


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
