"""The stem of convolutions against torch's own modules, its grids for images of any size, and what it is there for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer import Attention, Block, ConvStem, Model, Patches, Pooled, Stack, UserError
from anyformer.slots import Embed


def theirs(stem: nn.Module, pixels: Tensor) -> Tensor:
    """The same maps by torch's Conv2d and GroupNorm, one layer after the other."""

    def normalised(layer: nn.Module, x: Tensor) -> Tensor:
        norm = nn.GroupNorm(layer.groups, layer.weight.numel())
        norm.weight, norm.bias = layer.weight, layer.bias
        return norm(layer.conv(x))

    first, block, second = stem.layers
    x = normalised(first, pixels).relu()
    x = (x + normalised(block.second, normalised(block.first, x).relu())).relu()
    x = normalised(second, x).relu()
    colours = nn.AdaptiveAvgPool2d(x.shape[2:])(pixels)
    return stem.project(torch.cat([x, colours], 1).permute(0, 2, 3, 1).flatten(1, 2))


def test_it_is_convolutions_and_group_norms() -> None:
    spec = ConvStem(size=(10, 13), widths=(32, 48), depths=(1, 0), channels=2, position=None)
    stem = spec.build(24)
    generator = torch.Generator().manual_seed(0)
    for parameter in stem.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    pixels = torch.randn(3, 2, 10, 13, generator=generator)
    ours = stem(pixels, context=stem.layout(pixels))
    assert ours.shape == (3, 5 * 7, 24) and spec.grid == (5, 7)
    assert torch.allclose(ours, theirs(stem, pixels), atol=1e-5)
    assert not torch.allclose(ours, theirs(stem, pixels.mT.reshape(pixels.shape)), atol=1e-2)  # control: other pixels
    alone = torch.cat([stem(image[None], context=stem.layout(image[None])) for image in pixels])
    assert torch.allclose(ours, alone, atol=1e-5)  # no image sees another


@pytest.mark.quick
@pytest.mark.parametrize(
    ("size", "grid", "widths", "stride"),
    [
        (8, (8, 8), (128,), 1), (16, (8, 8), (64, 128), 1), (28, (7, 7), (32, 64, 128), 1),
        (32, (8, 8), (32, 64, 128), 1), (48, (12, 12), (32, 64, 128), 1), (64, (8, 8), (32, 64, 128), 2),
        (96, (12, 12), (32, 64, 128), 2), (128, (8, 8), (32, 64, 128), 4), (224, (7, 7), (32, 32, 64, 128), 4),
        ((30, 60), (4, 8), (32, 64, 128), 2), (1, (1, 1), (128,), 1),
    ],
)  # fmt: skip
def test_images_of_any_size_become_a_small_grid(
    size: int | tuple[int, int], grid: tuple[int, int], widths: tuple[int, ...], stride: int
) -> None:
    made = ConvStem(size=32).for_images(size, 1)
    assert (made.grid, made.widths, made.stride, made.channels) == (grid, widths, stride, 1)
    high, wide = made.pixels
    pixels = torch.zeros(2, 1, high, wide)
    stem = made.build(16)
    assert stem(pixels, context=stem.layout(pixels)).shape == (2, grid[0] * grid[1], 16)


def test_it_tells_a_bright_image_from_a_dark_one() -> None:
    stem = ConvStem(size=12, channels=1, position=None, widths=(16, 32), depths=(0, 0)).build(8)
    generator = torch.Generator().manual_seed(0)
    for parameter in stem.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    dark = torch.rand(1, 1, 12, 12, generator=generator)
    bright = torch.cat([dark, 3 * dark])
    tokens = stem(bright, context=stem.layout(bright))[:, 14]  # a cell of the middle, away from the border
    assert (tokens[0] - tokens[1]).abs().max() > 0.1
    stem.project.weight.data[:, -1] = 0.0  # control: without the mean colour the norms make them alike
    tokens = stem(bright, context=stem.layout(bright))[:, 14]
    assert (tokens[0] - tokens[1]).abs().max() < 1e-3


def test_what_is_no_stem_is_refused() -> None:
    for wrong in ({"widths": ()}, {"depths": (1, 1)}, {"stride": 0}, {"dropout": 1.0}, {"size": 0}):
        with pytest.raises(UserError):
            ConvStem(**({"size": 32} | wrong))
    stem = ConvStem(size=8, channels=1).build(8)
    for pixels in (torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.long), torch.zeros(8, 8)):
        with pytest.raises(UserError):
            stem.layout(pixels)


def strokes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Gray images 16 x 16 of a short stroke anywhere, in noise: which of four ways it runs."""
    random = np.random.default_rng(seed)
    pixels = random.normal(0, 0.3, (count, 1, 16, 16)).astype(np.float32)
    ways = random.integers(0, 4, count)
    steps = ((0, 1), (1, 0), (1, 1), (1, -1))
    for image, way in zip(pixels, ways, strict=True):
        row, column = random.integers(5, 11, 2)
        for k in range(-3, 4):
            image[0, row + k * steps[way][0], column + k * steps[way][1]] += 1.5
    return torch.from_numpy(pixels), torch.from_numpy(ways)


def accuracy_after(embed: Embed, steps: int) -> float:
    """Of a small Transformer behind an embedding, on other strokes than it has learned from."""
    stack = Stack(width=32, depth=1, block=Block(mixer=Attention(heads=2)))
    net = Model(embed=embed, stack=stack, head=Pooled(classes=4, pool="mean"), init="bert").build(seed=0).train()
    pixels, ways = strokes(32 * steps, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 10) * (1 - n / steps))
    for step in range(steps):
        rows = slice(32 * step, 32 * step + 32)
        optimizer.zero_grad()
        F.cross_entropy(net(pixels[rows]).logits, ways[rows]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    fresh, truth = strokes(400, 2)
    with torch.no_grad():
        return float((net.eval()(fresh).logits.argmax(1) == truth).float().mean())


def test_shapes_anywhere_are_learned_sooner_than_from_patches() -> None:
    assert accuracy_after(ConvStem(size=16, widths=(16, 32), depths=(0, 1), channels=1), 130) > 0.9
    assert accuracy_after(Patches(size=16, patch=4, channels=1, cls=False), 130) < 0.8  # control: nothing in front
