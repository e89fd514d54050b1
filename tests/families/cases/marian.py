"""Cases of Marian."""

from typing import Any

from transformers import MarianConfig, MarianModel, MarianMTModel

from tests.families.family import FamilyCases
from tests.families.parity import Case
from tests.families.passes import check_hidden, check_pair_maps, check_pair_steps, pair_case

SMALL = {
    "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37, "decoder_ffn_dim": 20, "vocab_size": 50, "max_position_embeddings": 600, "pad_token_id": 3,
    "decoder_start_token_id": 3, "scale_embedding": True, "activation_function": "swish",
}  # fmt: skip
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 44}


def case(name: str, kind: type, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    # Their positions count padding and cannot be given, so padding on the left is compared with theirs on the right;
    # their sinusoids are rounded to float32, hence the bound in float64.
    config = MarianConfig(**{**SMALL, **(settings or {})})
    return pair_case(name, kind, config, theirs_pad="right", float64=1e-6, target_vocab=44, **options)


CASES = [
    case("bare", MarianModel),
    case("bare, two tables, source left, target padded", MarianModel, APART, pad="left", target_pad=True),
    case("lm", MarianMTModel),
    case("lm, source left, very long", MarianMTModel, pad="left", source=590, target=300),
    case("lm, two tables", MarianMTModel, APART),
    case("lm, two tables, untied", MarianMTModel, {**APART, "tie_word_embeddings": False}),
    case("lm, odd width, unscaled, gelu", MarianMTModel,
         {"d_model": 27, "encoder_attention_heads": 9, "scale_embedding": False, "activation_function": "gelu"}),
    case("bare, odd width", MarianModel, {"d_model": 27, "encoder_attention_heads": 3, "decoder_layers": 1}),
]  # fmt: skip
FAMILY = FamilyCases(
    configs=(MarianConfig,),
    cases=CASES,
    checks={
        check_pair_maps: [case("maps", MarianMTModel, target_pad=True)],
        check_hidden: CASES[1:3],
        check_pair_steps: [CASES[0], CASES[4]],
    },
)
