"""Cases of VisualBERT: words and regions, either of them padded."""

from typing import Any

import torch
from transformers import VisualBertConfig, VisualBertForPreTraining, VisualBertForVisualReasoning, VisualBertModel

from tests.families.encoders import check_layers
from tests.families.family import FamilyCases
from tests.families.parity import Case, check_maps

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32, "visual_embedding_dim": 10, "pad_token_id": 1,
}  # fmt: skip


def case(
    name: str, kind: type, *, regions: int = 6, segments: bool = True, padded: bool = True, **settings: Any
) -> Case:  # fmt: skip
    config = VisualBertConfig(**{**SMALL, **settings})
    generator = torch.Generator().manual_seed(regions)
    tokens = torch.randint(5, config.vocab_size, (3, 9), generator=generator)
    real, seen = torch.ones(3, 9, dtype=torch.long), torch.ones(3, regions, dtype=torch.long)
    if padded:
        real[1, 5:], seen[2, regions // 2 :] = 0, 0
    tokens = tokens.where(real.bool(), config.pad_token_id)
    vectors = torch.randn(3, regions, config.visual_embedding_dim, generator=generator, dtype=torch.float64)
    kinds = torch.randint(0, config.type_vocab_size, (3, 9 + regions), generator=generator)
    theirs: dict[str, Any] = {"input_ids": tokens, "attention_mask": real, "visual_attention_mask": seen}
    ours: dict[str, Any] = {"mask": (real.bool(), seen.bool())}
    if segments:
        theirs |= {"token_type_ids": kinds[:, :9], "visual_token_type_ids": kinds[:, 9:]}
        ours["segments"] = kinds
    return Case(
        name, kind, config, lambda dtype: theirs | {"visual_embeds": vectors.to(dtype)},
        lambda dtype: ((tokens, vectors.to(dtype)), ours), real=torch.cat([real, seen], 1).bool(), extra={"norms": 1.0},
    )  # fmt: skip


CASES = [
    case("bare", VisualBertModel),
    case("bare, no segments given, relu", VisualBertModel, segments=False, hidden_act="relu"),
    case("bare, one region, three segments", VisualBertModel, regions=1, padded=False, type_vocab_size=3),
    case("bare, wide feed, eps", VisualBertModel, intermediate_size=96, layer_norm_eps=1e-3, num_hidden_layers=1),
    case("pretraining", VisualBertForPreTraining),
    case("pretraining, untied", VisualBertForPreTraining, padded=False, tie_word_embeddings=False),
    case("classify", VisualBertForVisualReasoning, num_labels=5),
    case("classify, without padding", VisualBertForVisualReasoning, padded=False, num_labels=2),
]
FAMILY = FamilyCases(
    configs=(VisualBertConfig,),
    cases=CASES,
    checks={check_layers: [CASES[0], CASES[2]], check_maps: [CASES[0], CASES[6]]},
)
