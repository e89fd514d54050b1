"""ELECTRA's question: samples where tokens were hidden, one logit a token, a loss on every real one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anyformer import LM, Replaced, TokenHead, UserError
from anyformer.objectives import Batch, ReplacedTokenDetection
from anyformer.objectives.replaced import corrupt
from tests.laws.nets import EXACT, build, gap, model, numbers, tokens

TEXT = tokens(4, 8)
CHOSEN = torch.zeros(4, 8, dtype=torch.bool)
CHOSEN[:, 2:5] = True
MASK = torch.ones(4, 8, dtype=torch.bool)
MASK[1, 6:] = False


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.quick
def test_only_chosen_tokens_change_and_an_equal_sample_counts_as_original() -> None:
    logits = numbers(4, 8, 17)
    corrupted, replaced = corrupt(TEXT, logits, CHOSEN, draws())
    assert torch.equal(corrupted[~CHOSEN], TEXT[~CHOSEN]) and not replaced[~CHOSEN].any()
    assert torch.equal(replaced.bool(), corrupted != TEXT) and replaced.any()
    sure = F.one_hot(TEXT, 17) * 1e3  # a generator that knows: every sample is the token itself
    same, none = corrupt(TEXT, sure.double(), CHOSEN, draws())
    assert torch.equal(same, TEXT) and not none.any()
    wrong = F.one_hot((TEXT + 1) % 17, 17) * 1e3
    other, every = corrupt(TEXT, wrong.double(), CHOSEN, draws())
    assert torch.equal(other[CHOSEN], (TEXT[CHOSEN] + 1) % 17) and torch.equal(every.bool(), CHOSEN)
    nothing, none = corrupt(TEXT, logits, torch.zeros_like(CHOSEN), draws())
    assert torch.equal(nothing, TEXT) and not none.any()


def test_samples_follow_the_generator_s_shares_and_repeat_under_a_seed() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2])
    many = torch.zeros(1, 6000, dtype=torch.long)
    logits = shares.log().expand(1, 6000, 3)
    every = torch.ones(1, 6000, dtype=torch.bool)
    drawn, replaced = corrupt(many, logits, every, draws())
    counted = Counter(drawn[0].tolist())
    for token, share in enumerate(shares.tolist()):
        assert abs(counted[token] / 6000 - share) < 0.03  # 4.6 standard deviations
    assert abs(replaced.float().mean().item() - 0.5) < 0.03  # half of them are the token that was there
    again, _ = corrupt(many, logits, every, draws())
    other, _ = corrupt(many, logits, every, draws(1))
    assert torch.equal(again, drawn) and not torch.equal(other, drawn)


def test_the_loss_is_binary_cross_entropy_over_real_tokens() -> None:
    net = build(model(head=Replaced(), causal=False))
    corrupted, replaced = corrupt(TEXT, numbers(4, 8, 17), CHOSEN, draws())
    batch = Batch((corrupted,), replaced.masked_fill(~MASK, -100), torch.arange(4), {"mask": MASK})
    out = net(corrupted, mask=MASK)
    assert out.logits.shape == (4, 8, 1)
    wanted, rows = torch.zeros((), dtype=torch.float64), []
    for b in range(4):
        row = []
        for t in range(8):
            if MASK[b, t]:
                chance = torch.sigmoid(out.logits[b, t, 0])
                row.append(-(chance if replaced[b, t] else 1 - chance).log())
        rows.append(sum(row) / len(row))
        wanted = wanted + sum(row)
    assert ReplacedTokenDetection().weight(batch) == int(MASK.sum())
    assert gap(ReplacedTokenDetection().loss(net, batch), wanted) < EXACT
    assert gap(ReplacedTokenDetection().row_losses(out, batch), torch.stack(rows)) < EXACT
    blind = Batch((corrupted,), replaced, torch.arange(4), {"mask": MASK})
    assert gap(ReplacedTokenDetection().loss(net, blind), wanted) > 1e-3  # control: padding that counts
    grads = torch.autograd.grad(wanted, list(net.parameters()))
    mine = torch.autograd.grad(ReplacedTokenDetection().loss(net, batch), list(net.parameters()))
    assert all(gap(a, b) < EXACT for a, b in zip(mine, grads, strict=True))


@pytest.mark.quick
@torch.no_grad()
def test_the_head_is_a_dense_layer_an_activation_and_one_logit() -> None:
    net = build(model(head=Replaced(act="silu"), causal=False))
    hidden = net(TEXT).hidden
    wanted = F.linear(F.silu(F.linear(hidden, net.head.dense.weight, net.head.dense.bias)), net.head.out.weight)
    assert gap(net(TEXT).logits, wanted + net.head.out.bias) < EXACT
    same = build(model(head=TokenHead(classes=1, dense=True, act="silu"), causal=False))
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in same.named_parameters()]


def test_a_generator_and_a_discriminator_train_together() -> None:
    """Both losses in one step: sampling passes no gradient back, so each net learns its own task."""
    generator, judge = model(head=LM(), causal=False).build(seed=0), model(head=Replaced(), causal=False).build(seed=1)
    optimizer = torch.optim.AdamW([*generator.parameters(), *judge.parameters()], lr=1e-2)
    first: list[float] = []
    for step in range(30):
        optimizer.zero_grad()
        logits = generator(TEXT.masked_fill(CHOSEN, 0)).logits
        corrupted, replaced = corrupt(TEXT, logits, CHOSEN, draws(step))
        batch = Batch((corrupted,), replaced, torch.arange(4))
        told = ReplacedTokenDetection().loss(judge, batch) / ReplacedTokenDetection().weight(batch)
        told.backward()
        assert all(p.grad is None for p in generator.parameters()) or step
        F.cross_entropy(logits[CHOSEN], TEXT[CHOSEN]).backward()
        optimizer.step()
        first.append(told.item())
    assert first[-1] < 0.5 * first[0]


@pytest.mark.parametrize("settings", [{"dropout": 1.0}, {"act": "sine"}])
def test_what_does_not_fit_is_refused(settings: Any) -> None:
    with pytest.raises(UserError):
        Replaced(**settings)
