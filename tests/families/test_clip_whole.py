"""A whole CLIP against transformers: both towers and the scale between them, there and back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, CLIPModel

import anyformer
from anyformer import Towers, preset
from anyformer.checkpoints import tensors
from anyformer.checkpoints.folder import open_folder, save_foreign, save_own
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from tests.families.cases.clip import IMAGE, TEXT, ids
from tests.families.parity import quietly, save

TOKENS, MASK = ids(7, "right", 1)
PIXELS = torch.randn(2, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def theirs(dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    config = CLIPConfig(text_config=TEXT, vision_config=IMAGE | {"hidden_size": 16}, projection_dim=9, **settings)
    torch.manual_seed(0)
    model = CLIPModel(config).eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
        model.logit_scale.fill_(4.6052)  # what the published one has learned: a factor of 100.003
    return model


@torch.no_grad()
def logits(model: Any, dtype: torch.dtype = torch.float64) -> Any:
    return model(input_ids=TOKENS, attention_mask=MASK, pixel_values=PIXELS.to(dtype))


@pytest.mark.quick
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
@torch.no_grad()
def test_logits_per_image_and_both_vectors_equal_transformers(tmp_path: Path, dtype: Any, bound: float) -> None:
    model = theirs(dtype)
    opened = open_folder(save(model, tmp_path / "x"))
    assert isinstance(opened.spec, Towers) and opened.head == "whole" and opened.unread == []
    wanted = logits(model, dtype)
    out = opened.model(TOKENS, PIXELS.to(dtype), first_mask=MASK.bool())
    assert out.logits.shape == (3, 2) and wanted.logits_per_image.abs().max() > 10
    assert (out.logits.T - wanted.logits_per_image).abs().max() <= bound
    assert (out.logits - wanted.logits_per_text).abs().max() <= bound
    assert (out.first.pooled - wanted.text_embeds).abs().max() <= bound
    assert (out.second.pooled - wanted.image_embeds).abs().max() <= bound
    opened.model.scale.add_(1e-3)  # control
    again = opened.model(TOKENS, PIXELS.to(dtype), first_mask=MASK.bool())
    assert (again.logits.T - wanted.logits_per_image).abs().max() > bound


def test_the_folder_goes_there_and_back(tmp_path: Path) -> None:
    model = theirs(torch.float32)
    opened = open_folder(save(model, tmp_path / "first"))
    _, family, head = save_foreign(tmp_path / "second", opened.spec, opened.model, config=opened.config)
    assert (family.model_type, head) == ("clip", "whole")
    a, b = tensors.read_folder(tmp_path / "first"), tensors.read_folder(tmp_path / "second")
    assert sorted(a) == sorted(b) and all(torch.equal(a[name].read(), b[name].read()) for name in a)
    with quietly():
        again, info = CLIPModel.from_pretrained(tmp_path / "second", output_loading_info=True)
    assert not any(info.values()), info
    wanted = logits(model, torch.float32).logits_per_image
    assert (logits(again.eval(), torch.float32).logits_per_image - wanted).abs().max() <= 1e-5
    save_own(tmp_path / "own", opened.spec, opened.model)
    own = open_folder(tmp_path / "own")
    assert own.spec == opened.spec
    assert all(torch.equal(p, q) for p, q in zip(own.model.parameters(), opened.model.parameters(), strict=True))


@torch.no_grad()
def test_one_made_here_opens_there(tmp_path: Path) -> None:
    """Without a folder it came from: the settings alone are enough."""
    spec = preset("clip-b32-tiny")
    net = spec.build(seed=0).eval().double()
    save_foreign(tmp_path / "x", spec, net)
    with quietly():
        again, info = CLIPModel.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info.values()), info
    size = spec.second.embed.size
    words, pixels = torch.randint(0, 500, (2, 9)), torch.randn(3, 3, size, size, dtype=torch.float64)
    wanted = again.eval().double()(input_ids=words, pixel_values=pixels).logits_per_text
    assert (net(words, pixels).logits - wanted).abs().max() <= 1e-9


@pytest.mark.quick
def test_every_option_of_the_config_is_read() -> None:
    data = FamilyConfig(CLIPConfig().to_dict())
    spec = FAMILIES["clip"].settings(data, "whole")
    assert data.unread() == [] and spec == FAMILIES["clip"].settings(FamilyConfig({}), "whole")
    meta = spec.build(device="meta")
    assert sum(p.numel() for p in meta.parameters()) == 151_277_313
    with torch.device("meta"):
        there = CLIPModel(CLIPConfig())
    assert sum(p.numel() for p in there.parameters()) == 151_277_313


def test_what_nobody_knows_is_told_and_what_is_missing_refused(tmp_path: Path) -> None:
    save(theirs(), tmp_path / "x")
    path = tmp_path / "x" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "twist": 1}))
    data = json.loads(path.read_text())
    data["vision_config"]["twist"] = 3
    path.write_text(json.dumps(data))
    assert open_folder(tmp_path / "x").unread == ["twist", "vision_config.twist"]
    weights = load_file(tmp_path / "x" / "model.safetensors")
    del weights["logit_scale"]
    save_file(weights, tmp_path / "x" / "model.safetensors")
    with pytest.raises(anyformer.UserError, match="missing logit_scale"):
        open_folder(tmp_path / "x")
