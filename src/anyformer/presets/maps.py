"""Image classifiers over maps: residual, local relation and visual-token networks, and a pyramid of windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.pyramid import Pyramid, Stage
from anyformer.core.stack import Stack
from anyformer.embeds.maps import Maps
from anyformer.embeds.patches import Patches
from anyformer.feeds.mlp import MLP
from anyformer.heads.pooled import Pooled
from anyformer.mixers.attention import Attention
from anyformer.mixers.window2d import Window2D
from anyformer.nets.lr_net import LRNet
from anyformer.nets.resnet import ResNet
from anyformer.nets.visual_transformer import VisualTransformer
from anyformer.norms.layer import LayerNorm
from anyformer.slots import Backbone


def classifier(backbone: Backbone, *, size: int = 224, classes: int = 1000) -> Model:
    """The mean of a backbone's maps and one matrix; there are no blocks."""
    return Model(
        embed=Maps(backbone=backbone, size=size, project=False), stack=Stack(width=backbone.channels, depth=0),
        head=Pooled(classes=classes, pool="mean"), init="bert",
    )  # fmt: skip


def pyramid(width: int, depths: tuple[int, ...], heads: int, *, patch: int = 4, window: int = 7, size: int = 224,
            classes: int = 1000) -> Model:  # fmt: skip
    """Windows over patches in stages, every second layer shifted (2103.14030); heads double with the width."""
    stages = []
    for i, depth in enumerate(depths):
        mixers = [Window2D(heads=heads * 2**i, window=window, shift=shift) for shift in (False, True)]
        stages.append(Stage(depth=depth, block=tuple(Block(mixer=mixer, drop_path=0.1) for mixer in mixers)))
    embed = Patches(size=size, patch=patch, cls=False, position=None, norm=LayerNorm())
    return Model(
        embed=embed, stack=Pyramid(width=width, stages=tuple(stages)), head=Pooled(classes=classes, pool="mean"),
        init="bert",
    )  # fmt: skip


def visual_tokens(backbone: Backbone, width: int, heads: int, *, size: int = 224, classes: int = 1000,
                  tokens: int = 16, depth: int = 3) -> Model:  # fmt: skip
    """Visual tokens in place of the last stage of a residual network (2006.03677)."""
    block = Block(mixer=Attention(heads=heads), feed=MLP(act="relu", width=width))
    net = VisualTransformer(backbone=backbone, width=width, block=block, tokens=tokens, depth=depth)
    return classifier(net, size=size, classes=classes)


TINY = {"size": 32, "classes": 10}
SMALL = ResNet(depths=(1, 1, 1, 1), width=8, stem="small")
PRESETS: dict[str, Callable[[], Model]] = {
    "resnet-50": partial(classifier, ResNet()),
    "resnet-50-tiny": partial(classifier, SMALL, **TINY),
    "lr-net-50": partial(classifier, LRNet()),
    "lr-net-50-tiny": partial(
        classifier, LRNet(depths=(1, 1, 1), width=8, middle=12, window=5, share=4, stem="small"), **TINY
    ),
    "vt-resnet": partial(visual_tokens, ResNet(depths=(3, 4, 6)), 512, 8),
    "vt-resnet-tiny": partial(visual_tokens, SMALL.replace(depths=(1, 1, 1)), 32, 4, tokens=4, depth=2, **TINY),
    "pyramid-small": partial(pyramid, 96, (2, 2, 18, 2), 3),
    "pyramid-small-tiny": partial(pyramid, 32, (2, 2), 2, window=4, patch=2, **TINY),
}
