"""Two captures compared: differences and distances equal plain loops, tokens are matched by what they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.axis import Token, TokenAxis
from anyformer.inspection.capture import look
from anyformer.inspection.compare import align, common, compare, divergence
from anyformer.inspection.views import compare as view
from tests.inspection.models import TEXT, bert, gpt, image, t5, vit

OTHER = "An old cat and a young boy"  # one word differs


def naive_divergence(p, q):
    """Half the relative entropies to the mean, in bits."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        middle = (a + b) / 2
        total += (a * math.log2(a / middle) if a > 0 else 0) + (b * math.log2(b / middle) if b > 0 else 0)
    return total / 2


def axis(text):
    return TokenAxis("", tuple(Token(word) for word in text.split()))


def test_divergence_equals_the_textbook_and_has_its_bounds():
    torch.manual_seed(0)
    p, q = torch.rand(5, 7).softmax(-1), torch.rand(5, 7).softmax(-1)
    p[0], q[0] = torch.eye(7)[0], torch.eye(7)[3]
    found = divergence(p, q)
    assert found.tolist() == pytest.approx(
        [naive_divergence(a.tolist(), b.tolist()) for a, b in zip(p, q, strict=True)], abs=1e-6
    )
    assert float(found[0]) == pytest.approx(1.0) and divergence(p, p).max() < 1e-12


def test_tokens_are_matched_in_order():
    one, two = "the dog saw the old cat", "the big dog saw old cats and the cat"
    found = align(axis(one), axis(two))
    assert [one.split()[i] for i in found.first] == [two.split()[i] for i in found.second]
    assert len(found) == 5 and not found.complete
    assert all(list(places) == sorted(set(places)) for places in (found.first, found.second))
    assert align(axis("a b a"), axis("a b")).first == (0, 1)
    assert align(axis("a b"), axis("a b")).complete and len(align(axis("a b"), axis("c d"))) == 0
    special = TokenAxis("", (Token("a", "special"),))
    assert len(align(axis("a"), special)) == 0  # the same letters, another kind of token


def test_long_texts_are_matched_from_both_ends():
    middle = " ".join(f"x{i % 7}" for i in range(5000))
    found = align(axis(f"a b {middle} y z"), axis(f"a b c {middle} y z"))
    assert len(found) == 5004
    long = align(axis(f"a b {middle} y {middle} z"), axis(f"a b {middle} q {middle} w"))
    assert len(long) == 5002 and long.first == long.second  # what lies between the ends is too long to search


def test_weight_on_other_keys_stays_in_the_row():
    weights = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.0, 0.0, 0.0]]])
    assert torch.allclose(common(weights, (0, 2)), torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0, 0, 0]]]))
    assert common(weights, ()).tolist() == [[[1.0], [pytest.approx(1.0)], [0.0]]]


def test_two_inputs_of_the_same_length():
    model = gpt()
    first, second = look(model, TEXT), look(model, TEXT)
    same = compare(first, second)
    assert all(value == pytest.approx(0.0, abs=1e-9) for heads in same.distances for value in heads)
    other = look(model, OTHER)
    found = first.compare(other)
    assert first.others == [other]
    whole = max(value for heads in found.distances for value in heads)
    assert 1e-6 < whole <= 1  # control: another input does move heads


@pytest.mark.parametrize("text", [OTHER, "A young boy", "the river and an old dog and a young boy"])
def test_differences_equal_the_maps_of_both(text):
    model = gpt()
    first, second = look(model, TEXT), look(model, text)
    found = compare(first, second)
    queries, keys = found.queries(1), found.keys(1)
    one, two = first.weights(1), second.weights(1)
    difference = found.difference(1, 2)
    assert difference.shape == (len(queries), len(keys)) and len(queries) > 1
    for i, (a, b) in enumerate(zip(queries.first, queries.second, strict=True)):
        for j, (c, d) in enumerate(zip(keys.first, keys.second, strict=True)):
            assert float(difference[i, j]) == pytest.approx(float(two[2, b, d] - one[2, a, c]), abs=1e-6)
    rows = []
    for a, b in zip(queries.first, queries.second, strict=True):
        p, q = one[2, a, list(keys.first)].tolist(), two[2, b, list(keys.second)].tolist()
        rows.append(naive_divergence([*p, max(0.0, 1 - sum(p))], [*q, max(0.0, 1 - sum(q))]))
    assert found.distances[1][2] == pytest.approx(sum(rows) / len(rows), abs=1e-5)


def test_two_models_of_one_layout_and_of_another():
    first = look(gpt(), TEXT)
    trained = gpt()
    with torch.no_grad():
        trained.model.stack.blocks[1].mixer.qkv.weight.mul_(9.0)
    found = compare(first, look(trained, TEXT))
    assert max(found.distances[0]) < 1e-9 < 1e-3 < max(found.distances[1])  # the first layer is untouched
    with pytest.raises(UserError, match="2 attention layers, the other 3"):
        compare(first, look(gpt(depth=3), TEXT))
    with pytest.raises(UserError, match="4 heads"):
        compare(first, look(gpt(heads=2), TEXT))
    assert first.others == []  # nothing that cannot be compared is kept


def test_answers_stand_side_by_side():
    model = bert()
    found = compare(look(model, TEXT), look(model, "She prefers cats"))
    rows = {row["name"]: row for row in found.predictions()}
    assert rows.keys() == {"bad", "fair", "good"}
    for name, choices in (("first", found.first.prediction()), ("second", found.second.prediction())):
        assert {row["name"]: row[name] for row in rows.values()} == {one.name: one.probability for one in choices}


@pytest.mark.parametrize("make, inputs", [(gpt, (TEXT, OTHER)), (bert, (TEXT, "a boy")), (t5, (TEXT, OTHER)),
                                          (vit, (image(), image()[::-1].copy()))])  # fmt: skip
def test_the_view_answers_for_every_site(make, inputs):
    model = make()
    first = look(model, inputs[0])
    assert "nothing to compare" in view.applies(first)
    found = first.compare(look(model, inputs[1]))
    assert view.applies(first) is None
    for site in first.sites:
        made = ViewAnswer.from_bytes(view.answer(first, Query(site=site.index, head=1)).to_bytes())
        if made.facts["shared"]:
            assert np.allclose(made.arrays["difference"], found.difference(site.index, 1).numpy(), atol=1e-6)
            assert made.arrays["difference"].shape == (len(made.facts["queries"]), len(made.facts["keys"]))
        if not made.facts["same"]:
            assert np.allclose(made.arrays["second_own"], found.second.weights(site.index)[1].numpy(), atol=1e-6)
        assert made.facts["distances"][site.index] == pytest.approx(found.distances[site.index])
    assert {query.site for query in view.exported(first)} == {site.index for site in first.sites}


def test_long_texts_come_in_windows():
    model = gpt()
    first = look(model, "the old dog " * 100)
    found = first.compare(look(model, "the old cat " * 100))
    count = len(found.queries(0))
    made = view.answer(first, Query(head=1, options={"from": "64"}))
    assert count > 150 and made.facts["count"] == count
    rows = min(128, count - 64)
    assert made.arrays["difference"].shape == (rows, rows)
    whole = found.difference(0, 1)
    assert np.allclose(made.arrays["difference"], whole[64 : 64 + rows, 64 : 64 + rows].numpy(), atol=1e-6)
    assert made.arrays["first_own"].shape == (128, 128)


def test_the_view_refuses_what_is_not_there():
    first = look(gpt(), TEXT)
    first.compare(look(gpt(), OTHER))
    with pytest.raises(UserError):
        view.answer(first, Query(options={"other": "1"}))
    with pytest.raises(UserError):
        view.answer(first, Query(site=9))
