"""Cases of Mixtral."""

from __future__ import annotations

from typing import Any

from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    MixtralForQuestionAnswering,
    MixtralForSequenceClassification,
    MixtralForTokenClassification,
    MixtralModel,
)

from tests.families.family import FamilyCases
from tests.families.parity import (
    Case,
    check_maps,
    text_case,
)
from tests.families.passes import check_hidden, check_steps

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20, "vocab_size": 50, "num_local_experts": 4,
}  # fmt: skip


def case(name: str, kind: type = MixtralForCausalLM, pad: str = "left", **settings: Any) -> Case:
    # Their RMSNorm and router cast to float32 inside, hence the bound in float64.
    made = MixtralConfig(**{**SMALL, **settings})
    made._experts_implementation = "eager"  # their grouped product has no float64
    return text_case(f"Mixtral {name}", kind, made, pad=pad, positions=True, float64=1e-6)


CASES = [
    case("lm"),
    case("bare", MixtralModel),
    case("lm, right padding, all kv heads, odd head size", pad="right", num_key_value_heads=4, head_dim=6),
    case("window, three of five experts, tied, gelu", sliding_window=5, num_local_experts=5, num_experts_per_tok=3,
         tie_word_embeddings=True, hidden_act="gelu"),
    case("one expert of three", num_local_experts=3, num_experts_per_tok=1, router_aux_loss_coef=0.02),
    case("all experts", num_local_experts=2, num_experts_per_tok=2, rms_norm_eps=1e-3),
    case("linear rope", rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}),
    case("classify", MixtralForSequenceClassification, num_labels=3, pad_token_id=0),
    case("tag", MixtralForTokenClassification, num_labels=3),
    case("span", MixtralForQuestionAnswering),
]  # fmt: skip
FAMILY = FamilyCases(
    configs=(MixtralConfig,),
    cases=CASES,
    checks={
        check_maps: [CASES[0], CASES[3]],
        check_hidden: [CASES[0], CASES[3]],
        check_steps: [CASES[0], CASES[3]],
    },
)
