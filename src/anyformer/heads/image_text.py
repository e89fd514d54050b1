"""The pretraining head of image-text models: masked words, patches, and image-text matching."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.errors import UserError
from anyformer.heads.lm import LM
from anyformer.heads.pixels import PixelHead
from anyformer.heads.pooled import Pooled
from anyformer.slots import Head, HeadOutput


class ImageTextHead(Head):
    """Token logits by `words`, two logits (B,2) per row by `match` as `pooled`, and pixels by `patches`.

    All are computed for every token; the objective selects. The second of the two logits is for an image and a text
    that do not match.
    """

    about: ClassVar[About | None] = About(
        "logits = words(x), p(apart) = softmax(match(x)), pixels = patches(x)", "1909.11740", "T D V"
    )

    patches: PixelHead
    """The head that reconstructs hidden patches."""
    words: LM = LM()
    """The language-model head."""
    match: Pooled = Pooled(classes=2, dense=True, act="tanh")
    """The image-text matching head."""

    def check(self) -> None:
        if self.match.classes != 2:
            what = f"image and text belong together or not, which is not {self.match.classes} classes"
            raise UserError(what, where="ImageTextHead.match", fix="classes=2")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return ImageTextHeadModule(self, width, vocabulary)


class ImageTextHeadModule(nn.Module):
    def __init__(self, spec: ImageTextHead, width: int, vocabulary: tuple[int, int | None] | None) -> None:
        super().__init__()
        self.words = spec.words.build(width, vocabulary)
        self.match = spec.match.build(width, vocabulary)
        self.patches = spec.patches.build(width, vocabulary)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        words, match = self.words(hidden, context, table), self.match(hidden, context, table)
        return HeadOutput(logits=words.logits, pooled=match.logits, patches=self.patches(hidden, context, table).logits)
