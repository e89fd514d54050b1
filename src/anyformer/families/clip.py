"""CLIP (2103.00020): a causal text tower pooled at its end-of-text token, and an image tower pooled at its class token.

Each tower is also a family of its own; a whole CLIP folder opens as `Towers`, text first, or as either tower.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import PATCH, QKV, Leading
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.core.towers import Towers
from anyformer.embeds.patches import Patches
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.families.config import THEIR_ACTS, FamilyConfig
from anyformer.families.family import BARE, Family
from anyformer.families.vit import under
from anyformer.feeds.mlp import MLP
from anyformer.heads import Pooled
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.norms.none import NoNorm
from anyformer.positions.learned import Learned
from anyformer.slots import Norm

PROJECT, TEXT, VISION, WHOLE = "project", "text", "vision", "whole"
HIGHEST = 2  # the wrong end-of-text id of early configs, which means "the highest id of the text"


def text(c: FamilyConfig, head: str, shared: int | None = None) -> Model:
    """The text tower's config.json as a spec; `shared` is the common projection width."""
    norm = LayerNorm(eps=c.get("layer_norm_eps", 1e-5))
    end = c.get("eos_token_id", 49407)
    project = c.size("projection_dim", 512) if shared is None else shared
    pooled = Pooled(pool="token", token=None if end == HIGHEST else end)
    embed = Tokens(vocab=c.size("vocab_size", 49408), position=Learned(c.size("max_position_embeddings", 77)))
    stack = layers(c, norm, width=512, inner=2048, heads=8, causal=True, final=None)
    return Model(embed=embed, stack=stack, head=projected(pooled, head, project), init="bert")


def vision(c: FamilyConfig, head: str, shared: int | None = None) -> Model:
    """The image tower's config.json as a spec."""
    norm = LayerNorm(eps=c.get("layer_norm_eps", 1e-5))
    project = c.size("projection_dim", 512) if shared is None else shared
    embed = Patches(
        size=c.size("image_size", 224), patch=c.size("patch_size", 32), channels=c.size("num_channels", 3),
        norm=norm, bias=False,
    )  # fmt: skip
    # The final norm applies only to the class token, not to the hidden states.
    stack = layers(c, norm, width=768, inner=3072, heads=12, causal=False, final=NoNorm())
    return Model(embed=embed, stack=stack, head=projected(Pooled(norm=norm), head, project), init="bert")


def layers(
    c: FamilyConfig, norm: Norm, *, width: int, inner: int, heads: int, causal: bool, final: Norm | None
) -> Stack:
    """The layers of a tower; the arguments are the config class's defaults."""
    c.skip("declared once, never used", "dropout")
    width, inner = c.size("hidden_size", width), c.size("intermediate_size", inner)
    mixer = Attention(heads=c.size("num_attention_heads", heads), dropout=c.get("attention_dropout", 0.0))
    feed = MLP(width=None if inner == 4 * width else inner, act=c.act("hidden_act", "quick_gelu"))
    depth = c.count("num_hidden_layers", 12)
    return Stack(width=width, depth=depth, causal=causal, block=Block(mixer=mixer, feed=feed, norm=norm), final=final)


def projected(pooled: Pooled, head: str, width: int) -> Pooled:
    return pooled if head == BARE else pooled.replace(dense=width, bias=False)


def config(spec: Model, head: str) -> dict[str, Any]:
    """A spec as a tower's config.json."""
    embed, stack, first, pooled = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0], spec.head
    assert isinstance(first.mixer, Attention) and isinstance(first.feed, MLP) and isinstance(first.norm, LayerNorm)
    assert isinstance(pooled, Pooled)
    made: dict[str, Any] = {
        "hidden_size": stack.width, "num_hidden_layers": stack.depth, "num_attention_heads": first.mixer.heads,
        "intermediate_size": first.feed.width or 4 * stack.width, "hidden_act": THEIR_ACTS[first.feed.act],
        "layer_norm_eps": first.norm.eps, "attention_dropout": first.mixer.dropout,
    }  # fmt: skip
    if head == PROJECT:
        made["projection_dim"] = stack.width if pooled.dense is True else pooled.dense
    if isinstance(embed, Tokens):
        assert isinstance(embed.position, Learned)
        return made | {
            "vocab_size": embed.vocab, "max_position_embeddings": embed.position.length,
            "eos_token_id": HIGHEST if pooled.token is None else pooled.token,
        }  # fmt: skip
    assert isinstance(embed, Patches)
    return made | {"image_size": embed.size, "patch_size": embed.patch, "num_channels": embed.channels}


LAYERS = (
    ("stack.blocks.{i}.around_mixer.before", "encoder.layers.{i}.layer_norm1"),
    ("stack.blocks.{i}.mixer.qkv", tuple(f"encoder.layers.{{i}}.self_attn.{part}_proj" for part in "qkv"), QKV),
    ("stack.blocks.{i}.mixer.out", "encoder.layers.{i}.self_attn.out_proj"),
    ("stack.blocks.{i}.around_feed.before", "encoder.layers.{i}.layer_norm2"),
    ("stack.blocks.{i}.feed.up", "encoder.layers.{i}.mlp.fc1"),
    ("stack.blocks.{i}.feed.down", "encoder.layers.{i}.mlp.fc2"),
)
WORDS = (
    ("embed.table", "embeddings.token_embedding"),
    ("embed.position.table", "embeddings.position_embedding"),
    ("stack.final", "final_layer_norm"),
)
PIXELS = (
    ("embed.patch", "embeddings.patch_embedding", PATCH),
    ("embed.lead", "embeddings.class_embedding", Leading(1)),
    ("embed.position.table", "embeddings.position_embedding"),
    ("embed.norm", "pre_layrnorm"),
    ("head.norm", "post_layernorm"),
)


def text_table(spec: Model, head: str) -> tuple[Row, ...]:
    """One row per module; the tower is under a prefix, unlike its projection."""
    if head == BARE:
        return rows(*LAYERS, *WORDS)
    return rows(*under("text_model.", LAYERS + WORDS), ("head.dense", "text_projection"))


def vision_table(spec: Model, head: str) -> tuple[Row, ...]:
    """The same for images."""
    if head == BARE:
        return rows(*LAYERS, *PIXELS)
    return rows(*under("vision_model.", LAYERS + PIXELS), ("head.dense", "visual_projection"))


# ---------------------------------------------------------------- a folder with both towers


def whole(c: FamilyConfig, head: str) -> Model | Towers:
    """A whole CLIP's config.json as a spec, or one tower of it with its projection."""
    c.skip("older copies of text_config and vision_config", "text_config_dict", "vision_config_dict")
    if head != WHOLE:
        c.skip("the other tower, or of both towers together", "text_config", "vision_config", "logit_scale_init_value")
        return tower(c, head)
    start = c.get("logit_scale_init_value", 2.6592)
    return Towers(first=tower(c, TEXT), second=tower(c, VISION), log_scale=start, init="bert")


def tower(c: FamilyConfig, head: str) -> Model:
    """One tower, by its section of the whole config."""
    shared = c.size("projection_dim", 512)
    name = f"{head}_config"
    older = c.data.get(f"{name}_dict")
    c.read.add(name)
    given = (c.data.get(name) if older is None else older) or {}
    if not isinstance(given, dict):
        raise UserError(f"{name} is not an object", where=c.where, fix="copy the file again")
    part = FamilyConfig(given, f"{c.where} {name}", c.tensors)
    part.skip("said by the whole", "projection_dim")
    spec = (text if head == TEXT else vision)(part, PROJECT, shared)
    c.data |= {f"{name}.{field}": part.data[field] for field in part.unread()}  # unread, to be reported
    return spec


def whole_config(spec: Towers, head: str) -> dict[str, Any]:
    """Two towers as a whole CLIP's config.json."""
    if head != WHOLE:
        raise UserError("one tower is not a whole CLIP", fix="it is written as a tower of its own")
    parts = {"text_config": config(spec.first, PROJECT), "vision_config": config(spec.second, PROJECT)}
    shared = parts["text_config"]["projection_dim"]
    assert isinstance(spec.first.embed, Tokens) and isinstance(spec.second.embed, Patches)
    return {**parts, "projection_dim": shared, "logit_scale_init_value": spec.log_scale}


def whole_table(spec: Any, head: str) -> tuple[Row, ...]:
    if head != WHOLE:
        return (text_table if head == TEXT else vision_table)(spec, PROJECT)
    sides = (("first", text_table), ("second", vision_table))
    both = [replace(row, ours=f"{side}.{row.ours}") for side, table in sides for row in table(spec, PROJECT)]
    return (*both, Row("scale", "logit_scale"))


def patterns(*tables: tuple[Row, ...]) -> tuple[str, ...]:
    """Regular expressions that match the family's names in some tables."""
    names = [name for table in tables for row in table for name in row.names]
    return tuple(re.escape(name).replace(r"\{i\}", r"\d+") + r"(\.weight|\.bias)?" for name in names)


# A placeholder spec for tables whose names do not depend on it.
ANY: Any = None
POSITION_IDS = r"((text|vision)_model\.)?embeddings\.position_ids"

FAMILIES = (
    Family(
        model_type="clip",
        heads={"CLIPModel": WHOLE, "CLIPTextModelWithProjection": TEXT, "CLIPVisionModelWithProjection": VISION},
        settings=whole, config=whole_config, table=whole_table, buffers=(POSITION_IDS,),
        spare=dict.fromkeys(
            (TEXT, VISION), (*patterns(text_table(ANY, PROJECT), vision_table(ANY, PROJECT)), "logit_scale")
        ),
    ),
    Family(
        model_type="clip_text_model", heads={"CLIPTextModel": BARE, "CLIPTextModelWithProjection": PROJECT},
        settings=text, config=config, table=text_table, prefix="text_model.", buffers=(POSITION_IDS,),
    ),
    Family(
        model_type="clip_vision_model", heads={"CLIPVisionModel": BARE, "CLIPVisionModelWithProjection": PROJECT},
        settings=vision, config=config, table=vision_table, prefix="vision_model.", buffers=(POSITION_IDS,),
    ),
)  # fmt: skip
