"""Mixture of experts against a loop over tokens and experts, and what the router learns from."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import LM, Attention, Block, Experts, Model, Pooled, Stack, TokenHead, Tokens, UserError
from anyformer.inspection.routing import tokens_per_expert
from anyformer.objectives import Batch, Causal, Classify, Regression, Tag
from tests.reference.copying import EXACT, agree, context_of, deviation, real_tokens, seeded, shaken

WIDTH = 6
SPECS = {
    "top-2": Experts(count=4, top=2, width=5),
    "top-1": Experts(count=4, top=1, width=5, act="relu"),
    "top-1-renormalised": Experts(count=3, top=1, renormalise=True),
    "all": Experts(count=3, top=3, act="silu"),
    "raw": Experts(count=5, top=3, renormalise=False, gated=True, bias=False, act="silu", width=7),
    "mixtral": Experts(count=8, top=2, gated=True, bias=False, act="silu", width=9),
    "one": Experts(count=1, top=1),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def module(spec: Experts) -> Any:
    return shaken(spec.build(WIDTH))


def naive(x: Tensor, experts: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One token at a time, one expert at a time; and the loss of the real ones."""
    spec, rows, shares, sent = experts.spec, [], [], [0] * experts.spec.count
    for b, t in itertools.product(range(x.shape[0]), range(x.shape[1])):
        token = x[b, t]
        p = (experts.router.weight @ token).exp()
        p = p / p.sum()
        best = sorted(range(spec.count), key=lambda e, p=p: -p[e].item())[: spec.top]
        total = sum(p[e] for e in best) if (spec.top > 1 and spec.renormalise is None) or spec.renormalise else 1.0
        rows.append(sum(p[e] / total * experts.experts[e](token) for e in best))
        if mask is None or mask[b, t]:
            shares.append(p)
            for e in best:
                sent[e] += 1
    f = torch.tensor(sent, dtype=torch.float64) / sum(sent)
    return torch.stack(rows).view_as(x), spec.count * (f * torch.stack(shares).mean(0)).sum()


@pytest.mark.quick
@every_spec
def test_it_is_a_loop_over_tokens_and_experts(spec: Experts) -> None:
    x, experts = seeded(2, 9, WIDTH), module(spec)
    y, losses = experts(x, context_of(x))
    wanted, loss = naive(x, experts)
    leaves = [x, *experts.parameters()]
    agree(y, wanted, leaves)
    agree(losses["balance"], spec.balance * loss, leaves)
    assert spec.count == 1 or deviation(y, wanted.roll(1, 1)) > 1e-3  # control


@every_spec
def test_padding_changes_neither_tokens_nor_losses(spec: Experts) -> None:
    x, experts, mask = seeded(3, 7, WIDTH), module(spec), real_tokens((7, 2, 5), 7, "left")
    y, losses = experts(x, context_of(x, mask))
    _, loss = naive(x, experts, mask)
    agree(losses["balance"], spec.balance * loss, [x, *experts.parameters()])
    other = torch.where(mask[..., None], x, seeded(3, 7, WIDTH, seed=5))
    z, same = experts(other, context_of(x, mask))
    assert torch.equal(same["balance"], losses["balance"])  # the router's product has the same shape in both
    agree(y[mask], z[mask])  # an expert's has not: padding goes to other experts, and the shape decides the rounding
    if spec.count > spec.top:  # where all are chosen, the loss is 1 whatever the router says
        assert deviation(experts(other, context_of(x))[1]["balance"], losses["balance"]) > 1e-6  # control: no mask
    assert int(experts.tokens(x, context_of(x, mask)).sum()) == int(mask.sum()) * spec.top  # none dropped


def test_all_experts_are_the_dense_weighted_sum() -> None:
    x = seeded(2, 5, WIDTH)
    for renormalise in (True, False):
        experts = module(Experts(count=4, top=4, renormalise=renormalise))
        shares = (x @ experts.router.weight.T).softmax(-1)
        dense = sum(shares[..., e : e + 1] * experts.experts[e](x) for e in range(4))
        agree(experts(x, context_of(x))[0], dense, [x, *experts.parameters()])


def test_an_expert_without_tokens_has_gradient_zero_and_a_crowded_one_drops_nobody() -> None:
    experts = module(Experts(count=4, top=2, width=5))
    with torch.no_grad():
        experts.router.weight.zero_()
        experts.router.weight[1:3, 0] = 5.0  # all tokens prefer 1 and 2
    x = seeded(2, 30, WIDTH, grad=False).abs().requires_grad_()
    y, losses = experts(x, context_of(x))
    agree(y, naive(x, experts)[0], [x, *experts.parameters()])
    assert experts.tokens(x).tolist() == [0, 60, 60, 0]
    assert losses["balance"].item() > 1.7 * 0.01  # half of the experts do all the work: towards 2
    y.sum().backward()
    for e, expert in enumerate(experts.experts):
        assert all(p.grad is not None and bool(p.grad.any()) == (e in (1, 2)) for p in expert.parameters())


def test_a_token_is_answered_alike_whoever_comes_with_it() -> None:
    # To rounding, not to the bit: how many rows an expert's product has depends on the others, and some libraries
    # sum a row in another order for another number of rows (float64 on AMD does).
    for (dtype, bound), spec in itertools.product(((torch.float32, 1e-5), (torch.float64, EXACT)), SPECS.values()):
        experts, x = module(spec).to(dtype), seeded(1, 40, WIDTH, grad=False).to(dtype)
        with torch.no_grad():
            whole = experts(x, context_of(x))[0]
            for length in (2, 3, 17, 39):
                others = torch.cat([x[:, :length], seeded(1, 40 - length, WIDTH, seed=3, grad=False).to(dtype)], 1)
                answer = experts(others, context_of(x))[0]
                agree(answer[:, :length], whole[:, :length], bound=bound)
                assert deviation(answer[:, length:], whole[:, length:]) > 1e-3  # control: other tokens, other answers


def test_balance_teaches_the_router_to_spread() -> None:
    torch.manual_seed(0)
    experts = Experts(count=4, top=1, width=8, balance=1.0).build(WIDTH)
    with torch.no_grad():
        experts.router.weight.normal_(0.0, 0.1)
        experts.router.weight[0, 0] = 3.0
    x = torch.randn(1, 400, WIDTH) + torch.tensor([2.0, 0, 0, 0, 0, 0])
    start = experts.tokens(x).max().item()
    optimizer = torch.optim.Adam(experts.router.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        experts(x)[1]["balance"].backward()
        optimizer.step()
    assert start > 350 and experts.tokens(x).max().item() < 200


# ---------------------------------------------------------------- in a model


def model(head: Any, **settings: Any) -> Any:
    block = Block(mixer=Attention(heads=2), feed=Experts(count=3, **settings))
    spec = Model(embed=Tokens(vocab=11), stack=Stack(width=WIDTH, depth=2, block=block), head=head, init="xavier")
    return shaken(spec.build(seed=0))


def test_the_losses_of_all_layers_come_back_and_are_added_to_every_objective() -> None:
    tokens = torch.arange(10).view(2, 5)
    mask = real_tokens((5, 3), 5)
    targets = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, -100, -100]])
    cases = [
        (LM(), Causal(), targets, 8),
        (TokenHead(classes=9), Tag(), targets, 8),
        (Pooled(classes=3, pool="mean"), Classify(), torch.tensor([2, -100]), 1),
        (Pooled(classes=3, pool="mean"), Classify(multi=True), torch.tensor([[1.0, 0, 1], [0, 0, 1]]), 2),
        (Pooled(classes=2, pool="mean"), Regression(), torch.tensor([[1.0, torch.nan], [2.0, 3.0]]).double(), 3),
    ]
    for head, objective, wanted, count in cases:
        net = model(head)
        batch = Batch((tokens,), wanted, torch.arange(2), {"mask": mask})
        out = net(tokens, mask=mask)
        assert out.losses.keys() == {"balance"}
        assert 2 * 0.01 < out.losses["balance"].item() < 2 * 0.03  # two layers, each at least 1
        silent = model(head, balance=0.0)
        silent.load_state_dict(net.state_dict())
        assert silent(tokens, mask=mask).losses == {}
        gap = objective.loss(net, batch) - objective.loss(silent, batch)
        agree(gap, out.losses["balance"] * count, bound=1e-9 if gap.dtype == torch.float64 else 1e-5)
        assert objective.weight(batch) == count
        rows = [objective.row_losses(each(tokens, mask=mask), batch) for each in (net, silent)]
        agree(*rows)  # what is reported is the task's own loss


def test_tokens_per_expert_are_counted_in_every_layer() -> None:
    net, tokens, mask = model(LM()), torch.arange(10).view(2, 5), real_tokens((5, 3), 5)
    before = net(tokens, mask=mask).logits
    counts = tokens_per_expert(net, tokens, mask=mask)
    assert list(counts) == ["stack.blocks.0.feed", "stack.blocks.1.feed"]
    assert all(count.shape == (3,) and int(count.sum()) == 8 * 2 for (count,) in counts.values())
    assert torch.equal(net(tokens, mask=mask).logits, before)
    assert not any(part._forward_pre_hooks for part in net.modules())


def test_settings_that_cannot_be_are_refused() -> None:
    for settings, says in (
        ({"count": 0}, "count 0 is below 1"),
        ({"count": 4, "top": 5}, "top 5 is not between 1 and count 4"),
        ({"count": 4, "top": 0}, "top 0 is not between 1 and count 4"),
        ({"count": 4, "balance": -1.0}, "balance -1.0 is below 0"),
        ({"count": 4, "width": 0}, "width 0 is below 1"),
    ):
        with pytest.raises(UserError, match=says):
            Experts(**settings)
