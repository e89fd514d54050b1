"""Families: the public checkpoint formats that can be imported and exported, each described as data."""

from __future__ import annotations

from anyformer.families import (
    albert,
    bart,
    bert,
    bloom,
    clip,
    deit,
    detr,
    distilbert,
    electra,
    gpt2,
    gpt_neox,
    llama,
    marian,
    mixtral,
    roberta,
    t5,
    timm_vit,
    visual_bert,
    vit,
)
from anyformer.families.family import Family

MODULES = (
    albert, bart, bert, bloom, clip, deit, detr, distilbert, electra, gpt2, gpt_neox, llama, marian, mixtral, roberta,
    t5, visual_bert, vit, timm_vit,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.model_type: family for module in MODULES for family in module.FAMILIES}

__all__ = ["FAMILIES", "Family"]
