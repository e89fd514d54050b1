"""Word dropout hides tokens of training texts, and of nothing else."""

from __future__ import annotations

import pytest
import torch

from anyformer.errors import UserError
from anyformer.objectives import Classify, Regression
from anyformer.objectives.batch import Batch

MASK = torch.arange(50) < torch.tensor([50, 20, 1])[:, None]
IDS = torch.randint(0, 9, MASK.shape)


def prepare(batch: Batch, objective: Classify | Regression, seed: int = 0) -> Batch:
    return objective.prepare(batch, torch.Generator().manual_seed(seed))


@pytest.mark.quick
@pytest.mark.parametrize("kind", [Classify, Regression])
def test_a_share_of_the_tokens_is_hidden(kind: type[Classify] | type[Regression]) -> None:
    many = MASK.repeat(200, 1)
    batch = Batch((IDS.repeat(200, 1),), torch.zeros(600), torch.arange(600), {"mask": many})
    kept = prepare(batch, kind(word_dropout=0.3)).named["mask"]
    assert not (kept & ~many).any()  # padding stays padding
    assert abs(float(kept.sum() / many.sum()) - 0.7) < 0.02
    assert torch.equal(kept, prepare(batch, kind(word_dropout=0.3)).named["mask"])  # by the generator alone
    assert not torch.equal(kept, prepare(batch, kind(word_dropout=0.3), seed=1).named["mask"])
    assert prepare(batch, kind()) is batch


@pytest.mark.quick
def test_beside_a_text_nothing_else_is_hidden() -> None:
    table = (torch.randn(3, 4), torch.randint(0, 5, (3, 2)))
    there = torch.ones(3, dtype=torch.bool)
    batch = Batch((IDS, table, torch.randn(3, 50)), torch.zeros(3), torch.arange(3), {"mask": (MASK, None, MASK)})
    words, cells, waves = prepare(batch, Classify(word_dropout=0.5)).named["mask"]
    assert cells is None and torch.equal(waves, MASK) and not torch.equal(words, MASK)
    rows = Batch((IDS, table), torch.zeros(3), torch.arange(3), {"mask": (MASK, there)})
    assert torch.equal(prepare(rows, Classify(word_dropout=0.5)).named["mask"][1], there)


@pytest.mark.quick
def test_a_share_of_all_words_is_refused() -> None:
    with pytest.raises(UserError, match="word_dropout 1.0 is above"):
        Classify(word_dropout=1.0)
