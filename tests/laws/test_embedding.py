"""Embeddings: a look-up is one_hot @ W, only looked-up rows learn, and frozen rows stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyformer import LayerNorm, Learned, Sinusoid, Tokens
from tests.laws.nets import EXACT, build, filled, gap, language, model, tokens
from tests.laws.parts import VOCAB

pytestmark = pytest.mark.quick
GIVEN = tokens(2, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_an_embedding_is_one_hot_times_matrix(dtype: torch.dtype) -> None:
    net = filled(Tokens(vocab=VOCAB).build(8)).to(dtype)
    got = net(GIVEN, context=net.layout(GIVEN))
    assert torch.equal(got, F.one_hot(GIVEN, VOCAB).to(dtype) @ net.table.weight)
    assert not torch.equal(got, F.one_hot((GIVEN + 1) % VOCAB, VOCAB).to(dtype) @ net.table.weight)  # ids from 0


def test_rows_of_absent_ids_have_no_gradient_at_all() -> None:
    net = build(model(embed=Tokens(vocab=VOCAB, position=Learned(24))))
    net(GIVEN).hidden.square().sum().backward()
    grad, used = net.embed.table.weight.grad, sorted(set(GIVEN.flatten().tolist()))
    absent = [v for v in range(VOCAB) if v not in used]
    assert absent and (grad[absent] == 0).all()
    assert (grad[used].abs().amax(1) > 0).all()  # control
    assert (net.embed.position.table.weight.grad[6:] == 0).all()


def test_frozen_rows_stay() -> None:
    for frozen in (True, False):
        net = build(language(embed=Tokens(vocab=VOCAB, frozen=frozen)))
        assert net.embed.table.weight.requires_grad is not frozen
        before = net.embed.table.weight.detach().clone()
        learned = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learned, lr=0.1, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(net(GIVEN).logits.flatten(0, 1), GIVEN.flatten()).backward()
            optimizer.step()
        assert torch.equal(net.embed.table.weight, before) is frozen  # the unfrozen one is the control
        assert gap(net.stack.blocks[0].mixer.qkv.weight, build(language()).stack.blocks[0].mixer.qkv.weight) > 1e-3


def test_tokens_are_the_sum_the_settings_say() -> None:
    """norm(table * sqrt(width) + position + segment), then widened from the inner size: written out."""
    spec = Tokens(vocab=VOCAB, position=Sinusoid(), segments=2, norm=LayerNorm(), inner=6, scale=True)
    net = filled(spec.build(16).double())
    kinds = torch.tensor([[0, 0, 1, 1, 1, 0]]).expand(2, -1)
    context = net.layout(GIVEN, segments=kinds)
    x = net.table.weight[GIVEN] * 6**0.5 + net.position(context, torch.float64) + net.segment.weight[kinds]
    wanted = net.project(net.norm(x))
    assert gap(net(GIVEN, context=context), wanted) < EXACT
    other = net(GIVEN, context=net.layout(GIVEN))  # left out, every token is of segment 0
    zero = net.table.weight[GIVEN] * 6**0.5 + net.position(context, torch.float64) + net.segment.weight[0]
    assert gap(other, net.project(net.norm(zero))) < EXACT and gap(other, wanted) > 1e-3
