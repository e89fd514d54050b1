"""Object detection with bipartite matching of predictions and objects (DETR, 2005.12872)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.boxes import corners, generalised_overlap
from anyformer.objectives.matching import assign
from anyformer.objectives.objective import IGNORED, Objective, full


class Detect(Objective):
    """Cross-entropy + `distance` |box - true box| + `overlap` (1 - generalised overlap), the mean of all layers.

    Targets (B,M,5) are class, centre x, centre y, width, height in shares of the image; class -100 means none. The
    order of the objects does not matter. An answer without an object should say "no object", which counts `nothing`.
    An image counts as many objects as it holds, an empty one counts as one, and its cross-entropy is the mean over its
    answers: so each image's loss is its own, however images are put into batches.
    """

    distance: float = 5.0
    """Weight of the L1 distance of boxes."""
    overlap: float = 2.0
    """Weight of the generalised IoU."""
    nothing: float = 0.1
    """Weight of "no object" in the cross-entropy."""

    def check(self) -> None:
        for name in ("distance", "overlap"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} {getattr(self, name)} is below 0", where="Detect", fix="use 5 and 2")
        if not 0 < self.nothing <= 1:
            raise UserError(f"nothing {self.nothing} is outside (0, 1]", where="Detect", fix="use 0.1")

    def weight(self, batch: Batch) -> int:
        return int((batch.targets[..., 0] != IGNORED).sum(1).clamp(min=1).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        net: Any = model
        out = net.before_head(*batch.inputs, **batch.named, layers=True)
        answer = net.head(torch.stack(out.layers), out.context, None)  # (L,B,Q,...)
        return self.each(answer.logits, answer.boxes, batch.targets).mean(0).sum()

    def each(self, logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
        """The loss of each image (...,B), from logits (...,B,Q,C+1) and boxes (...,B,Q,4) of any number of layers."""
        logits, boxes, targets = full(logits), full(boxes), full(targets).to(logits.device)
        if not targets.shape[1]:  # no image has objects
            targets = targets.new_full((len(targets), 1, 5), IGNORED)
        real = targets[..., 0] != IGNORED  # (B,M)
        order = real.long().argsort(dim=1, descending=True, stable=True)  # real objects first
        targets = targets.gather(1, order[..., None].expand_as(targets))
        counts = real.sum(1)
        kinds, wanted = targets[..., 0].clamp(min=0).long(), targets[..., 1:].to(boxes)  # (B,M), (B,M,4)
        found = assign(self.costs(logits, boxes, kinds, wanted), counts.tolist())  # (...,B,Q)
        matched, at = found >= 0, found.clamp(min=0)

        none = logits.shape[-1] - 1
        kind = torch.where(matched, kinds.expand(*at.shape[:-1], -1).gather(-1, at), none)
        share = matched.to(logits) * (1 - self.nothing) + self.nothing
        entropy = F.cross_entropy(logits.flatten(0, -2), kind.flatten(), reduction="none").view(share.shape) * share
        size = counts.clamp(min=1).to(logits)  # (B,)
        total = entropy.sum(-1) / share.sum(-1) * size

        there = wanted.expand(*at.shape[:-1], -1, 4).gather(-2, at[..., None].expand(*at.shape, 4))
        there = torch.where(matched[..., None], there, boxes.detach())  # no gradient, and no division by zero
        off = (boxes - there).abs().sum(-1)
        apart = 1 - generalised_overlap(corners(boxes), corners(there))
        return total + torch.where(matched, self.distance * off + self.overlap * apart, 0.0).sum(-1)

    @torch.no_grad()
    def costs(self, logits: Tensor, boxes: Tensor, kinds: Tensor, wanted: Tensor) -> Tensor:
        """Matching cost of each prediction and target, (...,B,Q,M): the loss with -probability in place of -log p."""
        index = kinds[..., None, :].expand(*logits.shape[:-1], kinds.shape[-1])
        likely = logits.softmax(-1).gather(-1, index)
        one, other = boxes[..., :, None, :], wanted[..., None, :, :]
        off = (one - other).abs().sum(-1)
        return self.distance * off - likely - self.overlap * generalised_overlap(corners(one), corners(other))

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        """The loss of the last layer, per object."""
        counts = (batch.targets[..., 0] != IGNORED).sum(1).clamp(min=1)
        return self.each(output.logits, output.boxes, batch.targets) / counts.to(output.logits.device)
