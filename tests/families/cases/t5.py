"""Cases of T5."""

from typing import Any

from transformers import (
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForQuestionAnswering,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    T5Model,
)

from tests.families.family import FamilyCases
from tests.families.parity import (
    Case,
    check_maps,
    text_case,
)
from tests.families.passes import check_hidden, check_pair_maps, check_pair_steps, pair_case

SMALL = {
    "d_model": 24, "d_kv": 5, "d_ff": 37, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 50,
    "decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
}  # fmt: skip
NEWER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def case(name: str, kind: type, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    # Their norm takes the variance in float32, hence the bound in float64.
    return pair_case(name, kind, T5Config(**{**SMALL, **(settings or {})}), float64=1e-6, **options)


def alone(name: str, kind: type, pad: str = "left", **settings: Any) -> Case:
    return text_case(name, kind, T5Config(**{**SMALL, **settings}), pad=pad, float64=1e-6)


CASES = [
    case("bare", T5Model),
    case("bare, source left, target padded", T5Model, pad="left", target_pad=True),
    case("lm", T5ForConditionalGeneration),
    case("lm, source left, long", T5ForConditionalGeneration, pad="left", source=40, target=31),
    case("lm, newer", T5ForConditionalGeneration, NEWER, pad="left"),
    case("lm, gated silu, more decoder", T5ForConditionalGeneration,
         {"feed_forward_proj": "gated-silu", "num_decoder_layers": 5, "num_layers": 1, "layer_norm_epsilon": 1e-3}),
    case("lm, exact gelu, heads of the width, feed of four", T5ForConditionalGeneration,
         {"feed_forward_proj": "gelu", "d_kv": 6, "d_ff": 96, "num_decoder_layers": None}),
    case("lm, odd buckets", T5ForConditionalGeneration, {"relative_attention_num_buckets": 11}, source=30, target=20),
    case("classify", T5ForSequenceClassification, {"num_labels": 5}, shifted=True),
    case("span", T5ForQuestionAnswering, shifted=True),
    alone("encoder", T5EncoderModel),
    alone("encoder, newer, right", T5EncoderModel, pad="right", **NEWER),
    alone("tag", T5ForTokenClassification, num_labels=4),
]  # fmt: skip
BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
FAMILY = FamilyCases(
    configs=(T5Config,),
    cases=CASES,
    checks={
        check_pair_maps: [case("maps", T5ForConditionalGeneration, pad="left", target_pad=True)],
        check_maps: [alone("encoder", T5EncoderModel)],
        check_hidden: [CASES[1], CASES[4], CASES[10]],
        check_pair_steps: [CASES[0], CASES[3], CASES[4]],
    },
    presets={
        "t5-small": lambda: T5ForConditionalGeneration(T5Config()),
        "t5-base": lambda: T5ForConditionalGeneration(T5Config(**BASE)),
    },
)
