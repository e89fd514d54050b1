"""The head for two sequences: means of either, what is made of both, and who is whose."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from anyformer import Pair, Tokens, UserError
from tests.laws.nets import EXACT, build, filled, gap, model, numbers, tokens

ALL = ("first", "second", "difference", "product")
TEXT = tokens(3, 8)
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]])
MASK = torch.ones(3, 8, dtype=torch.bool)
MASK[0, 6:] = MASK[1, :2] = MASK[2, 3] = False


def network(**settings: Any) -> Any:
    return build(model(embed=Tokens(vocab=17, segments=2), head=Pair(**settings), causal=False))


def by_hand(net: Any, features: tuple[str, ...]) -> torch.Tensor:
    hidden, rows = net(TEXT, segments=SEGMENTS, mask=MASK).hidden, []
    for b in range(3):
        sums, counts = [0.0, 0.0], [0, 0]
        for t in range(8):
            if MASK[b, t]:
                side = int(SEGMENTS[b, t])
                sums[side] = sums[side] + hidden[b, t]
                counts[side] += 1
        u, v = (total / count for total, count in zip(sums, counts, strict=True))
        made = {"first": u, "second": v, "difference": (u - v).abs(), "product": u * v}
        rows.append(torch.cat([made[name] for name in features]))
    return torch.stack(rows)


@pytest.mark.quick
@pytest.mark.parametrize("features", [ALL, ("product",), ("first", "second", "difference")], ids=len)
def test_features_and_gradients_equal_the_formula(features: tuple[Any, ...]) -> None:
    net = network(classes=4, features=features)
    other = copy.deepcopy(net)
    out = net(TEXT, segments=SEGMENTS, mask=MASK)
    vectors = by_hand(other, features)
    wanted = vectors @ other.head.out.weight.T + other.head.out.bias
    assert out.logits.shape == (3, 4) and gap(out.pooled, vectors) < EXACT and gap(out.logits, wanted) < EXACT
    for logits in (out.logits, wanted):
        (logits * numbers(3, 4, seed=2)).sum().backward()
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and gap(p.grad, q.grad) < EXACT, name
    swapped = net(TEXT, segments=1 - SEGMENTS, mask=MASK).logits  # control: who is whose matters
    assert gap(swapped, out.logits) > 1e-3


@torch.no_grad()
def test_one_number_or_the_vectors_themselves() -> None:
    assert network(classes=1)(TEXT, segments=SEGMENTS).logits.shape == (3, 1)
    out = network(features=ALL)(TEXT, segments=SEGMENTS)
    assert out.logits is None and out.pooled.shape == (3, 64)


@torch.no_grad()
def test_documents_make_two_texts_that_do_not_see_each_other() -> None:
    """SBERT: one model reads both apart, in one row."""
    net = build(model(head=Pair(features=("first", "second")), causal=False))
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]).expand(3, -1)
    got = net(TEXT, documents=documents).pooled
    u, v = net(TEXT[:, :3]).hidden.mean(1), net(TEXT[:, 3:]).hidden.mean(1)
    assert gap(got, torch.cat([u, v], -1)) < EXACT
    left = torch.cat([TEXT[:, :2], TEXT], 1)  # padding before the first text belongs to neither
    mask = torch.ones(3, 10, dtype=torch.bool)
    mask[:, :2] = False
    padded = net(left, documents=torch.tensor([[7, 7, 0, 0, 0, 1, 1, 1, 1, 1]]).expand(3, -1), mask=mask).pooled
    assert gap(padded, got) < EXACT
    assert gap(net(TEXT).pooled, got) > 1e-3  # control: read as one text


@torch.no_grad()
def test_a_missing_sequence_is_zero_and_left_out_of_the_product() -> None:
    net = network(features=ALL)
    one = net(TEXT)
    u = one.hidden.mean(1)
    assert gap(one.pooled, torch.cat([u, torch.zeros_like(u), u.abs(), u], -1)) < EXACT
    second = net(TEXT, segments=torch.ones_like(SEGMENTS))
    v = second.hidden.mean(1)
    assert gap(second.pooled, torch.cat([torch.zeros_like(v), v, v.abs(), v], -1)) < EXACT
    none = filled(Pair(classes=2, features=ALL).build(16, None)).double()
    context = net.embed.layout(TEXT, mask=torch.zeros(3, 8, dtype=torch.bool))
    assert gap(none(one.hidden, context, None).logits, none.out.bias.expand(3, -1)) < EXACT


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"classes": 0}, "classes 0 is below 1"),
        ({"features": ()}, "does not fit"),
        ({"features": ("first", "first")}, "comes twice"),
        ({"features": ("sum",)}, "sum"),
        ({"dropout": 1.0}, "dropout 1.0 is outside"),
    ],
)
def test_what_does_not_fit_is_refused(settings: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Pair(**settings)
