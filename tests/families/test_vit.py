"""ViT and DINO's ViT against transformers, and a trained ViT rewritten for other image sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import ViTConfig, ViTForImageClassification, ViTModel

import anyformer
from anyformer.checkpoints.folder import open_folder, save_foreign
from anyformer.checkpoints.surgery import resize_images
from anyformer.embeds.patches import cut
from tests.families.cases.vit import CASES, Dino, case
from tests.families.parity import Case, make, save


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dino_alone_opens_as_a_body(case: Case, tmp_path: Path) -> None:
    opened = open_folder(save(make(case, torch.float32), tmp_path / "x"))
    assert (opened.head == "body") == (case.kind is Dino)


def test_a_classifier_opens_as_its_body(tmp_path: Path) -> None:
    theirs = make(case("classify", ViTForImageClassification), torch.float64)
    body = open_folder(save(theirs, tmp_path / "whole"), head="body")
    pixels = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    wanted = theirs.vit(pixels).last_hidden_state
    assert (body.model(pixels).hidden - wanted).abs().max() <= 1e-10


def test_a_list_that_is_no_size_is_refused(tmp_path: Path) -> None:
    folder = save(make(case("bare", ViTModel), torch.float32), tmp_path / "x")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"image_size": 12', '"image_size": [12, 12, 12]'))
    with pytest.raises(anyformer.UserError, match="image_size is"):
        open_folder(folder)


@pytest.mark.parametrize(
    "name, width, depth, heads, count", [("vit-b16", 768, 12, 12, 86_567_656), ("vit-l16", 1024, 24, 16, 304_326_632)]
)
def test_presets_have_as_many_parameters_as_transformers(
    name: str, width: int, depth: int, heads: int, count: int
) -> None:
    ours = sum(p.numel() for p in anyformer.preset(name).build(device="meta").parameters())
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "intermediate_size": 4 * width}
    config = ViTConfig(**sizes, num_attention_heads=heads, num_labels=1000)
    with torch.device("meta"):
        theirs = sum(p.numel() for p in ViTForImageClassification(config).parameters())
    assert ours == theirs == count


def test_a_preset_is_written_as_a_vit(tmp_path: Path) -> None:
    spec = anyformer.preset("vit-b16-tiny")
    model = spec.build(seed=0).eval()
    _, family, head = save_foreign(tmp_path / "x", spec, model)
    assert (family.model_type, head) == ("vit", "classify")
    pixels = torch.randn(2, 3, 32, 32)
    again = ViTForImageClassification.from_pretrained(tmp_path / "x").eval()
    assert (again(pixels).logits - model(pixels).logits).abs().max() <= 1e-5


def test_flattened_patches_times_a_matrix_are_the_strided_convolution() -> None:
    pixels, weight = torch.randn(2, 5, 12, 18), torch.randn(7, 5, 4, 6)
    wanted = F.conv2d(pixels, weight, stride=(4, 6)).flatten(2).transpose(1, 2)
    assert (cut(pixels, (4, 6)) @ weight.flatten(1).T - wanted).abs().max() <= 1e-4 * wanted.abs().max()


# ---------------------------------------------------------------- another image size, once and for all


def test_224_to_448_gives_785_tokens() -> None:
    spec = anyformer.Model(
        embed=anyformer.Patches(size=224, patch=16),
        stack=anyformer.Stack(width=12, depth=1, block=anyformer.Block(mixer=anyformer.Attention(heads=2))),
        head=anyformer.Pooled(classes=3),
    )
    model = spec.build(seed=0).eval()
    assert model.before_head(torch.randn(1, 3, 224, 224)).hidden.shape[1] == 197
    larger_spec, larger = resize_images(spec, model, 448)
    assert larger_spec.embed.size == 448
    pixels = torch.randn(1, 3, 448, 448)
    hidden, out = larger.before_head(pixels).hidden, larger(pixels)
    assert hidden.shape[1] == 785
    assert hidden.isfinite().all() and out.logits is not None and out.logits.isfinite().all()
    assert larger.embed.position.table.weight.shape[0] == 785


@pytest.mark.parametrize("size", [(24, 24), (8, 20), (4, 4)])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_a_rewritten_model_equals_their_interpolation(
    size: tuple[int, int], dtype: torch.dtype, bound: float, tmp_path: Path
) -> None:
    theirs = make(case("classify", ViTForImageClassification), dtype)
    opened = open_folder(save(theirs, tmp_path / "x"))
    spec, model = resize_images(opened.spec, opened.model, size)
    pixels = torch.randn(2, 3, *size, dtype=dtype)
    wanted = theirs(pixels, interpolate_pos_encoding=True).logits
    assert (model(pixels).logits - wanted).abs().max() <= bound * max(1.0, wanted.abs().max().item())
    save_foreign(tmp_path / "y", spec, model, config=opened.config)
    again = ViTForImageClassification.from_pretrained(tmp_path / "y").eval().to(dtype)
    assert (again(pixels).logits - wanted).abs().max() <= bound * max(1.0, wanted.abs().max().item())


def test_the_same_size_is_the_identity() -> None:
    spec = anyformer.preset("vit-b16-tiny")
    model = spec.build(seed=0)
    assert resize_images(spec, model, 32) == (spec, model)
    assert resize_images(spec, model, (32, 32))[1] is model
    there = resize_images(spec, model, 64)
    assert not torch.equal(there[1](torch.ones(1, 3, 64, 64)).logits, model(torch.ones(1, 3, 32, 32)).logits)


def test_a_joint_model_is_rewritten_too() -> None:
    embed = anyformer.Joint(parts=(anyformer.Patches(size=8, patch=4), anyformer.Tokens(vocab=9)))
    block = anyformer.Block(mixer=anyformer.Attention(heads=2))
    spec = anyformer.Model(embed=embed, stack=anyformer.Stack(width=8, depth=1, block=block), head=anyformer.LM())
    model = spec.build(seed=0).eval()
    words = torch.tensor([[1, 2, 3]])
    wanted = model(torch.ones(1, 3, 8, 16), words).logits
    larger = resize_images(spec, model, (8, 16))[1]
    assert (larger(torch.ones(1, 3, 8, 16), words).logits - wanted).abs().max() <= 1e-6


@pytest.mark.parametrize("size, said", [(30, "does not cut"), ((8, 0), "does not cut")])
def test_sizes_that_do_not_cut_into_patches_are_refused(size: Any, said: str) -> None:
    spec = anyformer.preset("vit-b16-tiny")
    with pytest.raises(anyformer.UserError, match=said):
        resize_images(spec, spec.build(device="meta"), size)


def test_a_text_model_is_refused() -> None:
    spec = anyformer.preset("gpt2-tiny")
    with pytest.raises(anyformer.UserError, match="takes no images"):
        resize_images(spec, spec.build(device="meta"), 32)
