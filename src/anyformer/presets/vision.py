"""Image classifiers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.patches import Patches
from anyformer.heads.pooled import Pooled
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm


def vit(
    width: int, depth: int, heads: int, *, patch: int = 16, size: int = 224, channels: int = 3, classes: int = 1000
) -> Model:
    """Pre-norm encoder over patches with a class token (2010.11929)."""
    block = Block(mixer=Attention(heads=heads), norm=LayerNorm(eps=1e-12))
    embed, stack = Patches(size=size, patch=patch, channels=channels), Stack(width=width, depth=depth, block=block)
    return Model(embed=embed, stack=stack, head=Pooled(classes=classes), init="bert")


PRESETS: dict[str, Callable[[], Model]] = {
    "vit-s16": partial(vit, 384, 12, 6),
    "vit-b16": partial(vit, 768, 12, 12),
    "vit-b32": partial(vit, 768, 12, 12, patch=32),
    "vit-l16": partial(vit, 1024, 24, 16),
    "vit-b16-tiny": partial(vit, 96, 4, 4, patch=4, size=32, classes=10),
}
for size in ("s16", "b32", "l16"):
    PRESETS[f"vit-{size}-tiny"] = PRESETS["vit-b16-tiny"]
