"""The estimators where people use them: searches, cross-validation, pipelines, copies."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from anyformer import Attention, TabularClassifier, TabularRegressor, TextClassifier
from tests.estimators.small import BLINK, FIT, LEAN, blobs


def test_a_grid_search_in_two_processes_varies_parts_of_the_model() -> None:
    X, y = blobs()
    grid = {"norm": ["LayerNorm", "RMSNorm"], "mixer": [Attention(heads=2)]}
    search = GridSearchCV(TabularClassifier(**FIT | {"steps": 10}), grid, cv=2, n_jobs=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 2
    best = search.best_estimator_.predictor_.spec.stack.block
    assert {type(block.norm).__name__ for block in best} == {search.best_params_["norm"]}
    assert {block.mixer.heads for block in best} == {2}
    assert search.best_score_ > 0.6 and search.predict(X).shape == y.shape


def test_positions_by_parameter_and_by_path() -> None:
    texts, y = ["good day", "bad night"] * 8, [1, 0] * 8
    small = {"model.stack.width": 32, "model.stack.depth": 1, "training.eval_every": 1000}
    fitted = TextClassifier(steps=2, position="Alibi", settings=small).fit(texts, y)
    by_path = TextClassifier(steps=2, settings=small | {"model.stack.block.relative": "Alibi"}).fit(texts, y)
    absolute = TextClassifier(steps=2, position="Sinusoid", settings=small).fit(texts, y)
    assert type(fitted.predictor_.spec.stack.block.relative).__name__ == "Alibi"
    assert fitted.predictor_.spec == by_path.predictor_.spec != absolute.predictor_.spec
    assert type(absolute.predictor_.spec.embed.position).__name__ == "Sinusoid"


def test_cross_validation_and_pipelines() -> None:
    X, y = blobs()
    assert cross_val_score(TabularClassifier(**FIT), X, y, cv=2, error_score="raise").min() > 0.85
    scaled = make_pipeline(StandardScaler(), TabularClassifier(**FIT)).fit(X, y)
    assert scaled.score(X, y) > 0.9
    chosen = ColumnTransformer([("one", StandardScaler(), [1])])
    alone = make_pipeline(chosen, TabularClassifier(**FIT)).fit(X, y)
    assert alone.score(X, y) > 0.9 and alone[-1].n_features_in_ == 1


@pytest.mark.quick
def test_parameters_stay_as_they_were_given() -> None:
    settings = dict(LEAN)
    made = TabularClassifier("ft-transformer-tiny", steps=7, settings=settings)
    assert made.settings is settings and made.get_params()["steps"] == 7
    again = clone(made.set_params(steps=8))
    assert again.steps == 8 and again.settings == settings and again.settings is not settings
    with pytest.raises(ValueError, match="Invalid parameter 'stesp'"):
        made.set_params(stesp=8)
    with pytest.raises(NotFittedError):
        made.predict([[1.0]])


def test_pickles_and_copies_answer_alike() -> None:
    X, y = blobs(40)
    fitted = TabularRegressor(**BLINK).fit(X, y)
    wanted = fitted.predict(X)
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert np.array_equal(other.predict(X), wanted) and other.get_params() == fitted.get_params()
        assert other.n_iter_ == 3 and [step["step"] for step in other.history_ if "loss" in step] == [1, 2, 3]


def test_two_fits_are_equal_and_another_seed_is_not() -> None:
    X, y = blobs(40)
    made = [TabularRegressor(**BLINK, random_state=seed).fit(X, y).predict(X) for seed in (None, 0, 1)]
    assert np.array_equal(made[0], made[1]) and not np.allclose(made[1], made[2])


def test_a_fit_leaves_torch_as_it_was() -> None:
    import torch

    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    X, y = blobs(40)
    TabularRegressor(**BLINK).fit(X, y)
    assert torch.equal(torch.rand(2), wanted) and torch.get_num_threads() == 1
