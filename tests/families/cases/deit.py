"""Cases of DeiT, with and without its second classifier."""

from typing import Any

from transformers import DeiTConfig, DeiTForImageClassification, DeiTForImageClassificationWithTeacher, DeiTModel

from tests.families.family import FamilyCases
from tests.families.images import check_hidden_states, check_pooled, image_case
from tests.families.parity import Case, check_maps

SMALL = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "image_size": 12,
         "patch_size": 4}  # fmt: skip


def case(name: str, kind: type, size: tuple[int, int] | None = None, **settings: Any) -> Case:
    return image_case(name, kind, DeiTConfig(**{**SMALL, **settings}), size=size)


CASES = [
    case("bare", DeiTModel, pooler_output_size=5, pooler_act="gelu"),
    case("classify", DeiTForImageClassification, num_labels=5, qkv_bias=False),
    case("classify, other image", DeiTForImageClassification, size=(16, 8), num_channels=2),
    case("distilled", DeiTForImageClassificationWithTeacher, num_labels=5, num_hidden_layers=5),
    case("distilled, rectangles", DeiTForImageClassificationWithTeacher, image_size=[12, 18], patch_size=[4, 6]),
    case("distilled, other image", DeiTForImageClassificationWithTeacher, size=(24, 20), hidden_act="silu"),
]
FAMILY = FamilyCases(
    configs=(DeiTConfig,),
    cases=CASES,
    checks={
        check_pooled: [CASES[0]],
        check_hidden_states: [CASES[4]],
        check_maps: [case("maps", DeiTForImageClassificationWithTeacher)],
    },
)
