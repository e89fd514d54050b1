"""DeiT against transformers, with and without its second classifier."""

from pathlib import Path

import torch
from transformers import DeiTForImageClassificationWithTeacher

from anyformer.checkpoints.folder import open_folder
from anyformer.checkpoints.surgery import resize_images
from tests.families.cases.deit import case
from tests.families.parity import make, save


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
