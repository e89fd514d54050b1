"""ViT (2010.11929) in timm's format, which transformers opens as TimmWrapper.

Such a folder's config.json names an architecture, `vit_base_patch16_224`, and has only the differences from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import BATCHED, LEADING, PATCH, THIRDS
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.patches import Patches
from anyformer.errors import UserError
from anyformer.families.config import FamilyConfig
from anyformer.families.family import BARE, CLASSIFY, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import Pooled
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm

MODEL_TYPE = "timm_wrapper"  # transformers' name; timm's own folders have none
NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch(\d+)_(\d+)")
WIDTHS = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16),
          "huge": (1280, 32, 16)}  # fmt: skip
EPS = 1e-6


class ViTSizes(NamedTuple):
    """The sizes of an architecture, by timm's argument names."""

    embed_dim: int
    depth: int
    num_heads: int
    patch_size: int
    img_size: int
    mlp_ratio: float = 4.0
    in_chans: int = 3
    qkv_bias: bool = True


def sizes_of(name: str) -> ViTSizes | None:
    """The sizes of an architecture, or None for one that is not a plain ViT.

    >>> sizes_of("vit_tiny_patch16_224")[:5]
    (192, 12, 3, 16, 224)
    """
    found = NAME.fullmatch(name)
    if found is None:
        return None
    size, patch, image = found.groups()
    return ViTSizes(*WIDTHS[size], int(patch), int(image))


def settings(c: FamilyConfig, head: str) -> Model:
    """timm's config.json as a spec."""
    name = c.get("architecture", "")
    sizes = sizes_of(name)
    if sizes is None:
        raise UserError(f"timm's architecture {name!r} is not implemented", where=c.where,
                        fix="plain ViTs are: vit_base_patch16_224 and its like")  # fmt: skip
    c.only("global_pool", "token", why="is not implemented")
    c.skip("said by the architecture", "num_features")
    c.skip("how images are prepared and what labels are called", "pretrained_cfg", "label_names",
           "label_descriptions", "do_pooling")  # fmt: skip
    changed = FamilyConfig(square(c.get("model_args", {})), where=f"{c.where}: model_args", tensors=c.tensors)
    changed.only("global_pool", "token", why="is not implemented")
    changed.skip("said beside them", "num_classes")
    given = ViTSizes(*(argument(changed, field, usual) for field, usual in sizes._asdict().items()))
    if unknown := changed.unread():
        raise UserError(
            f"{unknown[0]!r} is not implemented", where=changed.where, fix=f"expected {', '.join(ViTSizes._fields)}"
        )
    if given.embed_dim % max(1, given.num_heads):
        raise UserError(f"{given.embed_dim} channels do not divide among {given.num_heads} heads", where=c.where,
                        fix="the folder's parts do not belong together")  # fmt: skip
    attention = Attention(heads=given.num_heads, bias=given.qkv_bias, out_bias=None if given.qkv_bias else True)
    inner = int(given.embed_dim * given.mlp_ratio)
    feed = MLP(width=None if inner == 4 * given.embed_dim else inner, act="gelu")
    block = Block(mixer=attention, feed=feed, norm=LayerNorm(eps=EPS))
    return Model(
        embed=Patches(size=given.img_size, patch=given.patch_size, channels=given.in_chans),
        stack=Stack(width=given.embed_dim, depth=changed.count("depth", sizes.depth), block=block),
        head=Pooled(classes=c.size("num_classes", 1000)) if head == CLASSIFY else None, init="bert",
    )  # fmt: skip


def argument(changed: FamilyConfig, field: str, usual: Any) -> Any:
    """One of timm's arguments in a folder; integers are at least 1."""
    return changed.size(field, usual) if type(usual) is int else changed.get(field, usual)


def square(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with lists of two equal sides as one number.

    >>> square({"img_size": [32, 32], "depth": 2})
    {'img_size': 32, 'depth': 2}
    """

    def side(value: Any) -> Any:
        return value[0] if isinstance(value, list) and len(value) == 2 and value[0] == value[1] else value

    return {name: side(value) for name, value in arguments.items()}


def config(spec: Model, head: str) -> dict[str, Any]:
    """A spec as timm's config.json: the architecture of its size, and what differs from that."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Patches) and isinstance(embed.size, int) and isinstance(embed.patch, int)
    assert isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
    ratio = (first.feed.width or 4 * stack.width) / stack.width
    asked = ViTSizes(stack.width, stack.depth, first.mixer.heads, embed.patch, embed.size, ratio, embed.channels,
                  first.mixer.bias)  # fmt: skip
    size = next((size for size, widths in WIDTHS.items() if widths == asked[:3]), "base")
    name = f"vit_{size}_patch{14 if size == 'huge' else 16}_224"  # exists for every size
    usual = sizes_of(name)
    assert usual is not None
    classes = spec.head.classes if isinstance(spec.head, Pooled) else 0
    changed = {field: value for field, value in asked._asdict().items() if value != getattr(usual, field)}
    made = {"architecture": name, "num_classes": classes, "num_features": stack.width, "global_pool": "token"}
    return made | ({"model_args": changed} if changed else {})


def head_without_a_name(config: Mapping[str, Any]) -> str:
    """timm only stores the number of classes; none means no head."""
    return CLASSIFY if config.get("num_classes") else BARE


LAYERS = (
    ("embed.patch", "patch_embed.proj", PATCH),
    ("embed.position.table.weight", "pos_embed", BATCHED),
    ("embed.lead", "cls_token", LEADING),
    ("stack.blocks.{i}.around_mixer.before", "blocks.{i}.norm1"),
    ("stack.blocks.{i}.mixer.qkv", "blocks.{i}.attn.qkv", THIRDS),
    ("stack.blocks.{i}.mixer.out", "blocks.{i}.attn.proj"),
    ("stack.blocks.{i}.around_feed.before", "blocks.{i}.norm2"),
    ("stack.blocks.{i}.feed.up", "blocks.{i}.mlp.fc1"),
    ("stack.blocks.{i}.feed.down", "blocks.{i}.mlp.fc2"),
    ("stack.final", "norm"),
)  # fmt: skip


def table(spec: Model, head: str) -> tuple[Row, ...]:
    """One row per module."""
    return rows(*LAYERS, *([("head.out", "head")] if head == CLASSIFY else []))


FAMILIES = (
    Family(
        model_type=MODEL_TYPE, heads={"TimmWrapperForImageClassification": CLASSIFY, "TimmWrapperModel": BARE},
        settings=settings, config=config, table=table, spare={BARE: (r"head\.(weight|bias)",)},
        respelled=lambda name: name.removeprefix("timm_model."), head_without_a_name=head_without_a_name,
    ),
)  # fmt: skip
