"""Local relation (1904.11491) against its formula, place by place; LR-Net-50 against the table it is published with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer import LocalRelation, LRNet, Model, NoRelative, ResNet, UserError, preset
from anyformer.mixers.local_relation import Relation
from anyformer.nets.batch_norm import BatchNorm
from tests.laws.nets import filled, gap, numbers
from tests.reference.test_grid_mixers import around, cell

EXACT = 1e-9
FITS = ("squared", "absolute", "product")


def composed(q: Tensor, k: Tensor, fit: str) -> Tensor:
    return {"squared": -((q - k) ** 2), "absolute": -abs(q - k), "product": q * k}[fit]


def prior(net: Relation, down: int, along: int) -> Tensor:
    """The small network of the relative place, one number for each set of weights."""
    reach = net.window // 2
    place = torch.tensor([down / reach, along / reach], dtype=torch.float64)
    hidden = torch.stack([row @ place for row in net.geometry.inner]) + net.geometry.bias
    return net.geometry.outer @ hidden.clamp(min=0)


def naive(maps: Tensor, net: Relation) -> Tensor:
    """Every output channel of every place by itself."""
    batch, channels, high, wide = maps.shape
    x, reach = maps.permute(0, 2, 3, 1), net.window // 2
    q, k, v = net.q(x), net.k(x), net.v(x)
    rows = []
    for b in range(batch):
        for i in range(0, high, net.stride):
            for j in range(0, wide, net.stride):
                near = [(m, n) for m in range(i - reach, i + reach + 1) for n in range(j - reach, j + reach + 1)
                        if 0 <= m < high and 0 <= n < wide]  # fmt: skip
                for c in range(channels):
                    at = c // net.share
                    scores = [composed(q[b, i, j, at], k[b, m, n, at], net.fit) + prior(net, m - i, n - j)[at]
                              for m, n in near]  # fmt: skip
                    shares = torch.stack(scores).softmax(0)
                    rows.append(sum(s * v[b, m, n, c] for s, (m, n) in zip(shares, near, strict=True)))
    steps = (-(-high // net.stride), -(-wide // net.stride))
    return torch.stack(rows).view(batch, *steps, channels).permute(0, 3, 1, 2)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("fit", FITS)
def test_the_layer_on_maps_equals_a_loop_over_places_and_channels(fit: Any, stride: int) -> None:
    for channels, share, high, wide in ((4, 2, 4, 5), (5, 2, 3, 4)):  # 5 channels: the last set serves one
        net = filled(Relation(channels, 3, share, fit=fit, stride=stride).double())
        maps = numbers(1, channels, high, wide).requires_grad_()
        got, wanted = net(maps), naive(maps, net)
        assert gap(got, wanted) < EXACT
        weight, leaves = numbers(*got.shape, seed=3), [maps, *net.parameters()]
        for mine, theirs in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (got, wanted)), strict=True):
            assert gap(mine, theirs) < EXACT
        assert gap(got.roll(1, -1), wanted) > 1e-3  # control


@pytest.mark.parametrize("masked", [False, True], ids=["real", "padded"])
@pytest.mark.parametrize("leading", [0, 2])
def test_the_mixer_equals_a_loop_over_pairs_of_tokens(leading: int, masked: bool) -> None:
    """Tokens before the grid see all and are seen by all, without a term of place."""
    grid = (3, 4, leading)
    context = around(grid, masked)
    net = filled(LocalRelation(window=3, share=3).build(8, causal=False, relative=NoRelative()).double())
    layer, length = net.relation, context.index.shape[1]
    x = numbers(2, length, 8).requires_grad_()
    q, k, v = layer.q(x), layer.k(x), layer.v(x)
    kept = torch.ones(2, length, dtype=torch.bool) if context.mask is None else context.mask
    places = {(i, j): prior(layer, i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)}
    images = []
    for b in range(2):
        for i in range(length):
            one, scores = cell(i, grid), {}
            for j in range(length):
                other = cell(j, grid)
                if not kept[b, j]:
                    continue
                if one is None or other is None:
                    scores[j] = composed(q[b, i], k[b, j], "squared")
                elif (far := (other[0] - one[0], other[1] - one[1])) in places:
                    scores[j] = composed(q[b, i], k[b, j], "squared") + places[far]
            if not scores:
                images.append(0 * v[b, i])
                continue
            shares = torch.stack(list(scores.values())).softmax(0).repeat_interleave(3, 1)[:, :8]  # (keys,D)
            images.append((shares * v[b, list(scores)]).sum(0))
    wanted = net.out(torch.stack(images).view(2, length, 8))
    got = net(x, context, None, ())
    assert gap(got[kept], wanted[kept]) < EXACT
    weight, leaves = numbers(2, length, 8, seed=3) * kept[..., None], [x, *net.parameters()]
    for mine, theirs in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (got, wanted)), strict=True):
        assert gap(mine, theirs) < EXACT


def counts(spec: Model) -> tuple[int, float]:
    """Learned parameters, and billions of multiplications with an addition in matrices and convolutions at 224 pixels.

    That is how ResNet-50 is counted (4.09; published tables say 3.8 to 4.3). What a local relation layer does beside
    its matrices, k^2 such steps for each value, the counter does not see; `aggregation` adds it.
    """
    net = spec.build(device="meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.empty(1, 3, 224, 224, device="meta"))
    learned = sum(p.numel() for p in net.parameters() if p.requires_grad)
    return learned, counter.get_total_flops() / 2e9


def aggregation(spec: LRNet) -> float:
    side, total = 112, 112**2 * 64 * 49
    for stage, depth in enumerate(spec.depths):
        side //= 2
        total += depth * side**2 * spec.middle * 2**stage * 49
    return total / 1e9


@pytest.mark.quick
def test_w13_lr_net_50_has_the_size_and_the_cost_of_its_table() -> None:
    parameters, cost = counts(preset("lr-net-50"))
    assert abs(parameters / 23.3e6 - 1) < 0.02
    assert abs(cost / 4.3 - 1) < 0.05 and abs((cost + aggregation(LRNet())) / 4.3 - 1) < 0.05
    parameters, cost = counts(preset("resnet-50"))
    assert parameters == 25_557_032 and abs(cost / 4.3 - 1) < 0.05
    wider = sum(p.numel() for p in LRNet(middle=110).build().to("meta").parameters()) + 2_049_000
    assert abs(wider / 23.3e6 - 1) > 0.02  # control


@pytest.mark.quick
def test_w13_lr_net_50_has_the_stages_of_its_table() -> None:
    net = LRNet().build().to("meta")
    sizes = []
    handles = [
        stage[-1].register_forward_hook(lambda *seen: sizes.append(tuple(seen[2].shape))) for stage in net.stages
    ]
    net(torch.empty(1, 3, 224, 224, device="meta"))
    for handle in handles:
        handle.remove()
    assert sizes == [(1, 256, 56, 56), (1, 512, 28, 28), (1, 1024, 14, 14), (1, 2048, 7, 7)]
    assert [stage[0].spatial.relation.v.out_features for stage in net.stages] == [100, 200, 400, 800]
    assert [len(stage) for stage in net.stages] == [3, 4, 6, 3]
    assert net.stem[1].relation.v.out_features == 64 and net.stem[1].relation.stride == 2
    rival = ResNet().build().to("meta")
    assert [stage[0].spatial.conv.out_channels for stage in rival.stages] == [64, 128, 256, 512]
    assert [len(stage) for stage in rival.stages] == [3, 4, 6, 3]


def test_sizes_are_rounded_up_as_a_resnet_rounds_them() -> None:
    for size in ((32, 48), (33, 47)):
        for stem in ("imagenet", "small"):
            shapes = [
                kind(depths=(1, 1), width=4, stem=stem, **extra).build()(torch.zeros(1, 3, *size)).shape
                for kind, extra in ((LRNet, {"middle": 6, "window": 3}), (ResNet, {}))
            ]
            assert shapes[0] == shapes[1]


def test_statistics_learn_in_training_and_rest_in_evaluation() -> None:
    net = preset("lr-net-50-tiny").build(seed=0)
    norms = [module for module in net.modules() if isinstance(module, BatchNorm)]
    before = [norm.mean.clone() for norm in norms]
    pixels = numbers(4, 3, 32, 32, dtype=torch.float32)
    net.eval()(pixels)
    assert all(torch.equal(norm.mean, old) for norm, old in zip(norms, before, strict=True))
    net.train()(pixels)
    assert not any(torch.equal(norm.mean, old) for norm, old in zip(norms, before, strict=True))


@pytest.mark.quick
def test_what_does_not_fit_is_refused() -> None:
    for make, words in (
        (lambda: LRNet(window=4), "window 4 has no middle; use 5"),
        (lambda: LRNet(middle=0), "middle 0 is below 1; use 100"),
        (lambda: LRNet(share=0), "share 0 is below 1; use 8"),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert words in str(caught.value) and len(str(caught.value)) <= 300
