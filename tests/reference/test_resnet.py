"""Our ResNet against transformers' on its random weights, in evaluation and in training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from anyformer import ResNet
from tests.laws.nets import numbers
from tests.reference.copying import agree, deviation

BLOCK = {"layer.0": "reduce", "layer.1": "spatial", "layer.2": "expand", "shortcut": "shortcut"}
NORM = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "var"}


def theirs(depths: list[int], width: int) -> Any:
    from transformers import ResNetConfig, ResNetModel

    hidden = [4 * width * 2**i for i in range(len(depths))]
    torch.manual_seed(0)
    net = ResNetModel(ResNetConfig(embedding_size=width, hidden_sizes=hidden, depths=depths)).double()
    with torch.no_grad():  # fresh norms are ones and zeros, which would hide a mix-up
        for name, value in net.state_dict().items():
            if "normalization" in name and value.is_floating_point():
                value.add_(0.3 * torch.rand(value.shape, dtype=torch.float64))
    return net


def renamed(net: Any) -> dict[str, Tensor]:
    """Their parameters and running statistics under our names."""
    found = {}
    for name, value in {**dict(net.named_parameters()), **dict(net.named_buffers())}.items():
        if name.endswith("num_batches_tracked"):
            continue
        if name.startswith("embedder"):
            path, rest = "stem", name.removeprefix("embedder.embedder.")
        else:
            _, _, stage, _, layer, rest = name.split(".", 5)
            part = next(part for part in BLOCK if rest.startswith(part))
            path, rest = f"stages.{stage}.{layer}.{BLOCK[part]}", rest.removeprefix(f"{part}.")
        kind, leaf = rest.split(".")
        found[f"{path}.conv.{leaf}" if kind == "convolution" else f"{path}.norm.{NORM[leaf]}"] = value
    return found


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("size", [(64, 64), (45, 71)], ids=["even", "odd"])
def test_maps_and_gradients_equal_those_of_transformers(size: tuple[int, int], training: bool) -> None:
    other = theirs([2, 1, 1], 4).train(training)
    ours = ResNet(depths=(2, 1, 1), width=4).build().double().train(training)
    weights = renamed(other)
    assert set(weights) == set(ours.state_dict())
    pixels = numbers(3, 3, *size).requires_grad_()
    statistics = {name: value.clone() for name, value in weights.items() if name.endswith((".mean", ".var"))}
    got = functional_call(ours, {**weights, **statistics}, (pixels,))
    wanted = other(pixels).last_hidden_state
    agree(got, wanted, [pixels, *other.parameters()])
    assert deviation(got.roll(1, -1), wanted) > 1e-3  # control
    moved = {name: value for name, value in renamed(other).items() if name in statistics}
    for name, value in statistics.items():  # both sides' running statistics went the same way
        assert (value - moved[name]).abs().max() < 1e-12
    mean = "stages.0.0.reduce.norm.mean"
    assert torch.equal(statistics[mean], weights[mean]) or training


def test_frozen_norms_learn_and_move_nothing() -> None:
    """The stem and the first stage rest too, as detectors have it."""
    net = ResNet(depths=(1, 1), width=4, frozen=True).build().train()
    fixed = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert fixed == {name for name, _ in net.named_parameters() if ".norm." in name or "stages.1" not in name}
    before = {name: p.clone() for name, p in net.named_parameters()}
    net(numbers(2, 3, 32, 32, dtype=torch.float32)).sum().backward()
    assert all(torch.equal(before[name], p) for name, p in net.named_parameters())
    assert all((p.grad is None) == (name in fixed) for name, p in net.named_parameters())
