"""Box arithmetic: (centre x, centre y, width, height) or corners (left, top, right, bottom), in any unit."""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-12  # lower bound of divisors: empty boxes have IoU 0


def corners(boxes: Tensor) -> Tensor:
    """Centre, width and height (...,4) as left, top, right, bottom."""
    middle, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([middle - half, middle + half], -1)


def centred(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom (...,4) as centre, width and height."""
    start, stop = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(start + stop) / 2, stop - start], -1)


def area(boxes: Tensor) -> Tensor:
    """Area of corners (...,4); 0 for an inverted box."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """IoU of corners (broadcasting), and the area of the union."""
    start, stop = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    shared = (stop - start).clamp(min=0).prod(-1)
    joint = area(a) + area(b) - shared
    return shared / joint.clamp(min=LEAST), joint


def generalised_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Generalised IoU (1902.09630), from -1 to 1: IoU minus the fraction of the enclosing box that neither covers."""
    share, joint = overlap(a, b)
    around = torch.cat([torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])], -1)
    hull = area(around)
    return share - (hull - joint) / hull.clamp(min=LEAST)
