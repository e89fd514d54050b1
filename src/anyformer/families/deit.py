"""DeiT (2012.12877): ViT with a distillation token."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import LEADING
from anyformer.core.model import Model
from anyformer.families import vit
from anyformer.families.config import FamilyConfig
from anyformer.families.family import BARE, BODY, CLASSIFY, Family
from anyformer.heads import Distilled

DISTILLED = "distilled"


def settings(c: FamilyConfig, head: str) -> Model:
    """DeiT's config.json as a spec."""
    answer = Distilled(classes=c.labels()) if head == DISTILLED else vit.answer(c, head)
    c.skip("of another head", "pooler_output_size", "pooler_act")
    return vit.encoder(c, vit.patches(c, distill=True), answer)


LEAD = (("embed.lead", ("embeddings.cls_token", "embeddings.distillation_token"), LEADING),)
HEADS: dict[str, tuple[tuple[Any, ...], ...]] = {
    **vit.HEADS,
    DISTILLED: (("head.out", "cls_classifier"), ("head.distill", "distillation_classifier")),
}


def table(spec: Model, head: str) -> tuple[Row, ...]:
    """ViT's rows with one more token, and the two classifiers."""
    prefix = "" if head in (BARE, BODY) else "deit."
    return rows(*vit.under(prefix, vit.LAYERS + LEAD), *HEADS[head])


FAMILIES = (
    Family(
        model_type="deit",
        heads={
            "DeiTModel": BARE, "DeiTForImageClassification": CLASSIFY,
            "DeiTForImageClassificationWithTeacher": DISTILLED,
        },
        settings=settings, config=vit.config, table=table, prefix="deit.", pooled=True, modules=vit.MODULES,
        spare=(r"(deit\.)?embeddings\.mask_token", r"(deit\.)?pooler\.dense\.(weight|bias)"),
    ),
)  # fmt: skip
