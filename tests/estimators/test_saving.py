"""Saved without pickle, loaded to equal answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import anyformer
from anyformer import TabularClassifier, TabularRegressor, UserError
from tests.estimators.small import BLINK, blobs


@pytest.mark.parametrize("labels", [["no", "yes"], [3, 5], [False, True]])
def test_a_saved_classifier_answers_alike(labels: list, tmp_path: Path) -> None:
    X, y = blobs(40)
    fitted = TabularClassifier(**BLINK).fit(X, np.array(labels)[y])
    opened = TabularClassifier.load(fitted.save(tmp_path / "model"))
    assert np.array_equal(opened.predict_proba(X), fitted.predict_proba(X))
    assert np.array_equal(opened.predict(X), fitted.predict(X)) and opened.classes_.dtype == fitted.classes_.dtype
    assert opened.get_params() == fitted.get_params() and opened.n_features_in_ == 3
    assert opened.fit(X, y).n_iter_ == 3
    assert not [path for path in (tmp_path / "model").iterdir() if path.suffix in (".pkl", ".bin", ".pt")]


def test_names_and_targets_are_kept(tmp_path: Path) -> None:
    X, _ = blobs(40)
    cells = {"a": X[:, 0], "b": X[:, 1], "price": X[:, 2]}
    fitted = TabularRegressor(**BLINK).fit(cells, "price")
    opened = TabularRegressor.load(fitted.save(tmp_path / "model"))
    assert np.array_equal(opened.predict(cells), fitted.predict(cells)) and opened.score(cells) == fitted.score(cells)
    assert opened.feature_names_in_.tolist() == ["a", "b"]
    rows = [{"a": a, "b": b} for a, b in zip(X[:, 0].tolist(), X[:, 1].tolist(), strict=True)]
    assert np.allclose(anyformer.load(tmp_path / "model").predict(rows), fitted.predict(cells), rtol=1e-4)


def test_folders_that_are_not_right(tmp_path: Path) -> None:
    X, y = blobs(40)
    folder = TabularClassifier(**BLINK).fit(X, y).save(tmp_path / "model")
    with pytest.raises(UserError, match="holds a TabularClassifier"):
        TabularRegressor.load(folder)
    facts = json.loads((folder / "estimator.json").read_text())
    for broken in (
        facts | {"params": {"stesp": 1}},
        {name: value for name, value in facts.items() if name != "classes"},
        facts | {"order": ["x"]},
        facts | {"dtype": "strange"},
    ):
        (folder / "estimator.json").write_text(json.dumps(broken))
        with pytest.raises(UserError, match="estimator.json"):
            TabularClassifier.load(folder)
    with pytest.raises(UserError, match="estimator.json"):
        TabularClassifier.load(tmp_path)
