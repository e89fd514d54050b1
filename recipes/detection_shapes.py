"""DETR (2005.12872) small enough to learn from nothing: where the coloured shapes of an image are, and which.

    python recipes/detection_shapes.py --overfit [--device cpu]      # 10 images by heart: AP >= .9
    python recipes/detection_shapes.py [--device cuda]               # new images: AP50 >= .8
    python recipes/detection_shapes.py --annotations coco.json       # one's own images, a fifth of them held out

Images are drawn: one to three circles, squares and triangles of any colour on a noisy ground, 64 pixels a side. The
model is the preset detr-r50-tiny with the classes of the data: a small ResNet, an encoder, and a decoder of 20 learned
queries, trained by matching (class, distance and overlap of boxes, on every decoder layer). AP is COCO's, the mean over
overlaps .5 to .95. Prints the loss and AP as it goes and one line of JSON at the end; --out writes the same to a file.

hardware: one H200, beside eight other runs. expect: by heart AP 1.0 after 1,000 steps and a minute; new images AP .873
and AP50 .996 after 5,500 steps and 5 minutes, one seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer import preset, replace_in
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.detection import DetectionExamples, Square, detection_examples, shares
from anyformer.data.files.coco import Annotated, Picture, read_coco
from anyformer.data.order import Order
from anyformer.evaluation.average_precision import Precision, average_precision, found_objects, true_objects
from anyformer.objectives import Detect
from anyformer.training.duration import Plan
from anyformer.training.loader import Steps
from anyformer.training.optim import AdamW
from anyformer.training.schedule import Cosine
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine

SHAPES = ("circle", "square", "triangle")
SIDE, LEAST, MOST = 64, 12, 32  # pixels of an image, and of a shape in it


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One image (3,SIDE,SIDE), the boxes of its shapes (n,4) left, top, width, height, and their kinds (n,)."""
    pixels = rng.integers(0, 60, (3, SIDE, SIDE)) + rng.integers(0, 80, (3, 1, 1))
    boxes, kinds = [], []
    y, x = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    wanted = rng.integers(1, 4)
    for _ in range(50):  # tries
        if len(boxes) == wanted:
            break
        side = int(rng.integers(LEAST, MOST + 1))
        left, top = (int(at) for at in rng.integers(0, SIDE - side + 1, 2))
        if any(left < a + w and a < left + side and top < b + h and b < top + side for a, b, w, h in boxes):
            continue  # shapes do not touch
        kind = int(rng.integers(len(SHAPES)))
        u, v = (x - left) / side, (y - top) / side  # 0 to 1 inside the box
        inside = (u > 0) & (u < 1) & (v > 0) & (v < 1)
        if kind == 0:
            inside &= (u - 0.5) ** 2 + (v - 0.5) ** 2 < 0.25
        elif kind == 2:
            inside &= np.abs(u - 0.5) < v / 2
        colour = rng.integers(60, 256, 3)
        colour[rng.integers(3)] = 255
        pixels[:, inside] = colour[:, None]
        boxes.append([left, top, side, side])
        kinds.append(kind)
    return pixels.astype(np.uint8), np.array(boxes, np.float64), np.array(kinds, np.int64)


def shapes(count: int, seed: int, folder: Path) -> DetectionExamples:
    """So many drawn images as examples; no file of them is written."""
    arrays = Arrays.new(folder)
    room = arrays.room("pixels", (count, 3, SIDE, SIDE), np.uint8)
    pictures = []
    for row in range(count):
        room[row], boxes, kinds = drawn(np.random.default_rng((seed, row)))
        pictures.append(Picture(row, f"drawn {row}", Path(), SIDE, SIDE, boxes, kinds, np.zeros(len(kinds), bool)))
    objects = [shares(picture) for picture in pictures]
    arrays.put("sides", np.array([Square(SIDE).fitted(SIDE, SIDE)] * count, np.int32))
    arrays.put("objects", np.concatenate(objects))
    arrays.put("objects_starts", np.cumsum([0, *(len(each) for each in objects)]))
    return DetectionExamples(arrays, Annotated(Path("drawn.json"), SHAPES, pictures), np.arange(count))


@torch.no_grad()
def judged(model: Any, examples: DetectionExamples, batch: int = 64) -> Precision:
    """Average precision on all images of a side."""
    model.eval()
    device, answers, truth = next(model.parameters()).device, [], []
    for start in range(0, len(examples), batch):
        rows = np.arange(start, min(start + batch, len(examples)))
        given = examples.batch(rows).to(device)
        out = model(*given.inputs, **given.named)
        for row, logits, boxes in zip(
            rows, out.logits.float().cpu().numpy(), out.boxes.float().cpu().numpy(), strict=True
        ):
            picture = examples.picture(int(row))
            answers.append(found_objects(logits, boxes, picture.wide, picture.high))
            truth.append(true_objects(picture.boxes, picture.kinds, picture.crowd))
    return average_precision(answers, truth)


def sides(asked: argparse.Namespace, folder: Path) -> tuple[DetectionExamples, DetectionExamples]:
    """What is trained on and what is judged by."""
    if asked.annotations is not None:
        found = read_coco(asked.annotations, asked.images, bad="skip")
        for note in found.notes:
            print(note, file=sys.stderr)
        whole = detection_examples(found, folder, size=asked.size)
        order = np.random.default_rng(asked.seed).permutation(len(whole))
        cut = max(1, len(order) // 5)
        kept, held = (DetectionExamples(whole.arrays, found, rows) for rows in (order[cut:], order[:cut]))
        return kept, held
    if asked.overfit:
        few = shapes(10, asked.seed + 1, folder)
        few.flip = False  # by heart: nothing else varies either
        return few, few
    return shapes(asked.count, asked.seed + 1, folder / "train"), shapes(500, asked.seed + 2, folder / "test")


def main() -> None:
    asked = arguments()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    device = torch.device(asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        train, test = sides(asked, Path(place))
        size = train.arrays["pixels"].shape[-1]
        most = max(len(picture.kinds) for picture in train.found.pictures)
        spec = replace_in(preset("detr-r50-tiny"), {
            "head.classes": len(train.found.labels), "encoder.embed.size": size,
            "decoder.embed.count": max(20, 2 * most),
        })  # fmt: skip
        model: Any = spec.build(seed=asked.seed, device=device)
        total = asked.steps or (2000 if asked.overfit else 20_000)
        lr = asked.lr or (1e-3 if asked.overfit else 5e-4)
        settings = Training(
            batch_size=asked.batch_size, micro_batch_size=asked.batch_size, precision="fp32", seed=asked.seed,
            grad_clip=0.5, optimizer=AdamW(lr=lr, weight_decay=1e-4, betas=(0.9, 0.999)), schedule=Cosine(warmup=0.03),
        )  # fmt: skip
        engine = TrainingEngine(model, Detect(), settings, Plan(total))
        steps = Steps(train, Order.of(train, asked.batch_size, asked.seed), engine.objective, asked.batch_size)
        curve = []
        for step in range(total):
            moment = engine.step(step, steps[step])
            if (step + 1) % asked.every == 0 or step + 1 == total:
                found = judged(model, test)
                spent = time.perf_counter() - started
                curve.append({"step": step + 1, "loss": round(moment.loss.item(), 4), "ap": round(found.ap, 4),
                              "ap50": round(found.ap50, 4), "seconds": round(spent, 1)})  # fmt: skip
                print(" ".join(f"{name} {value}" for name, value in curve[-1].items()), file=sys.stderr, flush=True)
                if spent > 60 * asked.minutes:
                    break
        classes = {train.found.labels[kind]: round(value, 4) for kind, value in found.classes.items()}
        result = {
            "task": "overfit" if asked.overfit else "annotations" if asked.annotations else "shapes",
            "images": len(train), "held_out": 0 if asked.overfit else len(test), "classes": classes, **curve[-1],
            "parameters": sum(p.numel() for p in model.parameters()), "device": str(device), "torch": torch.__version__,
            "best_ap50": max(point["ap50"] for point in curve), "curve": curve,
        }  # fmt: skip
    line = json.dumps(result)
    print(line)
    if asked.out is not None:
        asked.out.write_text(line + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overfit", action="store_true", help="learn 10 images by heart")
    parser.add_argument("--annotations", type=Path, help="COCO's json, or a folder that holds one")
    parser.add_argument("--images", type=Path, help="the folder of its images, where it is not beside the json")
    parser.add_argument("--size", type=int, help="pixels a side of the square that images are fitted into")
    parser.add_argument("--count", type=int, default=10_000, help="drawn images to train on")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, help="1e-3 by heart, 5e-4 otherwise")
    parser.add_argument("--every", type=int, default=500, help="steps between judgements")
    parser.add_argument("--minutes", type=float, default=30.0, help="stop at the next judgement after this long")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
