"""Cases of ViT and of DINO's ViT."""

from pathlib import Path
from typing import Any

from transformers import ViTConfig, ViTForImageClassification, ViTModel

from tests.families.family import FamilyCases
from tests.families.images import check_hidden_states, check_pooled, image_case
from tests.families.parity import Case, check_maps

SMALL = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "image_size": 12,
         "patch_size": 4}  # fmt: skip


class Dino:
    """DINO's folders hold a ViTModel that was made without its pooler."""

    def __new__(cls, config: ViTConfig) -> Any:
        return ViTModel(config, add_pooling_layer=False)

    @staticmethod
    def from_pretrained(folder: Path, **options: Any) -> Any:
        return ViTModel.from_pretrained(folder, add_pooling_layer=False, **options)


def case(name: str, kind: type, size: tuple[int, int] | None = None, **settings: Any) -> Case:
    return image_case(name, kind, ViTConfig(**{**SMALL, **settings}), size=size)


POOLED = [
    case("bare", ViTModel),
    case("bare, another pooler", ViTModel, pooler_output_size=7, pooler_act="relu", num_hidden_layers=1),
    case("bare, other image", ViTModel, size=(20, 8)),
]
CASES = [
    *POOLED,
    case("dino", Dino, num_attention_heads=3, layer_norm_eps=1e-5),
    case("dino, larger image", Dino, size=(24, 24)),
    case("dino, smaller wide image", Dino, size=(4, 16)),
    case("dino, as many patches in another shape", Dino, image_size=16, size=(8, 32)),
    case("classify", ViTForImageClassification, num_labels=5, intermediate_size=96),
    case("classify, rectangles", ViTForImageClassification, image_size=[12, 30], patch_size=[4, 6], num_channels=5),
    case("classify, no bias, gray, relu", ViTForImageClassification, qkv_bias=False, num_channels=1, hidden_act="relu"),
    case("classify, wide heads", ViTForImageClassification, head_dim=9, hidden_act="gelu_new", num_hidden_layers=5),
]
FAMILY = FamilyCases(
    configs=(ViTConfig,),
    cases=CASES,
    checks={
        check_pooled: POOLED,
        check_hidden_states: [CASES[-1]],
        check_maps: [case("maps", ViTForImageClassification, image_size=[12, 20])],
    },
)
