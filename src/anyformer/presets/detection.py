"""Object detectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block, Place
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.maps import Maps
from anyformer.embeds.queries import Queries
from anyformer.feeds.mlp import MLP
from anyformer.heads.boxes import Boxes
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.nets.resnet import ResNet
from anyformer.norms.layer import LayerNorm
from anyformer.positions.sinusoid_grid import SinusoidGrid


def detr(
    width: int, depth: int, heads: int, inner: int, *, backbone: ResNet, queries: int = 100, size: int = 800,
    classes: int = 91, dropout: float = 0.1, place: Place = "post", anchors: tuple[int, int] | None = None,
) -> Seq2Seq:  # fmt: skip
    """A backbone's cells through an encoder; a decoder of learned queries finds the objects among them (2005.12872).

    With `anchors` the queries start all over the image and with what is there, which learns from a few hundred images.
    """
    block = Block(mixer=Attention(heads=heads), feed=MLP(act="relu", width=inner), place=place, dropout=dropout)
    cells = Maps(backbone=backbone, size=size, position=SinusoidGrid(), every_layer=True)
    asking = Stack(width=width, depth=depth, block=block.replace(cross=Cross(heads=heads)), final=LayerNorm())
    return Seq2Seq(
        encoder=Model(embed=cells, stack=Stack(width=width, depth=depth, block=block)),
        decoder=Model(embed=Queries(queries, anchors=anchors), stack=asking),
        head=Boxes(classes=classes, anchors=anchors),
    )  # fmt: skip


SMALL = ResNet(depths=(1, 1), width=24)  # cells of 8 pixels
# Cells of 32 pixels, as in DETR: a photo of 512 pixels is 256 tokens, where cells of 8 would be 4,096.
MINI = ResNet(depths=(2, 2, 2, 2), width=32)

PRESETS: dict[str, Callable[[], Seq2Seq]] = {
    "detr-r50": partial(detr, 256, 6, 8, 2048, backbone=ResNet(frozen=True)),
    "detr-mini": partial(
        detr, 192, 3, 6, 768, backbone=MINI, queries=100, size=512, place="pre", anchors=(10, 10), classes=5
    ),
    "detr-mini-tiny": partial(
        detr, 96, 3, 4, 192, backbone=SMALL, queries=64, size=64, place="pre", anchors=(8, 8), classes=5, dropout=0.0
    ),
    "detr-r50-tiny": partial(detr, 96, 3, 4, 192, backbone=SMALL, queries=20, size=64, classes=5, dropout=0.0),
}
