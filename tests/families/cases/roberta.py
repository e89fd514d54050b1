"""Cases of RoBERTa."""

from typing import Any

from transformers import (
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

from tests.families.encoders import check_layers, encoder_case
from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, segments: bool = True, **settings: Any) -> Case:
    config = RobertaConfig(**{**SMALL, **settings})
    return encoder_case(name, kind, config, pad=pad, length=length, segments=segments, counted=True)


CASES = [
    case("bare, five layers, padding token 4", RobertaModel, "right", num_hidden_layers=5, pad_token_id=4),
    case("masked, relu, three kinds", RobertaForMaskedLM, hidden_act="relu", type_vocab_size=3),
    case("bare, full length, one kind", RobertaModel, "none", 30, False, type_vocab_size=1, layer_norm_eps=1e-5),
    case("masked, right, silu", RobertaForMaskedLM, "right", 7, hidden_act="silu", intermediate_size=96),
    case("masked, untied, padding token 0", RobertaForMaskedLM, tie_word_embeddings=False, pad_token_id=0),
    case("lm, causal", RobertaForCausalLM, is_decoder=True, hidden_act="gelu_new"),
    case("classify", RobertaForSequenceClassification, "right", num_labels=5, classifier_dropout=0.3),
    case("tag", RobertaForTokenClassification, num_labels=4),
    case("span", RobertaForQuestionAnswering, "right", 17),
]
BASE = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}  # of the published weights
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
FAMILY = FamilyCases(
    configs=(RobertaConfig,),
    cases=CASES,
    checks={check_layers: CASES[:3], check_maps: CASES[:2]},
    presets={
        "roberta-base": lambda: RobertaModel(RobertaConfig(**BASE)),
        "roberta-large": lambda: RobertaModel(RobertaConfig(**BASE, **LARGE)),
    },
)
