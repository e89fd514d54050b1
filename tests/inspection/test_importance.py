"""Importance of columns: attention against loops, shuffled columns against scikit-learn's rule, ranks against scipy."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from anyformer.errors import UserError
from anyformer.inspection.capture import look
from anyformer.inspection.importance import (
    feature_attention,
    frame_with_truth,
    measured,
    permutation_importance,
    rank_correlation,
    ranks,
    with_shuffled,
)
from tests.inspection import models

ROWS = [models.ROW, models.ROW | {"age": 70.0, "city": "Rome"}, models.ROW | {"age": 20.0, "pet": "cat"}]


def test_attention_of_columns_is_the_mean_of_the_maps():
    capture = look(models.ft(), ROWS)
    found = feature_attention(capture)
    assert found.names == ("age", "income", "city", "pet")
    assert found.from_class.shape[:2] == (3, len(capture.sites)) and found.pairs.shape == (3, 4, 4)
    total, pairs = np.zeros(4), np.zeros((4, 4))
    for row in range(3):
        for site in capture.sites:
            maps = capture.weights(site.index, row=row).numpy()
            for head in range(site.heads):
                total += maps[head, 0, 1:] / (3 * len(capture.sites) * site.heads)
                pairs += maps[head, 1:, 1:] / (3 * len(capture.sites) * site.heads)
    assert np.abs(found.mean() - total).max() < 1e-6
    assert np.abs(found.between() - pairs).max() < 1e-6
    assert found.itself.mean() + found.mean().sum() == pytest.approx(1, abs=1e-5)  # a row of weights has no other token
    assert np.abs(found.mean() - total[::-1]).max() > 1e-3  # control: another order of columns is seen


def test_one_row_is_that_row_alone():
    both, alone = feature_attention(look(models.ft(), ROWS)), feature_attention(look(models.ft(), ROWS[1]))
    assert np.abs(both.mean(1) - alone.mean()).max() < 1e-5
    assert np.abs(both.mean(0) - alone.mean()).max() > 1e-5
    assert np.abs(both.between(1) - alone.between(0)).max() < 1e-5


def test_models_of_words_have_no_columns():
    with pytest.raises(UserError, match="no class token that looks at columns"):
        feature_attention(look(models.bert(), models.TEXT))


def test_a_shuffled_column_costs_what_the_model_reads_in_it():
    """The answer follows from age and city alone; the model has learned it well enough to lose by either."""
    found = permutation_importance(models.ft(), models.table_file(), repeats=3)
    drop = dict(zip(found.names, found.mean, strict=True))
    assert found.rows == 200 and found.drops.shape == (4, 3)
    assert drop["age"] > 0.1 and drop["age"] > max(drop["income"], drop["pet"]) + 0.05
    assert str(found).splitlines()[1].startswith("age")


def test_drops_are_differences_of_the_metric_on_shuffled_cells():
    """By hand: predictions on rows whose cells were moved, compared with the labels."""
    predictor = models.ft()
    with models.table_file().open() as file:
        rows = list(csv.DictReader(file))
    truth = [row["buys"] for row in rows]

    def accuracy(given):
        said = predictor.predict([{name: row[name] for name in models.ROW} for row in given])
        return np.mean([a == b for a, b in zip(said, truth, strict=True)])

    found = permutation_importance(
        predictor, models.table_file(), metric="accuracy", columns=["age"], repeats=2, seed=7
    )
    assert found.whole == pytest.approx(accuracy(rows))
    generator = np.random.default_rng(7)
    for repeat in range(2):
        order = generator.permutation(len(rows))
        moved = [row | {"age": rows[j]["age"]} for row, j in zip(rows, order, strict=True)]
        assert found.drops[0, repeat] == pytest.approx(accuracy(rows) - accuracy(moved))


def test_a_metric_of_which_less_is_better_is_turned_round():
    by_loss = permutation_importance(models.ft(), models.table_file(), metric="log_loss", columns=["age"], repeats=2)
    assert by_loss.mean[0] > 0


def test_the_same_seed_gives_the_same_drops_from_files_rows_and_tables():
    with models.table_file().open() as file:
        rows = [row | {"age": float(row["age"]), "income": float(row["income"])} for row in csv.DictReader(file)]
    given = {"repeats": 1, "seed": 3, "columns": ["city"]}
    first = permutation_importance(models.ft(), models.table_file(), **given)
    assert permutation_importance(models.ft(), models.table_file(), **given).drops == first.drops
    assert permutation_importance(models.ft(), rows, **given).drops == pytest.approx(first.drops)
    assert permutation_importance(models.ft(), rows, **given, most=50).rows == 50


def test_shuffling_moves_one_column_and_no_other():
    frame = frame_with_truth(models.ft(), models.table_file())
    moved = with_shuffled(frame, "age", np.arange(len(frame))[::-1].copy())
    assert moved.column("age").to_pylist() == frame.column("age").to_pylist()[::-1]
    assert moved.column("city").to_pylist() == frame.column("city").to_pylist()
    assert measured(models.ft(), frame, None, 64)[0] == "accuracy"


@pytest.mark.parametrize(("given", "message"), [
    ({"columns": ["agee"]}, "did you mean 'age'"),
    ({"metric": "rmse"}, "unknown metric 'rmse'"),
    ({"repeats": 0}, "below 1"),
])  # fmt: skip
def test_what_cannot_be_measured_is_said(given, message):
    with pytest.raises(UserError, match=message):
        permutation_importance(models.ft(), models.table_file(), **given)


def test_rows_need_their_answers_and_models_their_columns():
    with pytest.raises(UserError, match="to compare with"):
        permutation_importance(models.ft(), ROWS)
    with pytest.raises(UserError, match="not trained on columns"):
        permutation_importance(models.bert(), ROWS)


@pytest.mark.parametrize("seed", range(4))
def test_rank_correlation_is_that_of_scipy(seed):
    generator = np.random.default_rng(seed)
    a, b = generator.integers(0, 6, 12), generator.normal(size=12)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert rank_correlation(a, -b) == pytest.approx(-spearmanr(a, b).statistic)
    assert rank_correlation(a, np.ones(12)) is None
    assert ranks([5, 1]).tolist() == [2, 1]
    with pytest.raises(UserError, match="common order"):
        rank_correlation([1, 2], [1])


def test_looking_needs_no_gradients():
    capture = look(models.ft(), ROWS)
    before = torch.is_grad_enabled()
    feature_attention(capture)
    assert torch.is_grad_enabled() == before


def test_a_file_is_looked_at_row_by_row_and_its_columns_are_shuffled():
    from anyformer.inspection.answer import Query
    from anyformer.inspection.views import table

    capture = look(models.ft(), models.table_file())
    assert feature_attention(capture).from_class.shape[0] == 200
    found = table.answer(capture, Query())
    lost = permutation_importance(models.ft(), models.table_file(), repeats=3)
    assert found.arrays["drops"].tolist() == pytest.approx(lost.mean.tolist())
    both = spearmanr(feature_attention(capture).mean(), lost.mean).statistic
    assert f"(Spearman {both:.2f})" in found.facts["agreement"]
    one = table.answer(capture, Query(options={"row": "7"}))
    assert np.abs(one.arrays["from_class"].mean((0, 1)) - feature_attention(capture).mean(6)).max() < 1e-6
    with pytest.raises(UserError, match="row"):
        table.answer(capture, Query(options={"row": "201"}))
