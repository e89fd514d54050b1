"""Attention without queries, keys and values, step by step as the lecture draws it; attention as look-up and kernel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from anyformer import Attention, Block, LinearAttention, Model, NoRelative, Plain, Stack, Tokens, attention_maps
from anyformer.core.attend import Scores, attend, weights_of
from anyformer.heads.lm import LM
from tests.reference.copying import agree, context_of, deviation, parts_of, real_tokens, seeded, shaken

WIDTH = 6


def module(spec: Plain, causal: bool = True) -> torch.nn.Module:
    return spec.build(WIDTH, causal=causal, relative=NoRelative())


def run(spec: Plain, x: Tensor, causal: bool = True, mask: Tensor | None = None) -> Tensor:
    return module(spec, causal)(x, context_of(x, mask), None, ())


def naive(x: Tensor, scale: float, causal: bool, mask: Tensor | None = None) -> Tensor:
    """One number at a time."""
    rows = []
    for b in range(x.shape[0]):
        answers = []
        for i in range(x.shape[1]):
            seen = [j for j in range(x.shape[1]) if (j <= i or not causal) and (mask is None or mask[b, j])]
            powers = [math.e ** (sum(x[b, i] * x[b, j]) * scale) for j in seen]
            total = sum(powers)
            answers.append(sum(power / total * x[b, j] for power, j in zip(powers, seen, strict=True)))
        rows.append(torch.stack(answers))
    return torch.stack(rows)


@pytest.mark.quick
def test_the_five_steps_of_a_3() -> None:
    """Lecture 2: the third token, by hand."""
    x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [5.0, 5.0]]], dtype=torch.float64)
    x1, x2, x3 = x[0, :3]  # step 1: the inputs; x_4 comes later and is not looked at
    scores = torch.stack([x3 @ x1, x3 @ x2, x3 @ x3])  # step 2
    assert scores.tolist() == [1.0, 2.0, 2.0]
    weights = scores.exp() / scores.exp().sum()  # step 3
    assert weights.tolist() == pytest.approx([0.15536240, 0.42231880, 0.42231880], abs=5e-9)
    parts = [weights[0] * x1, weights[1] * x2, weights[2] * x3]  # step 4
    a_3 = parts[0] + parts[1] + parts[2]  # step 5
    assert a_3.tolist() == pytest.approx([0.57768120, 1.26695639], abs=5e-9)
    plain = Plain(score="dot").build(2, causal=True, relative=NoRelative())
    context = context_of(x)
    assert agree(plain(x, context, None, ())[0, 2], a_3) <= 1e-15
    assert agree(plain.weights(x, context, None, (), slice(2, 3))[0, 0, 0, :3], weights) <= 1e-15
    assert deviation(run_both_ways(x)[0, 2], a_3) > 1e-2  # control: with x_4 it is another answer


def run_both_ways(x: Tensor) -> Tensor:
    return Plain(score="dot").build(2, causal=False, relative=NoRelative())(x, context_of(x), None, ())


@pytest.mark.quick
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize(("score", "scale"), [("dot", 1.0), ("scaled", WIDTH**-0.5)])
def test_it_is_the_formula_and_has_no_parameters(score: str, scale: float, causal: bool) -> None:
    x = seeded(2, 5, WIDTH)
    spec = Plain(score=score)
    assert list(module(spec).parameters()) == []
    agree(run(spec, x, causal), naive(x, scale, causal), [x])
    mask = real_tokens((5, 3), 5)
    agree(run(spec, x, causal, mask), naive(x, scale, causal, mask), [x], where=mask[..., None])
    assert deviation(run(spec, x, causal), naive(x, 2 * scale, causal)) > 1e-3  # control


class Near(Plain):
    """Tokens attend to those that lie near them."""

    def compare(self, x: Tensor, keys: Tensor) -> Tensor:
        return -(x[:, :, None] - keys[:, None]).square().sum(-1)


def test_a_score_of_ones_own_is_a_subclass() -> None:
    x = seeded(2, 5, WIDTH)
    for causal in (True, False):
        scores = -(x[:, :, None] - x[:, None]).square().sum(-1)
        if causal:
            scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
        agree(run(Near(), x, causal), scores.softmax(-1) @ x, [x])
    assert deviation(run(Near(), x), run(Plain(), x)) > 1e-2
    block = Block(mixer=Near())
    spec = Model(embed=Tokens(vocab=9), stack=Stack(width=WIDTH, depth=2, causal=True, block=block), head=LM())
    assert Model.from_json(spec.to_json()) == spec
    net, given = shaken(spec.build(seed=0)), torch.arange(7)[None]
    state = net.state(1)
    steps = torch.cat([net(given[:, t : t + 1], state=state).logits for t in range(7)], 1)
    agree(steps, net(given).logits)
    (maps,) = attention_maps(net, given)["stack.blocks.0.mixer"]
    agree(maps.sum(-1), torch.ones_like(maps.sum(-1)))


def test_it_learns_inside_a_full_block() -> None:
    """The token before last is copied: without looking at other tokens nobody could know it."""
    block = Block(mixer=Plain())
    spec = Model(embed=Tokens(vocab=8), stack=Stack(width=32, depth=2, causal=True, block=block), head=LM())
    torch.manual_seed(0)
    net = spec.build(seed=0)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    first = torch.tensor([[a, b] for a in range(8) for b in range(8) if a != b])
    targets = first[:, 0]
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(first).logits[:, -1], targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > math.log(7) and losses[-1] < 0.8  # ln 7: all that the last token tells


@pytest.mark.quick
def test_attention_is_a_soft_dictionary() -> None:
    """One-hot keys: at temperature .01 the answer is the entry asked for, at an infinite one the mean of all."""
    keys, values = torch.eye(5, dtype=torch.float64)[None, None], seeded(1, 1, 5, 3, grad=False)
    dictionary = {i: values[0, 0, i] for i in range(5)}

    def look_up(query: int, temperature: float) -> Tensor:
        return attend(keys[:, :, query : query + 1], keys, values, Scores(scale=1 / temperature))[0, 0, 0]

    for query in range(5):
        assert (look_up(query, 0.01) - dictionary[query]).abs().max() < 1e-6
        assert (look_up(query, 1e12) - values[0, 0].mean(0)).abs().max() < 1e-9
        gaps = [(look_up(query, t) - dictionary[query]).abs().max().item() for t in (10.0, 1.0, 0.1, 0.05)]
        assert gaps == sorted(gaps, reverse=True) and gaps[1] > 1e-2  # control: a warm look-up is a mixture


@pytest.mark.quick
def test_attention_is_a_kernel_and_another_kernel_is_linear_attention() -> None:
    """Weights kappa(q, k) / sum kappa: exp(q.k / sqrt d) gives softmax attention, phi(q).phi(k) the linear one."""
    q, k, v = (seeded(2, 3, 7, 4, seed=s) for s in range(3))
    kappa = (torch.einsum("bhtc,bhsc->bhts", q, k) / 4**0.5).exp()
    agree(weights_of(q, k, Scores(scale=4**-0.5)), kappa / kappa.sum(-1, keepdim=True), [q, k])
    agree(attend(q, k, v, Scores(scale=4**-0.5)), kappa @ v / kappa.sum(-1, keepdim=True), [q, k, v])

    x = seeded(2, 7, 12)
    linear = shaken(LinearAttention(heads=3).build(12, causal=False, relative=NoRelative()))
    w_q, w_k, w_v = parts_of(linear.qkv.weight, 3, 3, 4, 4)
    b_q, b_k, b_v = parts_of(linear.qkv.bias, 3, 3, 4, 4)
    q, k, v = (torch.einsum("btd,hcd->bhtc", x, w) + b[:, None] for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    phi = [torch.where(part > 0, part + 1, part.exp()) for part in (q, k)]
    kappa = torch.einsum("bhtc,bhsc->bhts", *phi)
    weights = kappa / kappa.sum(-1, keepdim=True)
    agree(linear(x, context_of(x), None, ()), linear.out((weights @ v).transpose(1, 2).flatten(2)), [x])
    agree(linear.weights(x, context_of(x), None, (), slice(None)), weights, [x])
    softmax = shaken(Attention(heads=3).build(12, causal=False, relative=NoRelative()))
    softmax.load_state_dict(linear.state_dict())
    assert deviation(softmax(x, context_of(x), None, ()), linear(x, context_of(x), None, ())) > 1e-3  # control
