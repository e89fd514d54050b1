"""Sentence embeddings: the contrast against its formula, the two views of a text, retrieval and rank correlation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import Pooled, UserError
from anyformer.evaluation.metrics import rank_correlation
from anyformer.objectives import Batch, SentenceContrast
from anyformer.objectives.draw import Draw
from anyformer.objectives.sentences import views
from anyformer.tasks.contrast import halves, hits
from tests.laws.nets import build, model, tokens

MASK = torch.ones(4, 8, dtype=torch.bool)
MASK[1, 5:] = False


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def formula(first: list[list[float]], second: list[list[float]], temperature: float) -> list[float]:
    """-log of the share of the right one among all, sentence by sentence."""
    losses = []
    for row, vector in enumerate(first):
        logits = [cosine(vector, other) / temperature for other in second]
        losses.append(math.log(sum(math.exp(each) for each in logits)) - logits[row])
    return losses


def pair_batch(first: torch.Tensor, second: torch.Tensor, start: int) -> Batch:
    """A pair as the data gives it: a text to read, and one to write that comes one token late."""
    before = torch.cat([torch.full((len(second), 1), start), second[:, :-1].clamp(min=0)], 1)
    named = {"source_mask": MASK, "target_mask": second != -100}
    return Batch((first, before), second, torch.arange(len(first)), named)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_the_loss_is_its_formula_on_both_kinds_of_views(temperature: float) -> None:
    objective, net = SentenceContrast(temperature=temperature), build(model(head=Pooled(pool="mean"))).double().eval()
    single = Batch((tokens(4, 8),), torch.zeros(4, dtype=torch.long), torch.arange(4), {"mask": MASK})
    second = tokens(4, 6, seed=5)
    second[2, 4:] = -100
    for batch in (single, pair_batch(tokens(4, 8), second, start=16)):
        asked = objective.corrupt(batch, Draw(0, 0), None)  # type: ignore[arg-type]
        assert asked.inputs[0].shape[0] == 8 and objective.weight(asked) == 4
        one, two = ([net(ids[row : row + 1, : int(mask[row].sum())]).pooled[0].tolist() for row in range(4)]
                    for ids, mask in views(batch))  # fmt: skip
        expected = formula(one, two, temperature)
        assert objective.row_losses(net(*asked.inputs, **asked.named), asked).tolist() == pytest.approx(expected)
        assert objective.loss(net, asked).item() == pytest.approx(sum(expected))
    wrong = formula(one, [two[1], two[0], two[2], two[3]], temperature)  # control: partners exchanged
    assert wrong != pytest.approx(expected, rel=1e-3)


def test_two_views_of_one_text_differ_by_dropout_alone() -> None:
    spec = model(head=Pooled(pool="mean"), dropout=0.3)
    net: Any = spec.build(seed=0)
    batch = Batch((tokens(4, 8),), torch.zeros(4, dtype=torch.long), torch.arange(4), {"mask": MASK})
    asked = SentenceContrast().corrupt(batch, Draw(0, 0), None)  # type: ignore[arg-type]
    first, second = net.train()(*asked.inputs, **asked.named).pooled.chunk(2)
    assert not torch.allclose(first, second, atol=1e-3)
    first, second = net.eval()(*asked.inputs, **asked.named).pooled.chunk(2)
    assert torch.allclose(first, second, atol=1e-6)


def test_a_second_text_begins_as_the_first_does() -> None:
    first, second = tokens(4, 8), tokens(4, 6, seed=5)
    first[:, 0] = 16  # the tokenizer puts a token before a text, which a text to write does not have
    (_, _), (made, there) = views(pair_batch(first, second, start=16))
    assert made[:, 0].eq(16).all() and torch.equal(made[:, 1:], second) and there.all()
    (_, _), (made, _) = views(pair_batch(tokens(4, 8).clamp(max=15), second, start=16))
    assert torch.equal(made, second)


def test_halves_are_the_text_cut_in_the_middle() -> None:
    ids = torch.arange(1, 9).expand(3, 8).clone()
    mask = torch.arange(8) < torch.tensor([[8], [5], [1]])
    (first, seen), (second, other) = halves((ids, mask))
    cut = [(first[row][seen[row]].tolist(), second[row][other[row]].tolist()) for row in range(3)]
    assert cut == [([1, 2, 3, 4], [5, 6, 7, 8]), ([1, 2, 3], [4, 5]), ([1], [1])]


def test_retrieval_counts_what_is_nearest() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(100, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    assert hits(vectors, vectors).tolist() == [1.0] * 100
    assert hits(vectors, vectors.roll(1, 0)).mean() < 0.05
    same = torch.ones(10, 4)
    assert hits(same, same).tolist() == pytest.approx([0.1] * 10)  # what tells nothing apart is right by chance


def test_rank_correlation_is_scipy_s() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(0)
    one, two = draw.integers(0, 6, 80).astype(float), draw.normal(size=80)
    assert rank_correlation(one, two) == pytest.approx(stats.spearmanr(one, two)[0])
    assert rank_correlation(np.ones(5), two[:5]) == 0.0


def test_a_temperature_is_positive() -> None:
    with pytest.raises(UserError, match=r"temperature 0.0 is not positive"):
        SentenceContrast(temperature=0)
