"""Matching and the loss of detection: the optimum by brute force, transformers' loss, and what must not matter."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DetrConfig
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

from anyformer import UserError, preset
from anyformer.objectives import Batch, Detect
from anyformer.objectives.matching import assign
from tests.laws.nets import numbers

CLASSES = 4


def cheapest(cost: Tensor) -> float:
    """The least sum over all ways to give each target an answer of its own."""
    answers, targets = cost.shape
    ways = itertools.permutations(range(answers), targets)
    return min(sum(cost[a, t].item() for t, a in enumerate(way)) for way in ways)


@pytest.mark.quick
def test_a_thousand_random_matchings_are_the_cheapest_there_are() -> None:
    generator = torch.Generator().manual_seed(0)
    worse = 0
    for case in range(1000):
        answers = int(torch.randint(1, 6, (), generator=generator))
        targets = int(torch.randint(0, answers + 1, (), generator=generator))
        cost = torch.randn(answers, targets, generator=generator, dtype=torch.float64)
        if case % 3 == 0:
            cost = cost.round()  # with ties
        found = assign(cost[None], [targets])[0]
        assert sorted(found[found >= 0].tolist()) == list(range(targets))  # each target once
        pairs = [(a, t) for a, t in enumerate(found.tolist()) if t >= 0]
        assert sum(cost[a, t].item() for a, t in pairs) == pytest.approx(cheapest(cost), abs=1e-9)
        worse += sum(cost[t, t].item() for t in range(targets)) > cheapest(cost) + 1e-9
    assert worse > 300  # control: matching in the order they come is not the cheapest


def test_batches_layers_and_counts_are_kept_apart() -> None:
    costs = numbers(3, 2, 6, 4)  # layers, images, answers, targets
    found = assign(costs, [4, 2])
    assert found.shape == (3, 2, 6)
    for layer in range(3):
        assert torch.equal(found[layer, 0], assign(costs[layer, :1], [4])[0])
        assert torch.equal(found[layer, 1], assign(costs[layer, 1:, :, :2], [2])[0])
    more = assign(numbers(1, 2, 5), [5])[0]  # more targets than answers: every answer has one
    assert (more >= 0).all() and more[0] != more[1]
    broken = costs[:1, :1].clone()
    broken[0, 0, 2] = torch.nan
    assert assign(broken, [4])[0, 0, 2] == -1


def drawn(counts: list[int], queries: int = 6, layers: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, boxes and targets at random; rows with fewer objects are filled up."""
    batch = len(counts)
    logits = numbers(layers, batch, queries, CLASSES + 1, seed=seed)
    boxes = numbers(layers, batch, queries, 4, seed=seed + 1).sigmoid()
    targets = torch.full((batch, max([1, *counts]), 5), -100.0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed + 2)
    for row, count in enumerate(counts):
        targets[row, :count, 0] = torch.randint(0, CLASSES, (count,), generator=generator).double()
        targets[row, :count, 1:] = torch.rand(count, 4, generator=generator, dtype=torch.float64) * 0.5 + 0.2
    return logits, boxes, targets


def theirs(logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """Transformers' loss of all layers; their weight of the class is that of the whole batch."""
    config = DetrConfig(num_labels=CLASSES, auxiliary_loss=True, decoder_layers=len(logits))
    rows = [target[target[:, 0] != -100] for target in targets]
    labels = [{"class_labels": row[:, 0].long(), "boxes": row[:, 1:]} for row in rows]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # the weights of their cross-entropy have the default type
    try:
        return ForObjectDetectionLoss(logits[-1], labels, "cpu", boxes[-1], config, logits, boxes)[0]
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("counts", [[3], [1], [6], [2, 2, 2]], ids=str)
def test_the_loss_and_its_gradients_equal_transformers(counts: list[int]) -> None:
    """Where all images hold as many objects, their mean over the batch and ours over each image are the same."""
    logits, boxes, targets = drawn(counts)
    mine = [x.clone().requires_grad_() for x in (logits, boxes)]
    yours = [x.clone().requires_grad_() for x in (logits, boxes)]
    a = Detect().each(*mine, targets).sum() / sum(counts)
    b = theirs(*yours, targets)
    assert abs(a - b) <= 1e-9
    a.backward()
    b.backward()
    for x, y in zip(mine, yours, strict=True):
        assert (x.grad - y.grad).abs().max() <= 1e-9


@pytest.mark.quick
def test_the_order_of_objects_and_of_padding_does_not_matter() -> None:
    logits, boxes, targets = drawn([4, 0, 2])
    loss = Detect().each(logits, boxes, targets)
    for order in ([3, 1, 0, 2], [2, 3, 1, 0]):
        assert (Detect().each(logits, boxes, targets[:, order]) - loss).abs().max() <= 1e-12
    changed = targets.clone()
    changed[0, 0, 1] += 0.1
    assert (Detect().each(logits, boxes, changed) - loss).abs().max() > 1e-3  # control


def test_an_image_counts_for_itself_in_any_batch() -> None:
    logits, boxes, targets = drawn([3, 0, 1])
    whole = Detect().each(logits, boxes, targets)
    for row in range(3):
        alone = Detect().each(*(x[:, row : row + 1] for x in (logits, boxes)), targets[row : row + 1])
        assert (alone[:, 0] - whole[:, row]).abs().max() <= 1e-12
    assert Detect().weight(batch_of(targets)) == 5  # three, one for the empty image, one


def test_empty_images_learn_that_there_is_nothing() -> None:
    logits, boxes, targets = drawn([0, 0])
    for empty in (targets, targets[:, :0]):
        loss = Detect().each(logits, boxes, empty)
        wanted = -logits.log_softmax(-1)[..., -1].mean(-1)
        assert (loss - wanted).abs().max() <= 1e-12


def batch_of(targets: Tensor, pixels: Tensor | None = None) -> Batch:
    return Batch((pixels,), targets, torch.arange(len(targets)))


def test_every_layer_is_held_to_the_targets() -> None:
    """The objective of a network is the mean of its layers, each through the norm and the head; micro-batches add."""
    net: Any = preset("detr-r50-tiny").build(seed=0, dtype=torch.float64).eval()
    pixels, targets = numbers(3, 3, 32, 32), drawn([2, 0, 3])[2]
    objective = Detect()
    whole = objective.loss(net, batch_of(targets, pixels))
    out = net(pixels, layers=True)
    by_hand = torch.zeros((), dtype=torch.float64)
    for hidden in out.layers:
        answer = net.head(hidden, out.context, None)
        by_hand = by_hand + objective.each(answer.logits, answer.boxes, targets).sum()
    assert len(out.layers) == 3 and abs(whole - by_hand / 3) <= 1e-9
    parts = [objective.loss(net, batch_of(targets[row : row + 1], pixels[row : row + 1])) for row in range(3)]
    assert abs(whole - sum(parts)) <= 1e-9
    last = objective.row_losses(net(pixels), batch_of(targets, pixels))
    assert (last * torch.tensor([2, 1, 3]) - objective.each(out.logits, out.boxes, targets)).abs().max() <= 1e-9


def test_numbers_that_are_none_reach_the_loss() -> None:
    """A diverged model is not hidden by the matching."""
    logits, boxes, targets = drawn([2])
    logits[0, 0, 1] = torch.nan
    loss = Detect().each(logits, boxes, targets)
    assert loss[0].isnan().all() and loss[1:].isfinite().all()


@pytest.mark.quick
def test_settings_and_a_missing_library_are_told(monkeypatch: Any) -> None:
    for settings in ({"distance": -1.0}, {"overlap": -1.0}, {"nothing": 0.0}):
        with pytest.raises(UserError, match=next(iter(settings))):
            Detect(**settings)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UserError, match="scipy"):
        assign(torch.zeros(1, 2, 1), [1])
