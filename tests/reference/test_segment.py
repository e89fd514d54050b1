"""A class for every pixel: the head against its formula, gradients to the pixels, and what it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer import (
    MLP,
    Attention,
    Block,
    Embed,
    Grid,
    LayerNorm,
    Maps,
    Model,
    Patches,
    ResNet,
    SegmentHead,
    Stack,
    Tokens,
    UserError,
)

KINDS, SIDE = 3, 16
BACKBONE = ResNet(depths=(1, 1), width=8, stem="small")  # cells of 2 pixels


def network(embed: Embed, cell: int) -> Model:
    block = Block(mixer=Attention(heads=2), feed=MLP(width=64), norm=LayerNorm())
    return Model(embed=embed, stack=Stack(width=32, depth=1, block=block), head=SegmentHead(classes=KINDS, cell=cell))


def backbone(*, frozen: bool = False) -> Model:
    return network(Maps(backbone=BACKBONE, size=SIDE, position=Grid(), frozen=frozen), 2)


def scenes(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (B,3,S,S) of a block of one of two colours on noise, and the class of every pixel (B,S,S)."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(rows, 3, SIDE, SIDE, generator=generator) * 0.3
    labels = torch.zeros(rows, SIDE, SIDE, dtype=torch.long)
    for image, wanted in zip(pixels, labels, strict=True):
        top, left, kind = (int(torch.randint(high, (1,), generator=generator)) for high in (9, 9, 2))
        image[kind, top : top + 8, left : left + 8] += 2
        wanted[top : top + 8, left : left + 8] = kind + 1
    return pixels, labels


def interpolated(cells: Tensor, cell: int) -> Tensor:
    """Bilinear by hand, a pixel at a time: the middles of cells keep their values, edges repeat."""
    rows, columns = cells.shape[-2:]
    made = torch.empty(*cells.shape[:-2], rows * cell, columns * cell, dtype=cells.dtype)
    for y in range(rows * cell):
        for x in range(columns * cell):
            down, across = max((y + 0.5) / cell - 0.5, 0), max((x + 0.5) / cell - 0.5, 0)
            r, c = int(down), int(across)
            r2, c2 = min(r + 1, rows - 1), min(c + 1, columns - 1)
            a, b = down - r, across - c
            upper = (1 - b) * cells[..., r, c] + b * cells[..., r, c2]
            lower = (1 - b) * cells[..., r2, c] + b * cells[..., r2, c2]
            made[..., y, x] = (1 - a) * upper + a * lower
    return made


def test_the_head_is_its_formula_and_leaves_the_class_token_out() -> None:
    spec = network(Patches(size=(8, 12), patch=4, position=Grid(), cls=True), 4)
    net: Any = spec.build(seed=0, dtype=torch.float64)
    pixels = torch.randn(2, 3, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = net.before_head(pixels).hidden
    assert hidden.shape[1] == 1 + 2 * 3
    cells = (hidden[:, 1:] @ net.head.out.weight.T + net.head.out.bias).mT.reshape(2, KINDS, 2, 3)
    assert (net(pixels).logits - interpolated(cells, 4)).abs().max() <= 1e-12
    assert net(pixels).logits.shape == (2, KINDS, 8, 12)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_reach_the_pixels_and_a_frozen_backbone_stays(frozen: bool) -> None:
    net = backbone(frozen=frozen).build(seed=0).train()
    before = {name: p.detach().clone() for name, p in net.embed.backbone.named_parameters()}
    pixels, labels = scenes(4, 0)
    pixels.requires_grad_()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    F.cross_entropy(net(pixels).logits, labels).backward()
    optimizer.step()
    assert pixels.grad is not None and pixels.grad.abs().sum() > 0
    changed = {name for name, p in net.embed.backbone.named_parameters() if not torch.equal(p, before[name])}
    assert bool(changed) is not frozen


def test_it_learns_which_pixels_are_of_which_thing() -> None:
    net = backbone().build(seed=0).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for step in range(60):
        pixels, labels = scenes(16, step)
        loss = F.cross_entropy(net(pixels).logits, labels)
        if step == 0:
            assert abs(loss.item() - torch.tensor(float(KINDS)).log().item()) < 0.3  # chance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pixels, labels = scenes(64, 999)
    with torch.no_grad():
        right = (net.eval()(pixels).logits.argmax(1) == labels).float().mean().item()
        shuffled = (net(pixels.roll(1, 0)).logits.argmax(1) == labels).float().mean().item()
    assert right > 0.93
    assert shuffled < 0.8  # control: the labels of other images


def test_text_has_no_pixels() -> None:
    with pytest.raises(UserError, match="SegmentHead needs rows and columns, Tokens gives none"):
        network(Tokens(vocab=10), 2)
    with pytest.raises(UserError, match="classes 0"):
        SegmentHead(classes=0, cell=2)
