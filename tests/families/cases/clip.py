"""Cases of CLIP's two towers."""

from typing import Any

import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
)

from tests.families.family import FamilyCases
from tests.families.images import check_hidden_states, check_pooled, image_case
from tests.families.parity import Case, check_maps

LAYERS = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37,
          "projection_dim": 10}  # fmt: skip
TEXT = {**LAYERS, "vocab_size": 50, "max_position_embeddings": 16, "eos_token_id": 7}
IMAGE = {**LAYERS, "image_size": 12, "patch_size": 4}
PADDED = {"right": [0, 3, 5], "left": [0, 3, 5], "none": [0, 0, 0]}


def ids(end: int, pad: str, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts of 11 ids with an end-of-text token before their padding, and the mask."""
    tokens = torch.randint(8, 45, (3, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 11, dtype=torch.long)
    for row, count in enumerate(PADDED[pad]):
        hidden = slice(11 - count, 11) if pad == "right" else slice(0, count)
        mask[row, hidden], tokens[row, hidden] = 0, fill
        tokens[row, 10 - count if pad == "right" else 10] = end
    return tokens, mask


def text(name: str, kind: type, pad: str = "right", fill: int = 1, end: int = 7, **settings: Any) -> Case:
    config = CLIPTextConfig(**{**TEXT, **settings})
    tokens, mask = ids(end, pad, fill)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    theirs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    return Case(name, kind, config, lambda _: theirs, lambda _: ((tokens,), {"mask": mask.bool()}), real=mask.bool())


def image(name: str, kind: type, size: tuple[int, int] | None = None, **settings: Any) -> Case:
    return image_case(name, kind, CLIPVisionConfig(**{**IMAGE, **settings}), size=size)


CASES = [
    text("text", CLIPTextModel),
    text("text, left padding", CLIPTextModel, pad="left"),
    text("text, end of text is the highest id", CLIPTextModel, end=49, eos_token_id=2),
    text("text, padded with the end of text", CLIPTextModelWithProjection, fill=7),
    text("text, padded with the highest id", CLIPTextModelWithProjection, fill=49, end=49, eos_token_id=2),
    text("text, projected, gelu", CLIPTextModelWithProjection, pad="none", hidden_act="gelu", num_hidden_layers=1),
    image("image", CLIPVisionModel, layer_norm_eps=1e-3),
    image("image, other image", CLIPVisionModel, size=(20, 8), num_channels=4),
    image("image, projected", CLIPVisionModelWithProjection, num_hidden_layers=5, intermediate_size=96),
    image("image, projected, larger", CLIPVisionModelWithProjection, size=(24, 24), projection_dim=24),
]
FAMILY = FamilyCases(
    configs=(CLIPTextConfig, CLIPVisionConfig),
    cases=CASES,
    checks={
        check_pooled: CASES,
        check_hidden_states: [CASES[0], CASES[8]],
        check_maps: [text("text", CLIPTextModel), image("image", CLIPVisionModelWithProjection)],
    },
)
