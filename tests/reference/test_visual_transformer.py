"""Visual Transformers (2006.03677) against the paper's sums over places and tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer import MLP, Attention, Block, Model, ResNet, Rope, UserError, VisualTransformer, preset
from anyformer.core.context import lay_out
from tests.laws.nets import filled, gap, numbers

SMALL = ResNet(depths=(1, 1), width=3, stem="small")
BLOCK = Block(mixer=Attention(heads=2), feed=MLP(act="relu", width=6))


def made(**settings: Any) -> Any:
    spec = VisualTransformer(**({"backbone": SMALL, "depth": 2, "tokens": 3, "width": 8, "block": BLOCK} | settings))
    return filled(spec.build().double().eval())


def naive(net: Any, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Token by token and place by place; the block over the tokens is the library's own."""
    maps = net.backbone(pixels)
    batch, channels, high, wide = maps.shape
    places = [[maps[b, :, i, j] for i in range(high) for j in range(wide)] for b in range(batch)]
    tokens: list[list[Tensor]] = [[] for _ in range(batch)]
    drawn = []
    for step in net.rounds:
        shares = []
        for b in range(batch):
            if step.filter is not None:
                filters = list(step.filter.weight)  # W_A, one filter a token
            else:
                filters = [step.again.weight @ token for token in tokens[b]]  # W_R = T W
            found = []
            for one in filters:
                share = torch.stack([x @ one for x in places[b]]).softmax(0)  # over all places
                shares.append(share)
                found.append(step.value.weight @ sum(s * x for s, x in zip(share, places[b], strict=True)))
            context = lay_out(1, len(found), torch.device("cpu"))
            tokens[b] = list(step.block(torch.stack(found)[None], context, None, ())[0][0])
            for i, x in enumerate(places[b]):
                fits = [(step.query.weight @ x) @ (step.key.weight @ t) / len(t) ** 0.5 for t in tokens[b]]
                back = torch.stack(fits).softmax(0)  # over the tokens
                places[b][i] = x + sum(f * (step.back.weight @ t) for f, t in zip(back, tokens[b], strict=True))
        drawn.append(torch.stack(shares).view(batch, -1, high, wide))
    return torch.stack([torch.stack(row, 1) for row in places]).view(batch, channels, high, wide), drawn


@pytest.mark.parametrize("tokenizer", ["filter", "recurrent"])
def test_maps_tokens_and_gradients_equal_the_sums_of_the_paper(tokenizer: Any) -> None:
    net = made(tokenizer=tokenizer)
    pixels = numbers(2, 3, 6, 4).requires_grad_()
    got, (wanted, shares) = net(pixels), naive(net, pixels)
    assert got.shape == (2, 24, 3, 2) and gap(got, wanted) < 1e-9
    for mine, theirs in zip(net.token_maps(pixels), shares, strict=True):
        assert mine.shape == (2, 3, 3, 2) and gap(mine, theirs) < 1e-9 and gap(mine.sum((2, 3)), torch.ones(1)) < 1e-9
    weight, leaves = numbers(*got.shape, seed=3), [pixels, *(p for p in net.parameters() if p.requires_grad)]
    for mine, theirs in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (got, wanted)), strict=True):
        assert gap(mine, theirs) < 1e-9 and mine.any()
    assert gap(got, net.backbone(pixels)) > 1e-3  # control: the rounds do something


def test_the_last_stage_is_replaced_by_one_name_and_costs_less() -> None:
    """At 224 pixels ResNet-50 takes 4.09 billion multiplications, with visual tokens for its last stage 3.50."""

    def cost(spec: Model) -> float:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            spec.build(device="meta").eval()(torch.empty(1, 3, 224, 224, device="meta"))
        return counter.get_total_flops() / 2e9

    plain, visual = cost(preset("resnet-50")), cost(preset("vt-resnet"))
    assert plain == pytest.approx(4.089, abs=0.001) and visual == pytest.approx(3.499, abs=0.001)
    backbone = preset("vt-resnet").embed.backbone
    assert backbone.backbone == ResNet(depths=ResNet().depths[:-1]) and (backbone.channels, backbone.stride) == (
        1024,
        16,
    )


@pytest.mark.quick
def test_what_does_not_fit_is_refused() -> None:
    for make, words in (
        (lambda: VisualTransformer(tokens=0), "tokens 0"),
        (lambda: VisualTransformer(width=9), "width 9 is not divisible by heads 8"),
        (lambda: VisualTransformer(block=Block(mixer=Attention(heads=8), relative=Rope())), "no order"),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert words in str(caught.value) and len(str(caught.value)) <= 300
