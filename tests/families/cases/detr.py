"""Cases of DETR, on padded images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import DetrConfig, DetrForObjectDetection, DetrModel, ResNetConfig

from tests.families.family import FamilyCases
from tests.families.parity import Case
from tests.families.passes import check_pair_maps

SMALL = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37, "decoder_ffn_dim": 20, "num_queries": 7, "num_labels": 5,
}  # fmt: skip
NET = {"embedding_size": 4, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 2, 1, 1]}


def stirred(model: Any) -> Any:
    """The frozen weights and statistics of the backbone at random too: at their start they would hide mistakes."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in (*model.named_buffers(), *model.named_parameters()):
            if "backbone" in name:
                drawn = torch.rand(tensor.shape, generator=generator) - 0.5
                positive = name.endswith(("running_var", "normalization.weight"))
                fan = tensor[0].numel() if tensor.dim() == 4 else 6
                tensor.copy_(drawn + 1 if positive else drawn * (6 / fan) ** 0.5)
    return model


class Detecting:
    """Their detector with a stirred backbone."""

    kind: type = DetrForObjectDetection

    def __new__(cls, config: DetrConfig) -> Any:
        return stirred(cls.kind(config))

    @classmethod
    def from_pretrained(cls, folder: Path, **options: Any) -> Any:
        return cls.kind.from_pretrained(folder, **options)


class Bare(Detecting):
    """The same without a head."""

    kind = DetrModel


def case(name: str, kind: type = Detecting, size: tuple[int, int] = (64, 96), pad: bool = True, net: Any = None,
         **settings: Any) -> Case:  # fmt: skip
    """Three images of which two are smaller than the batch."""
    backbone = ResNetConfig(**{**NET, **(net or {})}, out_features=["stage4"])
    config = DetrConfig(backbone_config=backbone, **{**SMALL, **settings})
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn((3, backbone.num_channels, *size), generator=generator, dtype=torch.float64)
    mask = torch.ones(3, *size, dtype=torch.bool)
    if pad:
        mask[1, size[0] // 2 :] = mask[1, :, 3 * size[1] // 4 :] = mask[2, :, 33:] = False
        pixels = pixels * mask[:, None]

    def theirs(dtype: torch.dtype) -> dict[str, Any]:
        return {"pixel_values": pixels.to(dtype)} | ({"pixel_mask": mask.long()} if pad else {})

    def ours(dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (pixels.to(dtype),), {"source_mask": mask} if pad else {}

    # Their sinusoids are computed in the type of the pixels, ours in float64 always: equal in float64.
    return Case(name, kind, config, theirs, ours, extra={"norms": 1.0})


CASES = [
    case("padded"),
    case("unpadded, one colour", pad=False, size=(64, 64), net={"num_channels": 1}),
    case("a size that the stride does not divide", size=(70, 101), activation_function="gelu"),
    case("bare", Bare, encoder_ffn_dim=96),
]


def mapped() -> Case:
    """Without padding, and with the rows whose maps are compared."""
    one = case("maps", pad=False)
    one.extra.update(encoder=torch.ones(3, 2 * 3, dtype=torch.bool), decoder=torch.ones(3, 7, dtype=torch.bool))
    return one


FAMILY = FamilyCases(
    configs=(DetrConfig,),
    cases=CASES,
    round_trips=[CASES[0], CASES[3]],
    checks={check_pair_maps: [mapped()]},
)
