"""CLIP's two towers against transformers, alone and out of a whole CLIP."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPVisionModelWithProjection,
)

import anyformer
from anyformer.checkpoints.folder import open_folder, save_foreign
from anyformer.checkpoints.surgery import resize_images
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from tests.families.cases.clip import CASES, IMAGE, TEXT, ids, image
from tests.families.parity import make, quietly, save


def test_every_option_of_a_whole_config_is_read_by_either_tower() -> None:
    for head in ("text", "vision"):
        whole = FamilyConfig(CLIPConfig().to_dict())
        spec = FAMILIES["clip"].settings(whole, head)
        assert whole.unread() == []
        assert spec == FAMILIES["clip"].settings(FamilyConfig({}), head)


def test_a_tower_kept_under_its_older_prefix_opens(tmp_path: Path) -> None:
    theirs = make(CASES[0], torch.float32)
    folder = save(theirs, tmp_path / "x")
    older = {f"text_model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(older | {"text_model.embeddings.position_ids": torch.arange(16)[None]}, folder / "model.safetensors")
    again = open_folder(folder).model
    assert (again(*CASES[0].ours(torch.float32)[0]).hidden - theirs(ids(7, "right", 1)[0])[0]).abs().max() <= 1e-5


# ---------------------------------------------------------------- a whole CLIP


def whole(folder: Path) -> Any:
    config = CLIPConfig(text_config=TEXT, vision_config=IMAGE | {"hidden_size": 16}, projection_dim=9)
    torch.manual_seed(0)
    model = CLIPModel(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
    save(model, folder)
    return model


@torch.no_grad()
def test_either_tower_of_a_whole_clip_opens(tmp_path: Path) -> None:
    theirs = whole(tmp_path / "x")
    tokens, mask = ids(7, "right", 1)
    pixels = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    words, pictures = open_folder(tmp_path / "x", head="text"), open_folder(tmp_path / "x", head="vision")
    assert words.unread == pictures.unread == []
    wanted = theirs.get_text_features(tokens, attention_mask=mask).pooler_output
    assert (words.model(tokens, mask=mask).pooled - wanted).abs().max() <= 1e-10
    wanted = theirs.get_image_features(pixels).pooler_output
    assert (pictures.model(pixels).pooled - wanted).abs().max() <= 1e-10
    _, family, head = save_foreign(tmp_path / "y", pictures.spec, pictures.model, config=pictures.config)
    assert (family.model_type, head) == ("clip_vision_model", "project")
    with quietly():
        again, info = CLIPVisionModelWithProjection.from_pretrained(tmp_path / "y", output_loading_info=True)
    assert not any(info.values())
    assert (again.eval().double()(pixels).image_embeds - wanted).abs().max() <= 1e-10


def test_options_inside_a_tower_are_not_overlooked(tmp_path: Path) -> None:
    whole(tmp_path / "x")
    path = tmp_path / "x" / "config.json"
    data = json.loads(path.read_text())
    data["text_config"]["twist"] = 3
    path.write_text(json.dumps(data))
    assert open_folder(tmp_path / "x", head="text").unread == ["text_config.twist"]
    assert open_folder(tmp_path / "x", head="vision").unread == []


def test_a_tensor_of_neither_tower_is_refused(tmp_path: Path) -> None:
    whole(tmp_path / "x")
    path = tmp_path / "x" / "model.safetensors"
    save_file(load_file(path) | {"text_model.twist.weight": torch.zeros(1)}, path)
    with pytest.raises(anyformer.UserError, match=r"unexpected text_model\.twist"):
        open_folder(tmp_path / "x", head="text")


# ---------------------------------------------------------------- the end-of-text token


def test_the_vector_of_a_token_needs_ids() -> None:
    block = anyformer.Block(mixer=anyformer.Attention(heads=2))
    spec = anyformer.Model(
        embed=anyformer.Patches(size=8, patch=4),
        stack=anyformer.Stack(width=8, depth=1, block=block),
        head=anyformer.Pooled(pool="token", token=3),
    )
    with pytest.raises(anyformer.UserError, match="looks for an id"):
        spec.build(seed=0)(torch.zeros(1, 3, 8, 8))


def test_a_token_without_its_pooling_is_refused() -> None:
    with pytest.raises(anyformer.UserError, match="looks for no token"):
        anyformer.Pooled(token=3)


@torch.no_grad()
def test_a_rewritten_image_tower_equals_their_interpolation(tmp_path: Path) -> None:
    theirs = make(image("image", CLIPVisionModelWithProjection), torch.float64)
    opened = open_folder(save(theirs, tmp_path / "x"))
    _, model = resize_images(opened.spec, opened.model, (8, 24))
    pixels = torch.randn(2, 3, 8, 24, dtype=torch.float64)
    wanted = theirs(pixels, interpolate_pos_encoding=True).image_embeds
    assert (model(pixels).pooled - wanted).abs().max() <= 1e-10
