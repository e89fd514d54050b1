"""DETR against transformers: answers and boxes, padded images, both ways, both spellings of the backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

from anyformer import UserError, preset
from anyformer.checkpoints.folder import as_family, open_folder, save_foreign
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from anyformer.families.detr import TIMM
from tests.families.cases.detr import CASES, case
from tests.families.parity import Case, make, quietly, save
from tests.families.passes import count


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_boxes_and_their_gradients_equal_transformers(case: Case, tmp_path: Path) -> None:
    """Backward too: from logits and boxes to the pixels and to every weight that both let learn."""
    theirs = make(case, torch.float64)
    theirs.model.unfreeze_backbone()  # theirs lets none of it learn where the backbone is not timm's
    ours = open_folder(save(theirs, tmp_path / "x")).model
    given, options = case.ours(torch.float64)
    mine, yours = given[0].clone().requires_grad_(), given[0].clone().requires_grad_()
    a, b = theirs(**(case.theirs(torch.float64) | {"pixel_values": yours})), ours(mine, **options)
    assert (a.pred_boxes - b.boxes).abs().max() <= 1e-9 and (a.logits - b.logits).abs().max() <= 1e-9
    (a.pred_boxes.square().sum() + a.logits.square().sum()).backward()
    (b.boxes.square().sum() + b.logits.square().sum()).backward()
    assert (mine.grad - yours.grad).abs().max() <= 1e-9 * max(1.0, yours.grad.abs().max().item())
    for x, y in (
        (ours.decoder.embed.table.weight, theirs.model.query_position_embeddings.weight),
        (ours.encoder.embed.project.bias, theirs.model.input_projection.bias),
        (ours.encoder.stack.blocks[0].mixer.out.weight, theirs.model.encoder.layers[0].self_attn.o_proj.weight),
        (ours.encoder.embed.backbone.stages[1][0].reduce.conv.weight,
         theirs.model.backbone.model.encoder.stages[1].layers[0].layer[0].convolution.weight),
    ):  # fmt: skip
        assert (x.grad - y.grad).abs().max() <= 1e-9 * max(1.0, y.grad.abs().max().item())


@torch.no_grad()
def test_the_mask_of_padding_matters(tmp_path: Path) -> None:
    """Control: left out, the answers are others."""
    ours = open_folder(save(make(CASES[0], torch.float64), tmp_path / "x")).model
    given, options = CASES[0].ours(torch.float64)
    gap: Tensor = (ours(*given, **options).boxes - ours(*given).boxes).abs().amax((1, 2))
    assert gap[0] <= 1e-12 and gap[1:].min() > 1e-6


@pytest.mark.quick
def test_the_preset_has_as_many_parameters_as_transformers() -> None:
    net = preset("detr-r50").build(device="meta")
    with torch.device("meta"):
        theirs = DetrForObjectDetection(
            DetrConfig(backbone_config=ResNetConfig(out_features=["stage4"]), num_labels=91)
        )
    # The 41.3M of the paper; the stem and the first stage stay as they are.
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == 41_302_368
    held = count(theirs) + sum(buffer.numel() for buffer in theirs.buffers())  # batch norms are buffers there
    assert count(net) == held == 41_631_008
    assert as_family(preset("detr-r50"), {})[0].model_type == "detr"


# ---------------------------------------------------------------- published folders name their backbone as timm does


def as_timm(name: str) -> str:
    """A tensor's name as in the published folders: conv1, bn1, layer1.0.conv2, layer1.0.downsample.0."""
    name = name.replace("model.embedder.embedder.convolution", "model.conv1").replace(
        "model.embedder.embedder.normalization", "model.bn1"
    )
    for stage in range(4):
        name = name.replace(f"encoder.stages.{stage}.layers.", f"layer{stage + 1}.")
    for place in range(3):
        name = name.replace(f".layer.{place}.convolution", f".conv{place + 1}")
        name = name.replace(f".layer.{place}.normalization", f".bn{place + 1}")
    return name.replace("shortcut.convolution", "downsample.0").replace("shortcut.normalization", "downsample.1")


def published(folder: Path, source: Path, **changes: Any) -> Path:
    """The same model as a published folder has it."""
    folder.mkdir()
    tensors = {as_timm(name): tensor for name, tensor in load_file(source / "model.safetensors").items()}
    assert any(".conv_encoder.model.layer3.0.downsample.1.running_var" in name for name in tensors)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config |= {"backbone_config": None, "backbone": "resnet50", "use_timm_backbone": True, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.no_grad()
def test_a_published_folder_opens_and_is_written_for_transformers(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(TIMM, "resnet50", (1, 2, 1, 1))  # a shorter one: the names are what is shown
    whole = {"hidden_sizes": [256, 512, 1024, 2048], "depths": [1, 2, 1, 1], "embedding_size": 64}
    theirs = make(case("r50", net=whole, encoder_layers=1, decoder_layers=1), torch.float32)
    opened = open_folder(published(tmp_path / "published", save(theirs, tmp_path / "plain")))
    assert opened.unread == []
    pixels = torch.randn(1, 3, 64, 64)
    wanted = theirs(pixels)
    assert (opened.model(pixels).boxes - wanted.pred_boxes).abs().max() <= 1e-4
    save_foreign(tmp_path / "again", opened.spec, opened.model, config=opened.config)
    with quietly():
        again, info = DetrForObjectDetection.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values()), info
    assert (again.eval()(pixels).pred_boxes - wanted.pred_boxes).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"auxiliary_loss": True}, "auxiliary_loss"),
        ({"position_embedding_type": "learned"}, "position_embedding_type"),
        ({"dilation": True}, "dilation"),
        ({"backbone": "resnet18"}, "resnet18"),
        ({"backbone_config": {"model_type": "swin"}}, "swin"),
        ({"backbone_config": {"model_type": "resnet", "layer_type": "basic"}}, "layer_type"),
        ({"backbone_config": {"model_type": "resnet", "hidden_sizes": [1, 2, 3, 4]}}, "hidden_sizes"),
        ({"backbone_config": {"model_type": "resnet", "out_features": ["stage2"]}}, "out_features"),
        ({"backbone_config": 3}, "is not an object"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        FAMILIES["detr"].settings(FamilyConfig(changes), "detect")
