"""Average precision of detected objects as defined by COCO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

LEVELS = np.linspace(0.5, 0.95, 10)  # IoU thresholds
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # detections of one class per image that count


@dataclass
class Objects:
    """Objects of one image: corners (N,4) left, top, right, bottom in any unit, classes (N,); scores for detections.

    A `crowd` among true objects stands for many: it need not be detected, and detections inside it are ignored.
    """

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray | None = None
    crowd: np.ndarray | None = None

    def of(self, kind: int) -> Objects:
        """The objects of one class; detections are sorted by score and limited to `MOST`."""
        at = np.flatnonzero(np.asarray(self.classes) == kind)
        if self.scores is not None:
            at = at[np.argsort(-np.asarray(self.scores)[at], kind="stable")][:MOST]
        scores = None if self.scores is None else np.asarray(self.scores, np.float64)[at]
        crowd = None if self.crowd is None else np.asarray(self.crowd, bool)[at]
        return Objects(
            np.asarray(self.boxes, np.float64).reshape(-1, 4)[at], np.asarray(self.classes)[at], scores, crowd
        )


@dataclass
class Precision:
    """`ap` is the mean over IoU .5 to .95, `ap50` and `ap75` are at one threshold, `classes` the AP of each class."""

    ap: float
    ap50: float
    ap75: float
    classes: dict[int, float] = field(default_factory=dict)


def found_objects(logits: np.ndarray, boxes: np.ndarray, wide: float, high: float) -> Objects:
    """Detections of one image from logits (Q,C+1), the last one "no object", and relative boxes (Q,4) (cx, cy, w, h).

    Every query is a detection, scored by the probability of its best class.
    """
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    share = (shifted / shifted.sum(-1, keepdims=True))[:, :-1]
    middle, half = boxes[:, :2], boxes[:, 2:] / 2
    corners = np.concatenate([middle - half, middle + half], -1) * np.array([wide, high, wide, high])
    return Objects(corners, share.argmax(-1), share.max(-1))


def true_objects(boxes: np.ndarray, classes: np.ndarray, crowd: np.ndarray | None = None) -> Objects:
    """Annotated objects of one image, from left, top, width, height (N,4)."""
    return Objects(np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], -1), classes, crowd=crowd)


def average_precision(answers: Sequence[Objects], truth: Sequence[Objects]) -> Precision:
    """Average precision over all images; classes without a true object are left out.

    >>> there = Objects(np.array([[0, 0, 10, 10]]), np.array([0]))
    >>> found = Objects(np.array([[0, 0, 10, 9.8]]), np.array([0]), np.array([0.7]))
    >>> average_precision([found], [there]).ap
    1.0
    """
    kinds = sorted({int(kind) for image in truth for kind in np.asarray(image.classes).tolist()})
    table = {}
    for kind in kinds:
        found = of_class([image.of(kind) for image in answers], [image.of(kind) for image in truth])
        if found is not None:
            table[kind] = found
    if not table:
        return Precision(float("nan"), float("nan"), float("nan"))
    levels = np.stack(list(table.values()))  # (classes, levels)
    mean = levels.mean(0)
    return Precision(
        float(mean.mean()), float(mean[0]), float(mean[5]), {kind: float(row.mean()) for kind, row in table.items()}
    )


def of_class(answers: Sequence[Objects], truth: Sequence[Objects]) -> np.ndarray | None:
    """Average precision of one class at every IoU threshold (10,); None without true objects."""
    there = sum(int((~crowd_of(image)).sum()) for image in truth)
    if not there:
        return None
    scores, right, counted = [], [], []
    for found, true in zip(answers, truth, strict=True):
        hits, ignored = match_objects(found, true)
        scores.append(found.scores if found.scores is not None else np.zeros(len(found.boxes)))
        right.append(hits)
        counted.append(~ignored)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hit, real = np.concatenate(right, 1)[:, order], np.concatenate(counted, 1)[:, order]  # (levels, answers)
    return np.array([area_under(hit[level][real[level]], there) for level in range(len(LEVELS))])


def match_objects(found: Objects, true: Objects) -> tuple[np.ndarray, np.ndarray]:
    """Which detections (levels, N), best first, match an object not yet matched, and which are ignored."""
    crowd = crowd_of(true)
    shares = overlaps(found.boxes, true.boxes, crowd)  # (N,M)
    hits = np.zeros((len(LEVELS), len(found.boxes)), bool)
    ignored = hits.copy()
    for level, least in enumerate(LEVELS):
        taken = np.zeros(len(true.boxes), bool)
        for answer, row in enumerate(shares):
            free = ~taken & ~crowd & (row >= min(least, 1 - 1e-10))
            if free.any():
                # The last of equal overlaps wins, as in COCO's implementation.
                best = np.flatnonzero(free & (row == row[free].max()))[-1]
                taken[best], hits[level, answer] = True, True
            else:
                ignored[level, answer] = bool((crowd & (row >= min(least, 1 - 1e-10))).any())
    return hits, ignored


def overlaps(found: np.ndarray, true: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """IoU (N,M); for a crowd, intersection over the detection's own area."""
    start, stop = np.maximum(found[:, None, :2], true[None, :, :2]), np.minimum(found[:, None, 2:], true[None, :, 2:])
    shared = np.clip(stop - start, 0, None).prod(-1)
    own, other = sides(found)[:, None], sides(true)[None]
    joint = np.where(crowd[None], own, own + other - shared)
    return shared / np.maximum(joint, 1e-300)


def sides(boxes: np.ndarray) -> np.ndarray:
    """Areas of boxes given as corners (N,4)."""
    return np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1)


def crowd_of(image: Objects) -> np.ndarray:
    return np.zeros(len(image.boxes), bool) if image.crowd is None else image.crowd


def area_under(hits: np.ndarray, there: int) -> float:
    """Mean interpolated precision at 101 recall levels: the best precision at that recall or beyond."""
    right = np.cumsum(hits)
    recall, precision = right / there, right / np.arange(1, len(hits) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, RECALLS, side="left")
    return float(np.where(at < len(hits), precision[np.minimum(at, len(hits) - 1)], 0.0).mean()) if len(hits) else 0.0
