"""Two towers against the formula, the contrast of their pairs, and the laws of both sides."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anyformer import (
    Attention,
    Block,
    CoAttention,
    Learned,
    Model,
    Patches,
    Pooled,
    Stack,
    TokenHead,
    Tokens,
    Towers,
    UserError,
)
from anyformer.checkpoints.folder import open_folder, save_own
from anyformer.objectives import Batch, Contrast
from tests.laws.nets import EXACT, build, gap, numbers, tokens

PLAIN = Block(mixer=Attention(heads=4))
TEXT = Model(
    embed=Tokens(vocab=17, position=Learned(24)), stack=Stack(width=16, depth=2, block=PLAIN, causal=True),
    head=Pooled(pool="last", dense=6, bias=False),
)  # fmt: skip
IMAGE = Model(
    embed=Patches(size=8, patch=4, channels=2), stack=Stack(width=12, depth=1, block=PLAIN),
    head=Pooled(dense=6, bias=False),
)  # fmt: skip
CLIP = Towers(first=TEXT, second=IMAGE, init="xavier")
WORDS, PIXELS = tokens(3, 7), numbers(3, 2, 8, 8)
MASK = torch.ones(3, 7, dtype=torch.bool)
MASK[1, 4:] = MASK[2, :3] = False


def batch(targets: list[int]) -> Batch:
    return Batch((WORDS, PIXELS), torch.tensor(targets), torch.arange(3), {"first_mask": MASK})


def test_logits_and_contrast_equal_the_formula_forward_and_backward() -> None:
    net = build(CLIP)
    other = copy.deepcopy(net)
    with torch.no_grad():
        net.scale.fill_(0.7)
        other.scale.fill_(0.7)
    u, v = other.first(WORDS, mask=MASK).pooled, other.second(PIXELS).pooled
    wanted = torch.zeros(3, 3, dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            cosine = (u[i] * v[j]).sum() / (u[i].square().sum().sqrt() * v[j].square().sum().sqrt())
            wanted[i, j] = other.scale.exp() * cosine
    out = net(WORDS, PIXELS, first_mask=MASK)
    assert gap(out.logits, wanted) < EXACT
    found = 0.0
    for i in range(3):  # each direction asks for the right one of three
        found = found - wanted[i].log_softmax(0)[i] / 2 - wanted[:, i].log_softmax(0)[i] / 2
    loss = Contrast().loss(net, batch([0, 0, 0]))
    assert gap(loss, found) < EXACT and Contrast().weight(batch([0, 0, 0])) == 3
    assert gap(Contrast().row_losses(out, batch([0, 0, 0])).sum(), found) < EXACT
    loss.backward()
    found.backward()
    for (name, p), q in zip(net.named_parameters(), other.named_parameters(), strict=True):
        assert p.grad is not None and q[1].grad is not None and gap(p.grad, q[1].grad) < EXACT, name
    assert net.scale.grad is not None and net.scale.grad.abs() > 1e-6
    turned = Contrast().each(out.logits.roll(1, 1), torch.zeros(3))  # control: the diagonal is what is asked for
    assert gap(turned.sum(), found) > 1e-3


def test_a_row_that_does_not_count_is_still_a_wrong_answer_of_the_others() -> None:
    net = build(CLIP)
    every = Contrast().row_losses(net(WORDS, PIXELS, first_mask=MASK), batch([0, 0, 0]))
    some = batch([0, -100, 0])
    assert Contrast().weight(some) == 2
    assert gap(Contrast().loss(net, some), every[0] + every[2]) < EXACT


@pytest.mark.quick
@torch.no_grad()
def test_vectors_have_length_one_and_rows_stand_alone() -> None:
    net = build(CLIP)
    out = net(WORDS, PIXELS, mask=(MASK, None))
    u, v = net.embed_first(WORDS, MASK), net.embed_second(PIXELS)
    assert torch.equal(out.first.pooled, u) and torch.equal(out.second.pooled, v) and torch.equal(out.pooled, u)
    assert gap(u.norm(dim=-1), torch.ones(3)) < EXACT and gap(v.norm(dim=-1), torch.ones(3)) < EXACT
    for row in range(3):
        assert gap(net.embed_first(WORDS[row : row + 1, MASK[row]])[0], u[row]) < EXACT
    assert gap(net.embed_first(WORDS), u) > 1e-3  # control: padding that is seen
    assert gap(net(WORDS, PIXELS[:2], first_mask=MASK).logits, out.logits[:, :2]) < EXACT  # as many as one likes


def test_the_scale_starts_where_clip_does_and_is_held_while_training() -> None:
    net = CLIP.build(seed=0)
    assert abs(net.scale.item() - math.log(1 / 0.07)) < 1e-6 and net.scale.shape == ()
    assert Towers(first=TEXT, second=IMAGE, log_scale=0.0).build(seed=0).scale.item() == 0.0
    with torch.no_grad():
        net.scale.fill_(6.0)
    given = (WORDS, PIXELS.float())
    cosine = net.eval()(*given).logits / math.exp(6.0)
    assert cosine.abs().max() <= 1 + 1e-6
    assert gap(net.train()(*given).logits, 100 * cosine) < 1e-3


def test_it_learns_which_belong_together() -> None:
    net = CLIP.replace(log_scale=1.0).build(seed=0)
    given = Batch((WORDS, PIXELS.float()), torch.zeros(3, dtype=torch.long), torch.arange(3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        (Contrast().loss(net, given) / Contrast().weight(given)).backward()
        optimizer.step()
    assert net(*given.inputs).logits.argmax(1).tolist() == [0, 1, 2]


@pytest.mark.quick
def test_it_is_saved_and_built_like_every_model(tmp_path: Any) -> None:
    assert Towers.from_json(CLIP.to_json()) == CLIP
    net = CLIP.build(seed=3)
    assert {name.split(".")[0] for name in net.state_dict()} == {"first", "second", "scale"}
    save_own(tmp_path / "x", CLIP, net)
    opened = open_folder(tmp_path / "x")
    assert opened.spec == CLIP and torch.equal(opened.model.scale, net.scale)
    given = (WORDS, PIXELS.float())
    assert torch.equal(opened.model(*given).logits, net.eval()(*given).logits)
    assert all(p.is_meta for p in CLIP.build(device="meta").parameters())


REFUSED = {
    "no vector": (lambda: CLIP.replace(first=TEXT.replace(head=TokenHead(classes=2))), "has no pooled vector"),
    "widths": (lambda: CLIP.replace(second=IMAGE.replace(head=Pooled(dense=5))), "the vectors are 6 and 5 wide"),
    "looking": (
        lambda: CLIP.replace(
            second=IMAGE.replace(stack=Stack(width=12, depth=1, block=Block(mixer=CoAttention(heads=4))))
        ),
        "a tower cannot have cross-attention",
    ),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make()


def test_the_contrast_equals_cross_entropy_both_ways() -> None:
    logits = numbers(5, 5)
    right = torch.arange(5)
    wanted = (F.cross_entropy(logits, right, reduction="sum") + F.cross_entropy(logits.T, right, reduction="sum")) / 2
    assert gap(Contrast().each(logits, torch.zeros(5)).sum(), wanted) < EXACT
