"""Cases of ELECTRA."""

from typing import Any

from transformers import (
    ElectraConfig,
    ElectraForCausalLM,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
)

from tests.families.encoders import check_layers, encoder_case
from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32, "embedding_size": 10,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, segments: bool = True, **settings: Any) -> Case:
    return encoder_case(name, kind, ElectraConfig(**{**SMALL, **settings}), pad=pad, length=length, segments=segments)


CASES = [
    case("bare, five layers", ElectraModel, num_hidden_layers=5),
    case("generator, right, relu", ElectraForMaskedLM, "right", hidden_act="relu"),
    case("bare, full length, not narrower, one kind", ElectraModel, "none", 32, False, embedding_size=24,
         type_vocab_size=1),
    case("generator, untied, not narrower", ElectraForMaskedLM, tie_word_embeddings=False, embedding_size=24,
         layer_norm_eps=1e-3),
    case("generator, untied", ElectraForMaskedLM, "right", tie_word_embeddings=False, intermediate_size=96),
    case("generator, causal", ElectraForCausalLM, is_decoder=True),
    case("discriminator", ElectraForPreTraining),
    case("discriminator, right, silu", ElectraForPreTraining, "right", 7, hidden_act="silu", embedding_size=30),
    case("classify", ElectraForSequenceClassification, "right", num_labels=5, classifier_dropout=0.3),
    case("tag", ElectraForTokenClassification, num_labels=4, hidden_act="gelu_new"),
    case("span", ElectraForQuestionAnswering, "right", 17),
]  # fmt: skip
FAMILY = FamilyCases(
    configs=(ElectraConfig,),
    cases=CASES,
    checks={check_layers: CASES[:3], check_maps: CASES[:2]},
    presets={"electra-small": lambda: ElectraModel(ElectraConfig())},
)
