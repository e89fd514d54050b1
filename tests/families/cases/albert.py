"""Cases of ALBERT."""

from functools import partial
from typing import Any

from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)

from tests.families.encoders import check_layers, encoder_case
from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32, "embedding_size": 10,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, segments: bool = True, **settings: Any) -> Case:
    return encoder_case(name, kind, AlbertConfig(**{**SMALL, **settings}), pad=pad, length=length, segments=segments)


CASES = [
    case("bare, five layers, two groups", AlbertModel, "right", num_hidden_layers=5, num_hidden_groups=2),
    case("masked, three groups", AlbertForMaskedLM, num_hidden_layers=7, num_hidden_groups=3),
    case("bare, a group a layer, no narrowing", AlbertModel, num_hidden_groups=3, embedding_size=24),
    case("bare, full length, relu, one kind", AlbertModel, "none", 32, False, hidden_act="relu", type_vocab_size=1),
    case("masked, untied, silu, eps", AlbertForMaskedLM, "right", tie_word_embeddings=False, hidden_act="silu",
         layer_norm_eps=1e-3),
    case("masked, gelu, wider embedding", AlbertForMaskedLM, hidden_act="gelu", embedding_size=30,
         intermediate_size=96),
    case("classify", AlbertForSequenceClassification, "right", num_labels=5, classifier_dropout_prob=0.3),
    case("tag", AlbertForTokenClassification, num_labels=4, num_hidden_groups=3),
    case("span", AlbertForQuestionAnswering, "right", 17),
]  # fmt: skip
SIZES = {  # width, layers, heads
    "albert-base": (768, 12, 12),
    "albert-large": (1024, 24, 16),
    "albert-xlarge": (2048, 24, 16),
    "albert-xxlarge": (4096, 12, 64),
}


def published(width: int, depth: int, heads: int) -> AlbertModel:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    return AlbertModel(AlbertConfig(**sizes, intermediate_size=4 * width))


FAMILY = FamilyCases(
    configs=(AlbertConfig,),
    cases=CASES,
    checks={check_layers: CASES[:4], check_maps: CASES[:2]},
    presets={name: partial(published, *sizes) for name, sizes in SIZES.items()},
)
