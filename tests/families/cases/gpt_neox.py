"""Cases of GPT-NeoX."""

from typing import Any

from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GPTNeoXForQuestionAnswering,
    GPTNeoXForSequenceClassification,
    GPTNeoXForTokenClassification,
    GPTNeoXModel,
)

from tests.families.family import FamilyCases
from tests.families.parity import (
    Case,
    check_maps,
    text_case,
)
from tests.families.passes import check_hidden, check_steps

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, **settings: Any) -> Case:
    # Their rotary angles are float32, hence the bound in float64.
    config = GPTNeoXConfig(**{**SMALL, **settings})
    return text_case(name, kind, config, pad=pad, length=length, positions=True, float64=1e-6)


def scaled(kind: str, share: float = 0.5, **given: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, "partial_rotary_factor": share, **given}}


CASES = [
    case("bare", GPTNeoXModel),
    case("lm", GPTNeoXForCausalLM),
    case("lm, right padding, long", GPTNeoXForCausalLM, pad="right", length=60),
    case("lm, serial, tied, tanh gelu", GPTNeoXForCausalLM, use_parallel_residual=False, tie_word_embeddings=True,
         hidden_act="gelu_new", intermediate_size=128),
    case("lm, no biases, all channels turn", GPTNeoXForCausalLM, attention_bias=False, layer_norm_eps=1e-3,
         **scaled("default", 1.0)),
    case("lm, one channel turns", GPTNeoXForCausalLM, hidden_size=24),
    case("lm, a share that is cut", GPTNeoXForCausalLM, hidden_size=40, **scaled("default", 0.49)),
    case("lm, linear", GPTNeoXForCausalLM, **scaled("linear", factor=4.0)),
    case("lm, dynamic, beyond", GPTNeoXForCausalLM, pad="right", max_position_embeddings=8,
         **scaled("dynamic", factor=2.0)),
    case("lm, yarn", GPTNeoXForCausalLM, **scaled("yarn", factor=4.0, original_max_position_embeddings=16)),
    case("classify", GPTNeoXForSequenceClassification, num_labels=5, pad_token_id=0),
    case("tag", GPTNeoXForTokenClassification, num_labels=4),
    case("span", GPTNeoXForQuestionAnswering),
]  # fmt: skip
FAMILY = FamilyCases(
    configs=(GPTNeoXConfig,),
    cases=CASES,
    checks={
        check_maps: [
            case("maps", GPTNeoXForCausalLM),
            case("maps, serial", GPTNeoXForCausalLM, use_parallel_residual=False),
        ],
        check_hidden: [case("hidden", GPTNeoXForCausalLM)],
        check_steps: [CASES[1], CASES[3]],
    },
)
