"""Cases of BERT."""

from typing import Any

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
)

from tests.families.encoders import check_layers, encoder_case
from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, segments: bool = True, **settings: Any) -> Case:
    return encoder_case(name, kind, BertConfig(**{**SMALL, **settings}), pad=pad, length=length, segments=segments)


CASES = [
    case("bare", BertModel, num_hidden_layers=5),
    case("bare, right, relu, one kind", BertModel, "right", hidden_act="relu", type_vocab_size=1),
    case("bare, full length, five kinds, silu", BertModel, "none", 32, hidden_act="silu", type_vocab_size=5),
    case("bare, one token, no kinds given", BertModel, "none", 1, False, num_hidden_layers=1),
    case("bare, causal", BertModel, is_decoder=True),
    case("masked", BertForMaskedLM),
    case("masked, right, gelu_new, eps", BertForMaskedLM, "right", hidden_act="gelu_new", layer_norm_eps=1e-3),
    case("masked, another name for gelu", BertForMaskedLM, hidden_act="gelu_pytorch_tanh"),
    case("masked, untied, wide feed", BertForMaskedLM, tie_word_embeddings=False, intermediate_size=96),
    case("lm, causal", BertLMHeadModel, is_decoder=True),
    case("lm, causal, untied", BertLMHeadModel, "right", is_decoder=True, tie_word_embeddings=False),
    case("classify", BertForSequenceClassification, "right", num_labels=5, classifier_dropout=0.3),
    case("classify, one label", BertForSequenceClassification, "none", num_labels=1),
    case("tag", BertForTokenClassification, num_labels=4),
    case("span", BertForQuestionAnswering, "right", 17),
]
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
FAMILY = FamilyCases(
    configs=(BertConfig,),
    cases=CASES,
    checks={
        check_layers: [CASES[0], CASES[1], CASES[2], CASES[6], CASES[9]],
        check_maps: [CASES[5], CASES[9], CASES[11]],
    },
    presets={
        "bert-base": lambda: BertModel(BertConfig()),
        "bert-large": lambda: BertModel(BertConfig(**LARGE)),
    },
)
