"""Cases of Llama, Mistral, Qwen2, Qwen3 and Arcee."""

from typing import Any

from transformers import (
    ArceeConfig,
    ArceeForCausalLM,
    ArceeForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps, text_case
from tests.families.passes import check_hidden, check_steps

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 44,
    "vocab_size": 50,
}  # fmt: skip
KINDS = {LlamaConfig: "Llama", MistralConfig: "Mistral", Qwen2Config: "Qwen2", Qwen3Config: "Qwen3",
         ArceeConfig: "Arcee"}  # fmt: skip


def case(name: str, kind: type, config: type = LlamaConfig, pad: str = "left", **settings: Any) -> Case:
    # Their RMSNorm casts to float32 inside, hence the bound in float64.
    made = config(**{**SMALL, **settings})
    return text_case(f"{KINDS[config]} {name}", kind, made, pad=pad, positions=True, float64=1e-6)


def scaled(kind: str, **given: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **given}}


CASES = [
    case("bare", LlamaModel),
    case("lm", LlamaForCausalLM),
    case("lm, right padding", LlamaForCausalLM, pad="right"),
    case("one kv head, odd head size, biases, tied", LlamaForCausalLM, num_key_value_heads=1, head_dim=10,
         attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    case("all kv heads, gelu", LlamaForCausalLM, num_key_value_heads=4, hidden_act="gelu", rms_norm_eps=1e-3),
    case("linear", LlamaForCausalLM, **scaled("linear", factor=4.0)),
    case("dynamic, within", LlamaForCausalLM, max_position_embeddings=32, **scaled("dynamic", factor=2.0)),
    case("dynamic, beyond", LlamaForCausalLM, max_position_embeddings=8, pad="right", **scaled("dynamic", factor=2.0)),
    case("yarn", LlamaForCausalLM, **scaled("yarn", factor=4.0, original_max_position_embeddings=16)),
    case("yarn, all options", LlamaForCausalLM, **scaled("yarn", factor=4.0, original_max_position_embeddings=16,
         beta_fast=16.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=0.5, truncate=False)),
    case("yarn, attention factor", LlamaForCausalLM,
         **scaled("yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.3)),
    case("llama3", LlamaForCausalLM, **scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_max_position_embeddings=16)),
    case("classify", LlamaForSequenceClassification, num_labels=3, pad_token_id=0),
    case("tag", LlamaForTokenClassification, num_labels=3),
    case("span", LlamaForQuestionAnswering),
    case("window", MistralForCausalLM, MistralConfig, sliding_window=5),
    case("no window", MistralForCausalLM, MistralConfig, sliding_window=None, head_dim=6),
    case("lm", Qwen2ForCausalLM, Qwen2Config),
    case("some windows", Qwen2ForCausalLM, Qwen2Config, num_hidden_layers=5, use_sliding_window=True,
         sliding_window=4, max_window_layers=3),
    case("lm", Qwen3ForCausalLM, Qwen3Config, head_dim=16),
    case("biases, tied, windows", Qwen3ForCausalLM, Qwen3Config, head_dim=8, attention_bias=True,
         tie_word_embeddings=True, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    case("lm", ArceeForCausalLM, ArceeConfig),
    case("biases, tied, gelu", ArceeForCausalLM, ArceeConfig, attention_bias=True, mlp_bias=True,
         tie_word_embeddings=True, hidden_act="gelu_new", num_key_value_heads=4),
    case("classify", ArceeForSequenceClassification, ArceeConfig, num_labels=3, pad_token_id=0),
]  # fmt: skip
STEPPED = [CASES[i] for i in (0, 1, 3, 8, 15, 18, 20, 21, 22)]
FAMILY = FamilyCases(
    configs=tuple(KINDS),
    cases=CASES,
    round_trips=[case for case in CASES if "yarn, all" not in case.name],
    checks={
        check_maps: [CASES[1], CASES[3], CASES[15], CASES[18], CASES[20], CASES[22]],
        check_hidden: STEPPED,
        check_steps: [case for case in STEPPED if "lm" in case.name or "window" in case.name],
    },
)
