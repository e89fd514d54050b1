"""DeiT against transformers, with and without its second classifier."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeiTConfig, DeiTForImageClassification, DeiTForImageClassificationWithTeacher, DeiTModel

from anyformer.checkpoints.folder import open_folder
from anyformer.checkpoints.surgery import resize_images
from tests.families.images import check_hidden_states, check_pooled, image_case
from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip, make, save

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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


def test_the_pooled_vector_equals_transformers(tmp_path: Path) -> None:
    check_pooled(CASES[0], tmp_path)


def test_hidden_states_equal_layer_by_layer(tmp_path: Path) -> None:
    check_hidden_states(CASES[4], tmp_path)


def test_every_map_equals_their_eager_map(tmp_path: Path) -> None:
    check_maps(case("maps", DeiTForImageClassificationWithTeacher), tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("deit", DeiTConfig)


@torch.no_grad()
def test_the_two_classifiers_can_be_read_apart(tmp_path: Path) -> None:
    given = case("distilled", DeiTForImageClassificationWithTeacher, num_labels=5)
    theirs = make(given, torch.float64)
    model = open_folder(save(theirs, tmp_path / "x")).model
    pixels = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    wanted, out = theirs(pixels), model(pixels)
    labels, teacher = model.head.both(out.hidden, out.context)
    assert (labels - wanted.cls_logits).abs().max() <= 1e-10
    assert (teacher - wanted.distillation_logits).abs().max() <= 1e-10
    assert (labels - teacher).abs().max() > 1e-3  # they are two


@torch.no_grad()
def test_two_leading_positions_survive_another_image_size(tmp_path: Path) -> None:
    theirs = make(case("distilled", DeiTForImageClassificationWithTeacher), torch.float64)
    opened = open_folder(save(theirs, tmp_path / "x"))
    _, model = resize_images(opened.spec, opened.model, (20, 8))
    pixels = torch.randn(2, 3, 20, 8, dtype=torch.float64)
    wanted = theirs(pixels, interpolate_pos_encoding=True).logits
    assert (model(pixels).logits - wanted).abs().max() <= 1e-10
