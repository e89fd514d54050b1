"""Cases of BART."""

from typing import Any

from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
)

from tests.families.family import FamilyCases
from tests.families.parity import Case
from tests.families.passes import check_hidden, check_pair_maps, check_pair_steps, pair_case

SMALL = {
    "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37, "decoder_ffn_dim": 20, "vocab_size": 50, "max_position_embeddings": 48,
}  # fmt: skip


def case(name: str, kind: type, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    # Their positions count padding and cannot be given, so padding on the left is compared with theirs on the right.
    return pair_case(name, kind, BartConfig(**{**SMALL, **(settings or {})}), theirs_pad="right", **options)


CASES = [
    case("bare", BartModel),
    case("bare, source left, target padded", BartModel, pad="left", target_pad=True),
    case("lm", BartForConditionalGeneration),
    case("lm, source left, long", BartForConditionalGeneration, pad="left", source=40, target=31),
    case("lm, scaled, relu, one and five layers", BartForConditionalGeneration,
         {"scale_embedding": True, "activation_function": "relu", "encoder_layers": 1, "decoder_layers": 5,
          "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}),
    case("classify", BartForSequenceClassification, {"num_labels": 5}, shifted=True),
    case("classify, default labels", BartForSequenceClassification, shifted=True, source=12),
    case("span", BartForQuestionAnswering, shifted=True),
]  # fmt: skip
BASE = BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                  decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)  # fmt: skip
FAMILY = FamilyCases(
    configs=(BartConfig,),
    cases=CASES,
    checks={
        check_pair_maps: [case("maps", BartForConditionalGeneration, target_pad=True)],
        check_hidden: CASES[1:3],
        check_pair_steps: [CASES[0], CASES[3]],
    },
    presets={"bart-base": lambda: BartModel(BASE)},
)
