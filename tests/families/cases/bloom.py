"""Cases of BLOOM."""

from typing import Any

from transformers import (
    BloomConfig,
    BloomForCausalLM,
    BloomForQuestionAnswering,
    BloomForSequenceClassification,
    BloomForTokenClassification,
    BloomModel,
)

from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps, text_case
from tests.families.passes import check_hidden, check_steps

SMALL = {"hidden_size": 24, "n_layer": 3, "n_head": 4, "vocab_size": 50}


def case(name: str, kind: type, pad: str = "left", length: int = 11, **settings: Any) -> Case:
    # Their slopes and softmax are float32, hence the bound in float64; the mask overflows float32 there, so that rows
    # with nothing to see, before which padding stands, are nan in float64 and spoil all others in the next layer.
    config = BloomConfig(**{**SMALL, **settings})
    return text_case(name, kind, config, pad=pad, length=length, float64=None if pad == "left" else 1e-6)


CASES = [
    case("bare", BloomModel, pad="right"),
    case("lm", BloomForCausalLM),
    case("lm, right padding, long", BloomForCausalLM, pad="right", length=60),
    case("lm, six heads, five layers, untied", BloomForCausalLM, pad="right", n_head=6, n_layer=5,
         tie_word_embeddings=False),
    case("lm, three heads, other eps", BloomForCausalLM, pad="none", n_head=3, layer_norm_epsilon=1e-3),
    case("lm, one head, sums in parts", BloomForCausalLM, n_head=1, pretraining_tp=2),
    case("classify", BloomForSequenceClassification, num_labels=5, pad_token_id=0),
    case("tag", BloomForTokenClassification, pad="right", num_labels=4),
    case("span", BloomForQuestionAnswering, pad="right"),
]  # fmt: skip
FAMILY = FamilyCases(
    configs=(BloomConfig,),
    cases=CASES,
    checks={
        check_maps: [case("maps", BloomForCausalLM, n_head=6)],
        check_hidden: [case("hidden", BloomForCausalLM)],
        check_steps: [CASES[1], CASES[3]],
    },
    presets={"bloom-560m": lambda: BloomForCausalLM(BloomConfig(hidden_size=1024, n_layer=24, n_head=16))},
)
