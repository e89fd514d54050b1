"""Networks over maps from the command line: one preset name trains on a folder of pictures, whatever their size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer
from anyformer import LRNet, Maps, Model, Patches, Pooled, ResNet, VisualTransformer
from anyformer.data.sizes import Sizes
from tests.cli.trying import done
from tests.tasks_by_name import network
from tests.training.tiny import write_pictures

NAMES = ("lr-net-50-tiny", "resnet-50-tiny", "vt-resnet-tiny", "pyramid-small-tiny")


def images(size: int | tuple[int, int], channels: int, classes: int = 5) -> Sizes:
    return Sizes(parts=["image"], image=size, channels=channels, classes=classes)


@pytest.mark.parametrize("name", NAMES)
def test_one_command_trains_and_another_predicts(name: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    out = tmp_path / "run"
    steps = ("--set", "training.steps=8", "--set", "training.threads=1", "--set", "training.batch_size=8")
    done("train", tmp_path / "pictures", "--preset", name, "--out", out, "--progress", "none", "--device", "cpu",
         "--set", "training.workers=0", *steps)  # fmt: skip
    said = done("predict", out, tmp_path / "pictures" / "dark" / "00.png")
    assert "dark" in said.out or "bright" in said.out


@pytest.mark.quick
def test_the_data_dictate_size_colours_and_classes() -> None:
    for name, kind in (("resnet-50", ResNet), ("lr-net-50", LRNet), ("vt-resnet", VisualTransformer)):
        for size, channels, stem in ((224, 3, "imagenet"), (28, 1, "small"), ((48, 200), 4, "small")):
            spec: Any = network(name, "classify", images(size, channels))
            assert isinstance(spec.embed, Maps) and isinstance(spec.embed.backbone, kind)
            assert spec.embed.size == size and spec.embed.backbone.inputs == channels
            inner = spec.embed.backbone.backbone if name == "vt-resnet" else spec.embed.backbone
            assert inner.stem == stem
            assert isinstance(spec.head, Pooled) and spec.head.classes == 5 and spec.head.pool == "mean"
    with_outputs: Any = network("resnet-50-tiny", "regress", Sizes(parts=["image"], image=20, channels=1, outputs=2))
    assert with_outputs.build(seed=0)(torch.zeros(2, 1, 20, 20)).logits.shape == (2, 2)


@pytest.mark.quick
def test_small_grey_pictures_go_through_every_tiny_network() -> None:
    for name in NAMES:
        spec = network(name, "classify", images(28, 1))
        assert isinstance(spec, Model) and isinstance(spec.embed, Maps | Patches)
        assert spec.build(seed=0).eval()(torch.zeros(2, 1, 28, 28)).logits.shape == (2, 5)
    assert set(NAMES) <= set(anyformer.preset_names())
