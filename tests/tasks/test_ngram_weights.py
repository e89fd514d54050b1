"""N-grams weighed by a regression before the first step: it is scikit-learn's, and a training begins there."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from anyformer.core.model import Model
from anyformer.data.reopen import reopen
from anyformer.heads import WideAndDeep
from anyformer.objectives import Classify, Regression
from anyformer.tasks import ngram_weights
from anyformer.tasks.ngram_weights import Fitted, Losses, NGramRows, inverse_frequency, narrow, search, solve
from anyformer.training.train import Run, train

BUCKETS, CLASSES = 30, 3


def random_rows(count: int, seed: int) -> NGramRows:
    """Rows of five n-grams each, whose first one decides the class, mostly."""
    draw = np.random.default_rng(seed)
    buckets = np.stack([draw.choice(BUCKETS, 5, replace=False) for _ in range(count)])
    targets = np.where(draw.random(count) < 0.8, buckets[:, 0] % CLASSES, draw.integers(0, CLASSES, count))
    shares = torch.full((5 * count,), 5**-0.5)
    return NGramRows(torch.from_numpy(buckets.reshape(-1)), shares, torch.arange(count) * 5, torch.from_numpy(targets))


def dense(rows: NGramRows) -> np.ndarray:
    made = np.zeros((len(rows), BUCKETS))
    made[np.repeat(np.arange(len(rows)), 5), rows.buckets.numpy()] = rows.shares.numpy()
    return made


def nothing(outputs: int, strength: float) -> Fitted:
    return Fitted(torch.zeros(BUCKETS + 1, outputs), torch.zeros(outputs), strength)


@pytest.mark.parametrize("strength", [1.0, 30.0])
def test_classes_are_weighed_as_scikit_learn_does(strength: float) -> None:
    from sklearn.linear_model import LogisticRegression

    rows = random_rows(400, 0)
    losses: Losses = Classify().class_loss
    ours = solve(rows, nothing(CLASSES, strength), losses)
    theirs = LogisticRegression(C=strength, max_iter=1000, tol=1e-6).fit(dense(rows), rows.targets.numpy())
    said = rows.logits(ours.weight, ours.bias).softmax(1).numpy()
    assert np.abs(said - theirs.predict_proba(dense(rows))).max() < 0.01
    other = LogisticRegression(C=strength / 10, max_iter=1000).fit(dense(rows), rows.targets.numpy())
    assert np.abs(said - other.predict_proba(dense(rows))).max() > 0.05  # control: another penalty is another model


def test_numbers_are_weighed_as_scikit_learn_does() -> None:
    from sklearn.linear_model import Ridge

    rows = random_rows(300, 1)
    targets = rows.targets.float() * 2 - 1
    found = NGramRows(rows.buckets, rows.shares, rows.begins, targets)
    plain = Regression()
    ours = solve(found, nothing(1, 4.0), lambda said, wanted: plain.each(said, wanted).sum(1) / 2)
    theirs = Ridge(alpha=0.25).fit(dense(rows), targets.numpy())
    assert rows.logits(ours.weight, ours.bias)[:, 0].numpy() == pytest.approx(theirs.predict(dense(rows)), abs=0.01)


def test_validation_rows_choose_the_penalty_and_unknown_n_grams_say_nothing() -> None:
    train_rows, valid_rows = random_rows(200, 2), random_rows(200, 3)
    losses: Losses = Classify().class_loss
    best = search(train_rows, valid_rows, BUCKETS, CLASSES, losses)
    judged = float(losses(valid_rows.logits(best.weight, best.bias), valid_rows.targets).mean())
    for strength in ngram_weights.STRENGTHS:
        other = solve(train_rows, nothing(CLASSES, strength), losses)
        assert judged <= float(losses(valid_rows.logits(other.weight, other.bias), valid_rows.targets).mean()) + 1e-3
    assert bool((best.weight[-1] == 0).all())
    kept = torch.tensor([2, 5, 7])
    assert narrow(NGramRows(torch.tensor([5, 6, 9]), *[torch.zeros(3)] * 3), kept).buckets.tolist() == [1, 3, 3]


def test_rare_n_grams_count_more() -> None:
    rows = NGramRows(torch.tensor([0, 0, 0, 1]), torch.ones(4), torch.arange(4), torch.zeros(4))
    rarity = inverse_frequency(rows, 2)
    assert 1 < rarity[0] < rarity[1] and rarity[2] == 0  # what training never had counts nothing


def test_of_too_many_rows_some_of_every_class_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is sorted by its labels: the first rows would all be of one class."""
    given = texts(1600)
    order = sorted(range(1600), key=lambda row: given["label"][row])
    run = train({name: [cells[row] for row in order] for name, cells in given.items()}, target="label", device="cpu",
                steps=1, out=tmp_path / "run", quiet=True, progress="none")  # fmt: skip
    data, model = reopen(run.folder.cache), run.folder.config().model
    assert data is not None and isinstance(model, Model) and isinstance(model.head, WideAndDeep)
    monkeypatch.setattr(ngram_weights, "MOST_ENTRIES", 1)  # one batch of rows
    rows = ngram_weights.gather_rows(model.head, data.train, Classify().counted)
    assert len(rows) == ngram_weights.AT_ONCE < len(data.train)
    assert 0.3 < float(rows.targets.float().mean()) < 0.7


# ---------------------------------------------------------------- a run


def texts(rows: int) -> dict[str, list[str]]:
    """A class that one word in twelve tells, among words that tell nothing."""
    draw = random.Random(0)
    noise = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "el", "ir")]
    telling = {"good": ["sunny", "lovely", "great"], "bad": ["awful", "rainy", "poor"]}
    labels = [draw.choice(["good", "bad"]) for _ in range(rows)]
    lines = [[*draw.choices(noise, k=11), draw.choice(telling[label])] for label in labels]
    for line in lines:
        draw.shuffle(line)
    return {"text": [" ".join(line) for line in lines], "label": labels}


def one_step(folder: Path, **settings: bool) -> Run:
    return train(texts(500), target="label", device="cpu", steps=1, out=folder, quiet=True, progress="none",
                 settings={f"model.head.{name}": value for name, value in settings.items()})  # fmt: skip


def test_a_training_begins_where_the_regression_ends(tmp_path: Path) -> None:
    fitted, fresh = one_step(tmp_path / "fitted"), one_step(tmp_path / "fresh", fitted=False)
    assert fitted.metrics["accuracy"] > 0.9
    assert fresh.metrics["accuracy"] < 0.8  # control: a single step knows next to nothing
    said = fitted.predictor("cpu").predict([{"text": "ba de lovely fi"}, {"text": "awful go ki"}])
    assert said == ["good", "bad"]
