"""VisualBERT (1908.03557): BERT over text tokens and precomputed feature vectors of image regions."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyformer.core.model import Model
from anyformer.embeds.joint import Joint
from anyformer.embeds.regions import Regions
from anyformer.embeds.tokens import Tokens
from anyformer.families import bert
from anyformer.families.bert import Entries, Kind, Scorer, tied
from anyformer.families.config import FamilyConfig
from anyformer.families.family import BARE, CLASSIFY, PRETRAINING, Family

EMBED: Entries = (
    ("embed.parts.0.table", "embeddings.word_embeddings"),
    ("embed.parts.0.position.table", "embeddings.position_embeddings"),
    ("embed.parts.0.segment", "embeddings.token_type_embeddings"),
    ("embed.parts.1.project", "embeddings.visual_projection"),
    ("embed.parts.1.position", "embeddings.visual_position_embeddings"),
    ("embed.parts.1.segment", "embeddings.visual_token_type_embeddings"),
    ("embed.norm", "embeddings.LayerNorm"),
)
VISUAL_BERT = Kind(
    model_type="visual_bert",
    title="VisualBert",
    scorer=Scorer(
        dense="cls.predictions.transform.dense", norm="cls.predictions.transform.LayerNorm",
        last="cls.predictions.decoder", bias="cls.predictions.bias",
    ),
    embed=EMBED,
    heads={CLASSIFY: (("head.out", "cls"),), PRETRAINING: (("head.pair.out", "cls.seq_relationship"),)},
    pooler="pooler.dense",
    pooled=True,
    dropouts={CLASSIFY: "hidden_dropout_prob"},
)  # fmt: skip


def settings(c: FamilyConfig, head: str) -> Model:
    """BERT's settings, with regions after the text and one norm over both."""
    c.only("bypass_transformer", False)
    c.skip("only says how a new model starts", "special_visual_initialize")
    text = bert.settings(c, head, VISUAL_BERT)
    embed = text.embed
    assert isinstance(embed, Tokens) and embed.limit is not None
    regions = Regions(features=c.size("visual_embedding_dim", 512), positions=embed.limit, segments=embed.segments)
    parts = (embed.replace(norm=None, dropout=0.0), regions)
    return text.replace(embed=Joint(parts=parts, kinds=False, norm=embed.norm, dropout=embed.dropout))


def config(spec: Model, head: str) -> dict[str, Any]:
    embed = spec.embed
    assert isinstance(embed, Joint) and len(embed.parts) == 2
    text, regions = embed.parts
    assert isinstance(text, Tokens) and isinstance(regions, Regions)
    alone = spec.replace(embed=text.replace(norm=embed.norm, dropout=embed.dropout))
    return bert.config(alone, head, VISUAL_BERT) | {"visual_embedding_dim": regions.features}


FAMILIES = (
    Family(
        model_type=VISUAL_BERT.model_type,
        heads={
            "VisualBertModel": BARE, "VisualBertForPreTraining": PRETRAINING, "VisualBertForVisualReasoning": CLASSIFY,
        },
        settings=settings, config=config, table=partial(bert.table, kind=VISUAL_BERT), prefix=VISUAL_BERT.prefix,
        buffers=(r"(.*\.)?embeddings\.position_ids",), tied=partial(tied, kind=VISUAL_BERT), pooled=True,
        spare=(r"cls\..*",),
    ),
)  # fmt: skip
