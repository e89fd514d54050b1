"""The loss: linear layer and cross-entropy in one, all positions at once, and chance level at the start."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anyformer import LM, Head, LayerNorm, Learned, linear_cross_entropy
from anyformer.core import loss as module
from tests.laws.nets import EXACT, build, gap, language, model, numbers, tokens
from tests.laws.parts import every

B, T, D, V = 2, 9, 5, 11


class Largest(TorchDispatchMode):
    """Remembers the most elements any result had."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Any, soft_cap: Any, smoothing: float) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)


@pytest.mark.quick
@pytest.mark.parametrize("ignored", [False, True], ids=["all-count", "some-ignored"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft_cap", [None, 2.0], ids=["uncapped", "capped"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no-bias", "bias"])
def test_the_fused_loss_is_the_plain_one(
    with_bias: bool, soft_cap: float | None, smoothing: float, ignored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 4 * V)  # four tokens at a time: several chunks, the last one short
    targets = tokens(B, T, vocab=V)
    if ignored:
        targets[0, ::2] = -100
    made = [numbers(B, T, D), numbers(V, D, seed=1), numbers(V, seed=2)]
    results = []
    for fused in (True, False):
        hidden, weight, bias = (x.clone().requires_grad_() for x in made)
        given = bias if with_bias else None
        loss = (
            linear_cross_entropy(hidden, weight, targets, bias=given, soft_cap=soft_cap, smoothing=smoothing)
            if fused
            else plain(hidden, weight, targets, given, soft_cap, smoothing)
        )
        (loss * 1.7).backward()
        results.append([loss, hidden.grad, weight.grad, *([bias.grad] if with_bias else [])])
    for ours, theirs in zip(*results, strict=True):
        assert gap(ours, theirs) < EXACT
    assert results[0][1].abs().max() > 1e-4  # control: there is something to compare
    if ignored:
        assert (results[0][1][0, ::2] == 0).all()


def test_no_target_counts_gives_zero_not_nan() -> None:
    hidden = numbers(B, T, D).requires_grad_()
    loss = linear_cross_entropy(hidden, numbers(V, D), torch.full((B, T), -100))
    loss.backward()
    assert loss.item() == 0.0 and (hidden.grad == 0).all()


def test_all_logits_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 8 * 1000)
    hidden, weight, targets = numbers(1, 256, 4), numbers(1000, 4), tokens(1, 256, vocab=1000)
    peaks = []
    for run in (lambda h, w: linear_cross_entropy(h, w, targets), lambda h, w: plain(h, w, targets, None, None, 0.0)):
        with Largest() as largest:
            run(hidden.clone().requires_grad_(), weight.clone().requires_grad_()).backward()
        peaks.append(largest.elements)
    assert peaks[0] <= 8 * 1000
    assert peaks[1] >= 256 * 1000  # control: the plain loss holds T x V, and the meter sees it


@pytest.mark.parametrize("head", [spec for spec in every(Head) if isinstance(spec.values[0], LM)])
def test_a_heads_own_loss_is_that_of_its_logits(head: LM) -> None:
    net, given = build(model(head=head)), tokens(2, 8)
    out = net(given)
    wanted = F.cross_entropy(out.logits.flatten(0, 1), given.roll(-1, 1).flatten())
    got = net.head.loss(out.hidden, given.roll(-1, 1), net.table())
    assert gap(got, wanted) < EXACT
    assert gap(net.head.loss(out.hidden, given, net.table()), wanted) > 1e-3  # control: other targets


def test_one_masked_pass_is_all_next_token_passes_at_once() -> None:
    """R79: the loss and the gradients of one causal pass are the sum of T passes that each see one prefix."""
    spec = language(position=Learned(24), norm=LayerNorm())
    given = tokens(2, 8)
    together, apart = build(spec), build(spec)
    logits = together(given[:, :-1]).logits
    loss = F.cross_entropy(logits.flatten(0, 1), given[:, 1:].flatten(), reduction="sum")
    loss.backward()
    total = 0.0
    for t in range(1, given.shape[1]):
        step = F.cross_entropy(apart(given[:, :t]).logits[:, -1], given[:, t], reduction="sum")
        step.backward()
        total += step.item()
    assert abs(loss.item() - total) < 1e-6
    for (name, p), q in zip(together.named_parameters(), apart.named_parameters(), strict=True):
        assert gap(p.grad, q[1].grad) < 1e-6, name
    # Control: a model that sees the future has another loss in one pass.
    cheating = build(language(position=Learned(24), causal=False))
    seen = F.cross_entropy(cheating(given[:, :-1]).logits.flatten(0, 1), given[:, 1:].flatten(), reduction="sum")
    assert abs(seen.item() - total) > 1e-2


def test_probabilities_sum_to_one_and_start_at_chance() -> None:
    net = language(init="gpt2", width=64).build(seed=0).eval()
    logits = net(tokens(8, 16)).logits
    assert gap(logits.softmax(-1).sum(-1), torch.ones(8, 16)) < 1e-5
    loss = F.cross_entropy(logits.flatten(0, 1), tokens(8, 16, seed=1).flatten()).item()
    assert abs(loss - math.log(17)) < 0.1 * math.log(17)
