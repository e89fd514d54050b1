"""Folders as timm shares them, against a ViT written here in plain torch under timm's names.

timm needs torchvision, for which these machines have no build; `benchmarks/LOG.md` has the comparison with timm itself.
"""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import anyformer
from anyformer.checkpoints.folder import open_folder
from anyformer.errors import UserError
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from anyformer.families.timm_vit import sizes_of

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}
CONFIG = {
    "architecture": "vit_tiny_patch16_224", "num_classes": 5, "num_features": 24, "global_pool": "token",
    "model_args": SMALL,
    "pretrained_cfg": {
        "tag": "x", "input_size": [3, 16, 16], "interpolation": "bicubic", "crop_pct": 0.8, "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "num_classes": 5,
    },
    "label_names": ["ant", "bee", "cat", "dog", "emu"],
}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp.fc2(nn.functional.gelu(self.mlp.fc1(self.norm2(x))))


class Reference(nn.Module):
    """2010.11929's model: a class token, learned positions, pre-norm blocks, a linear layer on the first token."""

    def __init__(self, img_size: int, patch_size: int, embed_dim: int, depth: int, num_heads: int) -> None:
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, embed_dim, patch_size, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (img_size // patch_size) ** 2, embed_dim))
        self.blocks = nn.ModuleList(Block(embed_dim, num_heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(embed_dim, eps=1e-6), nn.Linear(embed_dim, 5)

    def body(self, pixels: Tensor) -> Tensor:
        x = self.patch_embed.proj(pixels).flatten(2).mT
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.body(pixels)[:, 0])


def reference(dtype: torch.dtype = torch.float32) -> Reference:
    torch.manual_seed(0)
    model = Reference(**SMALL).eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
    return model


def write(
    folder: Path, weights: dict[str, Tensor], changes: dict[str, Any] | None = None, without: tuple[str, ...] = ()
) -> Path:
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    told = {name: value for name, value in (CONFIG | (changes or {})).items() if name not in without}
    (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


def pixels(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
def test_logits_are_those_of_the_paper_s_model(dtype: torch.dtype, bound: float, tmp_path: Path) -> None:
    theirs = reference(dtype)
    opened = open_folder(write(tmp_path / "x", theirs.state_dict()), dtype=dtype)
    assert opened.unread == []
    wanted = theirs(pixels(dtype))
    assert (opened.model(pixels(dtype)).logits - wanted).abs().max() <= bound * max(1.0, wanted.abs().max().item())
    opened.model.stack.blocks[0].mixer.qkv.weight.mul_(1.5)  # a control
    assert (opened.model(pixels(dtype)).logits - wanted).abs().max() > 1e-4


def test_a_folder_is_written_back_with_the_same_names_bytes_and_settings(tmp_path: Path) -> None:
    first = write(tmp_path / "first", reference().state_dict())
    anyformer.load(first).export(tmp_path / "second", to="hf")
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    told = json.loads((tmp_path / "second" / "config.json").read_text(encoding="utf-8"))
    assert all(told[name] == CONFIG[name] for name in ("num_classes", "pretrained_cfg", "label_names")), told
    again = open_folder(tmp_path / "second")
    assert again.spec == open_folder(first).spec


@torch.no_grad()
def test_without_classes_it_is_a_body(tmp_path: Path) -> None:
    theirs = reference()
    weights = {name: value for name, value in theirs.state_dict().items() if not name.startswith("head.")}
    opened = open_folder(write(tmp_path / "x", weights, {"num_classes": 0}))
    assert (opened.model(pixels()).hidden - theirs.body(pixels())).abs().max() <= 1e-5


@torch.no_grad()
def test_the_names_that_transformers_writes_are_read(tmp_path: Path) -> None:
    theirs = reference()
    weights = {f"timm_model.{name}": value for name, value in theirs.state_dict().items()}
    said = {"model_type": "timm_wrapper", "architectures": ["TimmWrapperForImageClassification"]}
    opened = open_folder(write(tmp_path / "x", weights, said))
    assert (opened.model(pixels()).logits - theirs(pixels())).abs().max() <= 1e-5


@torch.no_grad()
def test_an_image_is_prepared_as_the_config_says_and_its_label_has_its_name(tmp_path: Path) -> None:
    theirs = reference()
    predictor = anyformer.load(write(tmp_path / "x", theirs.state_dict()))
    photo = numpy.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=numpy.uint8)
    assert predictor.images is not None
    prepared = predictor.images(photo)
    assert prepared.shape == (1, 3, 16, 16)
    resized = Image.fromarray(photo).resize((26, 20), Image.Resampling.BICUBIC)  # 16 / .8 = 20 on the shorter side
    middle = numpy.asarray(resized.crop((5, 2, 21, 18)), dtype=numpy.float32) / 255
    wanted = torch.from_numpy((middle - 0.5) / 0.25).permute(2, 0, 1)
    assert (prepared[0] - wanted).abs().max() <= 1e-6
    answer = predictor.predict([photo])[0]
    assert answer == CONFIG["label_names"][int(theirs(wanted[None]).argmax())]


def test_an_architecture_s_name_says_its_sizes() -> None:
    published = {
        "vit_base_patch16_224": 86_567_656,
        "vit_large_patch32_384": 306_632_680,
        "deit_tiny_patch16_224": 5_717_416,
    }
    for name, count in published.items():
        spec = FAMILIES["timm_wrapper"].settings(FamilyConfig({"architecture": name}), "classify")
        assert sum(p.numel() for p in spec.build(device="meta").parameters()) == count, name
    assert sizes_of("vit_base_patch16_clip_224") is None and sizes_of("resnet50") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "resnet50"}, "resnet50"),
        ({"architecture": "vit_base_patch16_siglip_224"}, "not implemented"),
        ({"global_pool": "avg"}, "global_pool"),
        ({"model_args": {**SMALL, "global_pool": "avg"}}, "global_pool"),
        ({"model_args": {**SMALL, "init_values": 1e-5}}, "init_values"),
        ({"model_args": {**SMALL, "num_heads": 5}}, "do not divide"),
        ({"model_args": {**SMALL, "num_heads": 0}}, "num_heads"),
        ({"model_args": {**SMALL, "embed_dim": -24}}, "embed_dim"),
        ({"model_args": {**SMALL, "depth": 10**9}}, "depth"),
        ({"model_args": {**SMALL, "patch_size": "4"}}, "patch_size"),
        ({"model_args": {**SMALL, "mlp_ratio": "big"}}, "mlp_ratio"),
        ({"model_args": [1, 2]}, "model_args"),
        ({"architecture": 3}, "model_type"),
        ({"num_classes": 7}, "head"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_is_not_a_plain_vit_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "x", reference().state_dict(), changes)
    with pytest.raises(UserError, match=words):
        open_folder(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interpolation": "bicubik"}, "bicubic"),
        ({"crop_pct": 0}, "crop_pct"),
        ({"crop_mode": "border"}, "crop_mode"),
        ({"input_size": [3, 16]}, "input_size"),
        ({"input_size": [3, 16, 20]}, "square"),
        ({"mean": "grey"}, "image_mean"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_cannot_be_done_to_an_image_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    prepared = {**CONFIG["pretrained_cfg"], **changes}  # type: ignore[dict-item]
    folder = write(tmp_path / "x", reference().state_dict(), {"pretrained_cfg": prepared})
    with pytest.raises(UserError, match=words):
        anyformer.load(folder)
