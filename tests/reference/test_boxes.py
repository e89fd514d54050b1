"""Boxes against formulas written out: corners, overlap and generalised overlap, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers.loss.loss_for_object_detection import generalized_box_iou

from anyformer import Boxes, Model, Queries, SinusoidGrid, Stack, UserError
from anyformer.core.context import lay_out
from anyformer.objectives.boxes import centred, corners, generalised_overlap, overlap
from tests.laws.nets import filled, numbers

pytestmark = pytest.mark.quick


def drawn(count: int, seed: int) -> Tensor:
    """Corners of boxes anywhere in and around the unit square."""
    start = numbers(count, 2, seed=seed) * 0.4
    size = numbers(count, 2, seed=seed + 100).abs() * 0.5 + 1e-3
    return torch.cat([start, start + size], -1)


def naive(a: list[float], b: list[float]) -> tuple[float, float]:
    """Overlap and generalised overlap of two boxes, a number at a time."""
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    shared = wide * high
    joint = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return shared / joint, shared / joint - (hull - joint) / hull


def test_overlaps_equal_the_formula_for_every_pair() -> None:
    a, b = drawn(40, 0), drawn(30, 1)
    plain, general = overlap(a[:, None], b[None])[0], generalised_overlap(a[:, None], b[None])
    for i in range(40):
        for j in range(30):
            share, generalised = naive(a[i].tolist(), b[j].tolist())
            assert abs(plain[i, j] - share) <= 1e-12 and abs(general[i, j] - generalised) <= 1e-12
    assert (plain == 0).any() and (plain > 0.3).any() and general.min() < -0.3  # all kinds of pairs were among them


def test_generalised_overlap_and_its_gradient_equal_transformers() -> None:
    a, b = drawn(12, 2).requires_grad_(), drawn(9, 3).requires_grad_()
    c, d = (x.detach().clone().requires_grad_() for x in (a, b))
    mine, theirs = generalised_overlap(a[:, None], b[None]), generalized_box_iou(c, d)
    assert (mine - theirs).abs().max() <= 1e-12
    for value in (mine, theirs):
        value.square().sum().backward()
    assert (a.grad - c.grad).abs().max() <= 1e-9 and (b.grad - d.grad).abs().max() <= 1e-9


def test_known_cases() -> None:
    box = torch.tensor([0.0, 0.0, 2.0, 2.0])
    assert generalised_overlap(box, box) == 1
    assert overlap(box, torch.tensor([1.0, 1.0, 3.0, 3.0]))[0] == pytest.approx(1 / 7)
    assert generalised_overlap(box, torch.tensor([2.0, 2.0, 4.0, 4.0])) == pytest.approx(-0.5)  # half the hull is empty
    nothing = torch.zeros(4, requires_grad=True)
    generalised_overlap(nothing, nothing).backward()
    assert nothing.grad is not None and nothing.grad.isfinite().all()


def test_corners_and_centres_are_each_others_reverse() -> None:
    boxes = drawn(50, 4)
    assert (corners(centred(boxes)) - boxes).abs().max() <= 1e-12
    assert corners(torch.tensor([0.5, 0.4, 0.2, 0.6])).tolist() == pytest.approx([0.4, 0.1, 0.6, 0.7])


def test_the_head_is_its_formula() -> None:
    head = filled(Boxes(classes=3).build(8, None).double())
    hidden = numbers(2, 5, 8)
    answer = head(hidden, None, None)
    x = hidden
    for layer in head.box[:2]:
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    box = 1 / (1 + (-(x @ head.box[2].weight.T + head.box[2].bias)).exp())
    assert (answer.boxes - box).abs().max() <= 1e-12
    assert (answer.logits - (hidden @ head.out.weight.T + head.out.bias)).abs().max() <= 1e-12
    assert answer.logits.shape == (2, 5, 4)  # three kinds and none
    single, rough = head.float(), hidden.float()
    with torch.autocast("cpu", torch.bfloat16):
        half = single(rough, None, None)
    assert half.logits.dtype == torch.bfloat16 and (half.boxes - single(rough, None, None).boxes).abs().max() <= 1e-6
    assert answer.boxes.min() > 0 and answer.boxes.max() < 1


def test_anchored_boxes_start_at_their_own_cells() -> None:
    head = Model(embed=Queries(6, anchors=(2, 3)), stack=Stack(width=8, depth=0), head=Boxes(classes=3, anchors=(2, 3)))
    net = head.build(seed=0, dtype=torch.float64)
    start = net.head(torch.zeros(1, 6, 8, dtype=torch.float64), None, None).boxes[0]
    wanted = [[(column + 0.5) / 3, (row + 0.5) / 2, 1 / 3, 1 / 2] for row in range(2) for column in range(3)]
    assert (start - torch.tensor(wanted, dtype=torch.float64)).abs().max() <= 1e-6
    with pytest.raises(UserError, match="5 tokens meet 6 anchors"):
        net.head(torch.zeros(1, 5, 8, dtype=torch.float64), None, None)
    with pytest.raises(UserError, match="do not fill a grid"):
        Queries(5, anchors=(2, 3))
    with pytest.raises(UserError, match="has no cell"):
        Boxes(classes=3, anchors=(0, 3))


@torch.no_grad()
def test_anchored_queries_start_with_what_the_image_holds_there() -> None:
    embed = (
        Model(embed=Queries(16, anchors=(4, 4)), stack=Stack(width=32, depth=0))
        .build(seed=0, dtype=torch.float64)
        .embed
    )
    cells = 64  # a grid of 8 x 8, of which the last column is padding
    real = torch.ones(1, cells, dtype=torch.bool).unflatten(1, (8, 8))
    real[:, :, 7] = False
    mask = real.flatten(1)
    places = SinusoidGrid(leading=0).build(32)(
        lay_out(1, cells, torch.device("cpu"), mask=mask, grid=(8, 8)), torch.float64
    )
    row, column = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    memory = torch.stack([column, row], -1).flatten(0, 1).double()[None]
    memory = torch.cat([memory, torch.full((1, cells, 32 - 2), 1e6, dtype=torch.float64)], -1)
    memory = memory.masked_fill(~mask[..., None], -1e9)  # what padding holds is not seen
    context = replace(embed.layout(memory), memory=memory, memory_mask=mask, memory_added=places)
    seen = embed(memory, context=context)[0, :, :2]
    at = torch.tensor([[(c + 0.5) / 4 * 7 - 0.5, (r + 0.5) / 4 * 8 - 0.5] for r in range(4) for c in range(4)]).double()
    assert (seen - at).abs().max() < 1.0  # within a cell of the place it stands for
    far = embed(memory, context=replace(context, memory_added=places.flip(1)))[0, :, :2]
    assert (far - at).abs().max() > 2.0  # control: memory whose places are wrong is not found
    assert not embed(memory, context=replace(context, memory_added=None)).any()
