"""Single- or multi-label classification of rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError, check_range
from anyformer.objectives.batch import Batch
from anyformer.objectives.drop_words import drop_words
from anyformer.objectives.objective import IGNORED, Objective, full, with_extra
from anyformer.objectives.teachable import TargetOutputs, Teachable, divergence, row_outputs


class Classify(Teachable, Objective):
    """Cross-entropy with one class a row; with `multi`, each label is a question of its own.

    `weights` counts each class by this factor. `mixup` and `cutmix` are the strengths (alpha) with which pairs of
    training images are blended; with both, each batch takes one of the two.
    """

    multi: bool = False
    """Whether a row may have several labels, each a question of its own."""
    label_smoothing: float = 0.0
    """Share of the target probability spread over all classes."""
    weights: tuple[float, ...] | None = None
    """Factor of each class in the loss; all 1 if not given."""
    mixup: float = 0.0
    """Alpha of mixup on training images; 0: off."""
    cutmix: float = 0.0
    """Alpha of CutMix on training images; 0: off."""
    word_dropout: float = 0.0
    """Share of the tokens of a training text that are hidden; 0: none."""

    def check(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"label_smoothing {self.label_smoothing} is outside [0, 1)", where="Classify", fix="use 0.1"
            )
        check_range("Classify", "mixup", self.mixup, 0, fix="use 0.8, or 0 for none")
        check_range("Classify", "cutmix", self.cutmix, 0, fix="use 1.0, or 0 for none")
        check_range("Classify", "word_dropout", self.word_dropout, 0, 0.99, fix="use 0.1, or 0 for none")
        if self.weights is not None and any(weight <= 0 for weight in self.weights):
            raise UserError("a class weight is not positive", where="Classify.weights", fix="leave it out")

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Apply word dropout, and mixup or CutMix with other images of the batch, recorded in `blend`."""
        batch = drop_words(batch, self.word_dropout, generator)
        if not (self.mixup or self.cutmix) or not isinstance(batch.inputs[0], Tensor) or batch.inputs[0].dim() != 4:
            return batch
        pasted = self.cutmix > 0 and (self.mixup == 0 or bool(torch.rand((), generator=generator) < 0.5))
        blend = cut_and_paste if pasted else mix
        pixels, partner, share = blend(batch.inputs[0], self.cutmix if pasted else self.mixup, generator)
        return replace(batch, inputs=(pixels, *batch.inputs[1:]), blend=(partner, share))

    def weight(self, batch: Batch) -> int:
        return len(batch) if self.multi else super().weight(batch)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        out = model(*batch.inputs, **batch.named)
        own = self.blended_losses(full(out.logits), batch)
        return with_extra(own.sum(), out.losses, len(batch) if self.multi else (batch.targets != IGNORED).sum())

    def blended_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of every row (B,) of logits (B,C); for blended rows the weighted sum over both targets."""
        measure = self.labels_loss if self.multi else self.class_loss
        own = measure(logits, batch.targets)
        if batch.blend is None:
            return own
        partner, share = batch.blend
        return share * own + (1 - share) * measure(logits, batch.targets[partner])

    def class_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        factors = None if self.weights is None else logits.new_tensor(self.weights)
        return F.cross_entropy(
            logits,
            targets,
            weight=factors,
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )

    def labels_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over the labels, so that the loss does not scale with their number."""
        factors = None if self.weights is None else logits.new_tensor(self.weights)
        each = F.binary_cross_entropy_with_logits(logits, targets.to(logits), pos_weight=factors, reduction="none")
        return each.mean(1)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        logits = full(output.logits)
        if self.multi:
            return self.labels_loss(logits, batch.targets)
        return F.cross_entropy(logits, batch.targets, ignore_index=IGNORED, reduction="none")

    # ------------------------------------------------------------ with a teacher

    def target_outputs(self, model: nn.Module, batch: Batch) -> TargetOutputs:
        return row_outputs(model, batch)

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        return self.blended_losses(full(found.logits), batch)

    def soft_losses(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Multi-label: each label is a binary classification with the logits x and 0."""
        if not self.multi:
            return divergence(logits, teacher, temperature)
        mine, theirs = (torch.stack([each, torch.zeros_like(each)], -1) for each in (logits, teacher))  # (B,C,2)
        return divergence(mine, theirs, temperature).mean(1)

    def counted(self, targets: Tensor) -> Tensor:
        return torch.ones_like(targets[:, 0], dtype=torch.bool) if self.multi else super().counted(targets)


def beta(alpha: float, generator: torch.Generator) -> float:
    """One sample of Beta(alpha, alpha), by Johnk's method in log space."""
    while True:
        u, v = torch.rand(2, generator=generator, dtype=torch.float64).clamp(min=1e-300).tolist()
        x, y = math.log(u) / alpha, math.log(v) / alpha
        high = max(x, y)
        if high + math.log(math.exp(x - high) + math.exp(y - high)) <= 0:
            return 1 / (1 + math.exp(min(y - x, 700.0)))


def mix(pixels: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Mixup: pixels, the partner of each image, and the weight of the image itself."""
    share = beta(alpha, generator)
    partner = torch.randperm(len(pixels), generator=generator)
    mixed = share * pixels + (1 - share) * pixels[partner]
    return mixed, partner, torch.tensor(share, dtype=torch.float32)


def cut_and_paste(pixels: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """CutMix: as `mix`, with a rectangle pasted from the partner; the weight is the area that is left."""
    share = beta(alpha, generator)
    partner = torch.randperm(len(pixels), generator=generator)
    height, width = pixels.shape[-2:]
    side = math.sqrt(1 - share)
    row, column = (int(torch.randint(size, (), generator=generator)) for size in (height, width))
    top, bottom = max(0, row - int(height * side / 2)), min(height, row + int(height * side / 2))
    left, right = max(0, column - int(width * side / 2)), min(width, column + int(width * side / 2))
    pasted = pixels.clone()
    pasted[..., top:bottom, left:right] = pixels[partner][..., top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (height * width)
    return pasted, partner, torch.tensor(kept, dtype=torch.float32)
