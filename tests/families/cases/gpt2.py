"""Cases of GPT-2."""

from transformers import (
    GPT2Config,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)

from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps, text_case
from tests.families.passes import check_hidden, check_steps

SMALL = {"n_embd": 24, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 32}


def case(name: str, kind: type, pad: str = "left", **settings: object) -> Case:
    return text_case(name, kind, GPT2Config(**{**SMALL, **settings}), pad=pad, positions=True)


CASES = [
    case("bare", GPT2Model),
    case("lm", GPT2LMHeadModel),
    case("lm, right padding", GPT2LMHeadModel, pad="right"),
    case("lm, untied, odd feed", GPT2LMHeadModel, tie_word_embeddings=False, n_inner=37, activation_function="relu"),
    case("lm, scores by layer", GPT2LMHeadModel, scale_attn_by_inverse_layer_idx=True),
    case("bare, no scale", GPT2Model, scale_attn_weights=False),
    case("classify", GPT2ForSequenceClassification, num_labels=5, pad_token_id=0),
    case("tag", GPT2ForTokenClassification, num_labels=4),
    case("span", GPT2ForQuestionAnswering),
]
FAMILY = FamilyCases(
    configs=(GPT2Config,),
    cases=CASES,
    checks={check_maps: [case("maps", GPT2LMHeadModel)], check_hidden: CASES[:5], check_steps: CASES[1:5]},
)
