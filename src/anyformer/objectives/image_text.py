"""Image-text pretraining: masked tokens, masked patches, and image-text matching.

The objectives of VisualBERT (1908.03557) and UNITER (1909.11740), with patches of pixels in place of the regions of an
object detector. Each row gets one of the three tasks, so that its image and text are never both masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.embeds.patches import cut
from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.masked import Masked
from anyformer.objectives.masked_patches import normalise_patches
from anyformer.objectives.objective import IGNORED, BatchSource, Objective, full
from anyformer.objectives.token_facts import facts_of
from anyformer.objectives.transport import transport_cost

LEVELS = 8  # per colour channel: three bits, as in 2010.11929 (B.1.2)
WARMTH = 0.1  # temperature of the contrastive loss between patches
WORDS, PATCHES, MATCH = range(3)  # the task of a row


class ImageText(Objective):
    """Each row is asked for hidden words, hidden patches, or whether its image belongs to its text.

    VisualBERT asks for words and matches (`patches=0`), UNITER for all three. Where both belong together or not is
    asked, optimal transport between words and patches is drawn near, or apart, by `alignment`. The mean over what is
    asked of a row is the row's loss.
    """

    compiles: ClassVar[bool] = False  # torch.compile would unroll the steps of the transport

    words: float = 1.0
    """How often words are asked for, beside the other two."""
    patches: float = 1.0
    """How often patches are asked for."""
    match: float = 1.0
    """How often it is asked whether image and text belong together; in half of the rows they do not."""
    rate: float = 0.15
    """Share of the words, or of the patches, that are hidden."""
    regions: Literal["pixels", "colours", "nce"] = "pixels"
    """What is asked of a patch: its pixels, its mean colour as soft classes (KL), or which patch it is (NCE)."""
    alignment: float = 0.1
    """Weight of the transport between words and patches; 0 leaves it out."""
    patch: tuple[int, int] | None = None
    """Height and width of a patch: those of the network, filled in when it is known."""

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"rate {self.rate} is outside (0, 1)", where="ImageText", fix="use 0.15")
        shares = (self.words, self.patches, self.match)
        if min(shares) < 0 or sum(shares) <= 0:
            raise UserError(f"words, patches and match are {shares}", where="ImageText", fix="use 1, 1 and 1")

    @property
    def cell(self) -> tuple[int, int]:
        if self.patch is None:
            raise UserError("no patch size given", where="ImageText.patch", fix="give the network's")
        return self.patch

    # ------------------------------------------------------------ what is hidden

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        """`targets` (B,T) are the masked tokens; at the first token, a special one, whether the pair is a false one."""
        facts, masked = facts_of(source), Masked(rate=self.rate)
        tokens, pixels = batch.inputs[0].numpy().copy(), batch.inputs[1].clone()
        real = batch.named["mask"][0].numpy()
        targets = np.full_like(tokens, IGNORED)
        hidden = np.zeros((len(tokens), patch_count(pixels, self.cell)), bool)
        shares = np.array([self.words, self.patches, self.match])
        others = {}
        for row, number in enumerate(batch.rows.tolist()):
            random = draw.generator(number)
            asked = int(random.choice(3, p=shares / shares.sum()))
            if asked == WORDS:
                chosen = masked.choose(tokens[row], np.where(real[row], 0, IGNORED), facts, random)
                targets[row, chosen] = tokens[row, chosen]
                tokens[row, chosen] = masked.treat(tokens[row, chosen], facts, random)
            elif asked == PATCHES:
                count = hidden.shape[1]
                most = min(count - 1, max(1, math.floor(self.rate * count + random.random())))
                hidden[row, random.permutation(count)[:most]] = True
            elif asked == MATCH:
                targets[row, 0] = 0
                if random.random() < 0.5 and len(source) > 1:
                    others[row] = (number + int(random.integers(1, len(source)))) % len(source)
        wrong = self.other_images(batch, others, draw, source)
        for row, image in wrong.items():
            pixels[row], targets[row, 0] = image, 1
        inputs = (torch.from_numpy(tokens), (pixels, torch.from_numpy(hidden)))
        return replace(batch, inputs=inputs, targets=torch.from_numpy(targets))

    def other_images(self, batch: Batch, others: dict[int, int], draw: Draw, source: BatchSource) -> dict[int, Tensor]:
        """Mismatched images from other rows; a row keeps its own image if the other row has the same text."""
        if not others:
            return {}
        found = source.batch(list(others.values()), draw)
        texts, masks = found.inputs[0], found.named["mask"][0]
        wrong = {}
        for at, row in enumerate(others):
            own = batch.inputs[0][row][batch.named["mask"][0][row]]
            if own.tolist() != texts[at][masks[at]].tolist():
                wrong[row] = found.inputs[1][at]
        return wrong

    def weight(self, batch: Batch) -> int:
        return len(batch)

    # ------------------------------------------------------------ the loss

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.terms(model, batch).rows.sum()

    def terms(self, model: Any, batch: Batch) -> Terms:
        """The loss of each row, and its terms."""
        out = model.before_head(*batch.inputs, **batch.named)
        tokens, (pixels, hidden) = batch.inputs
        text, image = out.hidden[:, : tokens.shape[1]], out.hidden[:, -hidden.shape[1] :]
        words = word_losses(model, text, batch.targets)
        patches = self.patch_losses(model.head.patches(image, out.context, None).logits, pixels, hidden)
        logits = full(model.head.match(out.hidden, out.context, None).logits)
        asked = batch.targets[:, 0] != IGNORED
        match = F.cross_entropy(logits, batch.targets[:, 0], ignore_index=IGNORED, reduction="none")
        if self.alignment:
            seen = batch.named["mask"][1]
            seen = torch.ones_like(hidden) if seen is None else seen[:, None].expand_as(hidden)
            apart = transport_cost(full(text), full(image), batch.named["mask"][0], seen)
            sign = torch.where(batch.targets[:, 0] == 0, 1.0, -1.0)
            match = match + torch.where(asked, self.alignment * sign * apart, 0.0)
        right = asked & (logits.argmax(-1) == batch.targets[:, 0])
        return Terms(words + patches + match, words, patches, match, right)

    def patch_losses(self, rebuilt: Tensor, pixels: Tensor, hidden: Tensor) -> Tensor:
        """Mean loss over the masked patches of each row (B,), by `regions`."""
        rebuilt = full(rebuilt)
        patches = cut(pixels, self.cell).to(rebuilt.dtype)  # (B,N,values)
        if self.regions == "colours":
            each = colour_losses(rebuilt, patches, pixels.shape[1])
        elif self.regions == "nce":
            candidates = F.normalize(normalise_patches(patches), dim=-1)
            scores = F.normalize(rebuilt, dim=-1) @ candidates.mT / WARMTH  # (B,N,N)
            each = -scores.log_softmax(-1).diagonal(dim1=1, dim2=2)
        else:
            each = (rebuilt - normalise_patches(patches)).square().mean(-1)
        return torch.where(hidden, each, 0.0).sum(1) / hidden.sum(1).clamp(min=1)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        raise NotImplementedError("the loss of a row is more than its logits: see `terms`")


@dataclass(frozen=True)
class Terms:
    """Losses of the rows (B,), 0 for other tasks; `right`: whether the image-text match was predicted correctly."""

    rows: Tensor
    words: Tensor
    patches: Tensor
    match: Tensor
    right: Tensor


def patch_count(pixels: Tensor, cell: tuple[int, int]) -> int:
    return (pixels.shape[2] // cell[0]) * (pixels.shape[3] // cell[1])


def word_losses(model: Any, text: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the masked tokens of each row (B,), without the first token, a special one."""
    wanted = targets.clone()
    wanted[:, 0] = IGNORED
    logits = full(model.head.words(text, None, model.table()).logits)
    each = F.cross_entropy(logits.mT, wanted, ignore_index=IGNORED, reduction="none")  # (B,T)
    return each.sum(1) / (wanted != IGNORED).sum(1).clamp(min=1)


def colour_losses(rebuilt: Tensor, patches: Tensor, channels: int) -> Tensor:
    """KL divergence of the predicted colour levels from those of a patch's mean colour, (B,N), summed over channels.

    The levels replace the classes of a detector, whose probabilities are UNITER's soft labels: a mean colour between
    two levels is split between them by distance. The first outputs of a patch are its logits.
    """
    if rebuilt.shape[-1] < LEVELS * channels:
        raise UserError(f"{rebuilt.shape[-1]} numbers a patch are too few for {LEVELS} levels of {channels} colours",
                        where="objective.regions", fix="use pixels, or larger patches")  # fmt: skip
    mean = patches.unflatten(-1, (channels, -1)).mean(-1).clamp(-1, 1)  # (B,N,channels), as images are normalised
    place = (mean + 1) / 2 * (LEVELS - 1)
    nearness = (1 - (place[..., None] - torch.arange(LEVELS, device=place.device)).abs()).clamp(min=0)  # (...,LEVELS)
    logits = rebuilt[..., : LEVELS * channels].unflatten(-1, (channels, LEVELS)).log_softmax(-1)
    return F.kl_div(logits, nearness, reduction="none").sum((-1, -2))
