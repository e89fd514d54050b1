"""What anchors are worth to a detector that learns from nothing: images with many objects, the loss as it falls.

    python -m benchmarks.detection_anchors [--steps 400] [--seed 0]

Six to fourteen discs of three colours on noise, 64 pixels a side, drawn anew for every step. The same small DETR twice:
its 64 queries start anywhere, or on a grid over the image and with what is there (`detr-mini-tiny`). Prints the mean
loss an object over the last 25 steps; half a minute a hundred steps on one core.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer import Boxes, Queries, Seq2Seq, preset
from anyformer.objectives import Batch, Detect
from anyformer.objectives.objective import IGNORED

SIDE, ROWS, MOST, KINDS = 64, 16, 14, 3


def draw_discs(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Pixels (B,3,SIDE,SIDE), and targets (B,MOST,5) as `Detect` takes them."""
    pixels = rng.normal(0, 0.3, (ROWS, 3, SIDE, SIDE)).astype(np.float32)
    targets = np.full((ROWS, MOST, 5), float(IGNORED), np.float32)
    down, across = np.mgrid[:SIDE, :SIDE] + 0.5
    for image, objects in zip(pixels, targets, strict=True):
        for at in range(rng.integers(6, MOST + 1)):
            radius = rng.uniform(4, 7)
            x, y = rng.uniform(radius, SIDE - radius, 2)
            kind = rng.integers(KINDS)
            image[:, (across - x) ** 2 + (down - y) ** 2 < radius**2] = 2 * np.eye(KINDS)[kind][:, None]
            objects[at] = [kind, x / SIDE, y / SIDE, 2 * radius / SIDE, 2 * radius / SIDE]
    return torch.from_numpy(pixels), torch.from_numpy(targets)


def detector(anchored: bool) -> Seq2Seq:
    spec: Any = preset("detr-mini-tiny")
    anchors = spec.decoder.embed.anchors if anchored else None
    queries = Queries(spec.decoder.embed.count, anchors=anchors)
    return spec.replace(decoder=spec.decoder.replace(embed=queries), head=Boxes(classes=KINDS, anchors=anchors))


def losses(anchored: bool, steps: int, seed: int, lr: float = 5e-4, warmup: int = 30) -> list[float]:
    net, objective, rng = detector(anchored).build(seed=seed), Detect(), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=1e-4)
    found = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / warmup)
        pixels, targets = draw_discs(rng)
        seen = torch.ones(ROWS, SIDE, SIDE, dtype=torch.bool)
        batch = Batch((pixels,), targets, torch.arange(ROWS), {"source_mask": seen})
        loss = objective.loss(net, batch) / objective.weight(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--steps", type=int, default=400)
    asked.add_argument("--seed", type=int, default=0)
    options = asked.parse_args()
    for name, anchored in (("anywhere", False), ("anchors", True)):
        curve = losses(anchored, options.steps, options.seed)
        points = [f"{np.mean(curve[at - 25 : at]):.2f}" for at in range(100, options.steps + 1, 100)]
        print(f"{name:<9} loss an object after every 100 steps: {' '.join(points)}", flush=True)


if __name__ == "__main__":
    main()
