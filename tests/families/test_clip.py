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
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
)

import anyformer
from anyformer.checkpoints.folder import open_folder, save_foreign
from anyformer.checkpoints.surgery import resize_images
from anyformer.families import FAMILIES
from anyformer.families.config import Config
from tests.families.images import check_hidden_states, check_pooled, image_case
from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip, make, quietly, save

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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hidden_states_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_vector_equals_transformers(case: Case, tmp_path: Path) -> None:
    check_pooled(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


@pytest.mark.parametrize("case", [CASES[0], CASES[8]], ids=str)
def test_hidden_states_equal_layer_by_layer(case: Case, tmp_path: Path) -> None:
    check_hidden_states(case, tmp_path)


@pytest.mark.parametrize("case", [text("text", CLIPTextModel), image("image", CLIPVisionModelWithProjection)], ids=str)
def test_every_map_equals_their_eager_map(case: Case, tmp_path: Path) -> None:
    check_maps(case, tmp_path)


def test_every_option_of_the_configs_is_read() -> None:
    check_config("clip_text_model", CLIPTextConfig)
    check_config("clip_vision_model", CLIPVisionConfig)
    for head in ("text", "vision"):
        whole = Config(CLIPConfig().to_dict())
        spec = FAMILIES["clip"].settings(whole, head)
        assert whole.unread() == []
        assert spec == FAMILIES["clip"].settings(Config({}), head)


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
