"""Cases of DistilBERT."""

from typing import Any

from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
)

from tests.families.encoders import check_layers, encoder_case
from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps

SMALL = {"dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 37, "vocab_size": 50, "max_position_embeddings": 32}


def case(name: str, kind: type, pad: str = "left", length: int = 11, **settings: Any) -> Case:
    return encoder_case(name, kind, DistilBertConfig(**{**SMALL, **settings}), pad=pad, length=length, segments=False)


CASES = [
    case("bare, five layers", DistilBertModel, n_layers=5),
    case("masked, right, relu", DistilBertForMaskedLM, "right", activation="relu"),
    case("bare, full length, silu, sinusoidal start", DistilBertModel, "none", 32, activation="silu",
         sinusoidal_pos_embds=True),
    case("masked, untied, wide feed", DistilBertForMaskedLM, tie_word_embeddings=False, hidden_dim=96),
    case("masked, one token", DistilBertForMaskedLM, "none", 1, activation="gelu_new"),
    case("classify", DistilBertForSequenceClassification, "right", num_labels=5, seq_classif_dropout=0.3),
    case("tag", DistilBertForTokenClassification, num_labels=4, dropout=0.2),
    case("span", DistilBertForQuestionAnswering, "right", 17, qa_dropout=0.3),
]  # fmt: skip
FAMILY = FamilyCases(
    configs=(DistilBertConfig,),
    cases=CASES,
    checks={check_layers: CASES[:3], check_maps: CASES[:2]},
    presets={"distilbert": lambda: DistilBertModel(DistilBertConfig())},
)
