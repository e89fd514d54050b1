"""ViT (2010.11929) and, under the same model_type, DINO (2104.14294), whose folders are ViTs without a pooler."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import BATCHED, LEADING, PATCH, QKV
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.patches import Patches
from anyformer.errors import UserError
from anyformer.families.config import THEIR_ACTS, FamilyConfig
from anyformer.families.family import BARE, BODY, CLASSIFY, Family
from anyformer.feeds.mlp import MLP
from anyformer.heads import Pooled
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.slots import Head


def settings(c: FamilyConfig, head: str) -> Model:
    """ViT's config.json as a spec."""
    return encoder(c, patches(c), answer(c, head))


def encoder(c: FamilyConfig, embed: Patches, head: Head | None) -> Model:
    """The layers that ViT and DeiT share."""
    c.skip("how masked image modelling draws its picture", "encoder_stride")
    width, heads = c.size("hidden_size", 768), c.size("num_attention_heads", 12)
    channels, inner = c.size("head_dim", None), c.size("intermediate_size", 3072)
    bias = c.get("qkv_bias", True)
    attention = Attention(
        heads=heads, key_size=None if channels is None or channels * heads == width else channels,
        bias=bias, out_bias=None if bias else True, dropout=c.get("attention_probs_dropout_prob", 0.0),
    )  # fmt: skip
    feed = MLP(width=None if inner == 4 * width else inner, act=c.act("hidden_act", "gelu"))
    norm = LayerNorm(eps=c.get("layer_norm_eps", 1e-12))
    block = Block(mixer=attention, feed=feed, norm=norm, dropout=embed.dropout)
    stack = Stack(width=width, depth=c.count("num_hidden_layers", 12), block=block)
    return Model(embed=embed, stack=stack, head=head, init="bert")


def patches(c: FamilyConfig, *, distill: bool = False) -> Patches:
    return Patches(
        size=sides(c, "image_size", 224), patch=sides(c, "patch_size", 16), channels=c.size("num_channels", 3),
        distill=distill, dropout=c.get("hidden_dropout_prob", 0.0),
    )  # fmt: skip


def sides(c: FamilyConfig, name: str, default: int) -> int | tuple[int, int]:
    """A number of pixels, or a list of rows and columns."""
    c.skip("read here", name)
    value = c.data.get(name)
    if not isinstance(value, list | tuple):
        return c.size(name, default)
    if len(value) != 2 or not all(type(side) is int and side > 0 for side in value):
        raise UserError(f"{name} is {value!r}", where=c.where, fix="expected a whole number, or two in a list")
    return value[0], value[1]


def answer(c: FamilyConfig, head: str) -> Head | None:
    width, inner = c.size("hidden_size", 768), c.size("pooler_output_size", None)
    act = c.act("pooler_act", "tanh")
    pooler = Pooled(dense=True if inner in (None, width) else inner, act=act)
    heads: dict[str, Head | None] = {BODY: None, BARE: pooler, CLASSIFY: Pooled(classes=c.labels())}
    return heads[head]


def config(spec: Model, head: str) -> dict[str, Any]:
    """A spec as ViT's config.json."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Patches) and isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
    assert isinstance(first.norm, LayerNorm)
    made: dict[str, Any] = {
        "hidden_size": stack.width, "num_hidden_layers": stack.depth, "num_attention_heads": first.mixer.heads,
        "intermediate_size": first.feed.width or 4 * stack.width, "hidden_act": THEIR_ACTS[first.feed.act],
        "hidden_dropout_prob": embed.dropout, "attention_probs_dropout_prob": first.mixer.dropout,
        "layer_norm_eps": first.norm.eps, "image_size": plain(embed.size), "patch_size": plain(embed.patch),
        "num_channels": embed.channels, "qkv_bias": first.mixer.bias,
    }  # fmt: skip
    if first.mixer.key_size is not None:
        made["head_dim"] = first.mixer.key_size
    if head == BARE:
        assert isinstance(spec.head, Pooled) and spec.head.act is not None
        made |= {"pooler_output_size": stack.width if spec.head.dense is True else spec.head.dense,
                 "pooler_act": THEIR_ACTS[spec.head.act]}  # fmt: skip
    return made


def plain(sides: int | tuple[int, int]) -> int | list[int]:
    return sides if isinstance(sides, int) else list(sides)


PROJECTIONS = tuple(f"encoder.layer.{{i}}.attention.attention.{part}" for part in ("query", "key", "value"))
LAYERS = (
    ("embed.patch", "embeddings.patch_embeddings.projection", PATCH),
    ("embed.position.table.weight", "embeddings.position_embeddings", BATCHED),
    ("stack.blocks.{i}.around_mixer.before", "encoder.layer.{i}.layernorm_before"),
    ("stack.blocks.{i}.mixer.qkv", PROJECTIONS, QKV),
    ("stack.blocks.{i}.mixer.out", "encoder.layer.{i}.attention.output.dense"),
    ("stack.blocks.{i}.around_feed.before", "encoder.layer.{i}.layernorm_after"),
    ("stack.blocks.{i}.feed.up", "encoder.layer.{i}.intermediate.dense"),
    ("stack.blocks.{i}.feed.down", "encoder.layer.{i}.output.dense"),
    ("stack.final", "layernorm"),
)  # fmt: skip
MODULES = (
    ("encoder.layer.", "layers."), ("attention.attention.query", "attention.q_proj"),
    ("attention.attention.key", "attention.k_proj"), ("attention.attention.value", "attention.v_proj"),
    ("attention.output.dense", "attention.o_proj"), ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"),
)  # fmt: skip
LEAD = (("embed.lead", "embeddings.cls_token", LEADING),)
HEADS: dict[str, tuple[tuple[Any, ...], ...]] = {
    BODY: (),
    BARE: (("head.dense", "pooler.dense"),),
    CLASSIFY: (("head.out", "classifier"),),
}


def table(spec: Model, head: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    prefix = "" if head in (BARE, BODY) else "vit."
    return rows(*under(prefix, LAYERS + LEAD), *HEADS[head])


def under(prefix: str, body: tuple[tuple[Any, ...], ...]) -> list[tuple[Any, ...]]:
    """The rows with a prefix on every name of the family."""
    named = ((theirs if isinstance(theirs, tuple) else (theirs,)) for _, theirs, *_ in body)
    return [(row[0], tuple(prefix + name for name in names), *row[2:]) for row, names in zip(body, named, strict=True)]


FAMILIES = (
    Family(
        model_type="vit", heads={"ViTModel": BARE, "ViTForImageClassification": CLASSIFY},
        settings=settings, config=config, table=table, prefix="vit.", pooled=True, modules=MODULES,
        spare=(r"(vit\.)?embeddings\.mask_token", r"(vit\.)?pooler\.dense\.(weight|bias)"),
    ),
)  # fmt: skip
