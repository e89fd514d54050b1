"""What X and y may be: matrices, tables with names, files, cells that are words; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import anyformer
from anyformer import MixedClassifier, TabularClassifier, TabularRegressor, UserError
from tests.estimators.small import BLINK, FIT, blobs


def table(rows: int = 120) -> tuple[dict[str, Any], np.ndarray]:
    X, y = blobs(rows)
    shop = np.where(y == 1, "north", "south").tolist()
    return {"size": X[:, 0], "shop": shop}, y


def test_a_file_with_a_target_by_name(tmp_path: Path) -> None:
    cells, y = table()
    path = tmp_path / "train.csv"
    lines = [f"{a:.4f},{b},{c}" for a, b, c in zip(cells["size"], cells["shop"], y, strict=True)]
    path.write_text("\n".join(["size,shop,y", *lines]))
    fitted = TabularClassifier(**FIT).fit(str(path), target="y")
    assert fitted.classes_.tolist() == [0, 1] and fitted.score(path) > 0.95
    assert fitted.predict(path).dtype == fitted.classes_.dtype
    assert fitted.feature_names_in_.tolist() == ["size", "shop"] and fitted.n_features_in_ == 2
    assert fitted.predict([{"size": 0.0, "shop": "north"}, {"size": 0.0, "shop": "south"}]).tolist() == [1, 0]


@pytest.mark.parametrize("form", ["columns", "rows", "arrow"])
def test_tables_in_python(form: str) -> None:
    cells, y = table()
    size = cells["size"].tolist()
    rows = [{"size": a, "shop": b} for a, b in zip(size, cells["shop"], strict=True)]
    X: Any = {"columns": cells, "rows": rows, "arrow": pa.table(cells)}[form]
    fitted = TabularClassifier(**FIT).fit(X, y)
    assert fitted.score(X, y) > 0.95
    whole = {**cells, "answer": y}
    named = TabularClassifier(**FIT).fit(whole, "answer")
    assert np.array_equal(named.predict_proba(X), fitted.predict_proba(X))
    assert named.score(whole) == fitted.score(X, y)


def test_a_matrix_and_a_table_of_the_same_numbers_give_the_same_answers() -> None:
    X, y = blobs(60)
    names = ["a", "b", "c"]
    plain = TabularRegressor(**BLINK).fit(X, y)
    named = TabularRegressor(**BLINK).fit(dict(zip(names, X.T, strict=True)), y)
    shuffled = dict(zip(names[::-1], X.T[::-1], strict=True))
    one, other = (fitted.predictor_.model.state_dict() for fitted in (plain, named))
    assert all(np.array_equal(one[name].numpy(), other[name].numpy()) for name in one)
    assert np.allclose(named.predict(shuffled), plain.predict(X), rtol=1e-6)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert np.allclose(named.predict(X), plain.predict(X), rtol=1e-6)


def test_cells_that_are_words_are_categories() -> None:
    cells, y = table(60)
    X = np.array([cells["size"].tolist(), cells["shop"]], dtype=object).T
    for given in (X, X.tolist()):
        assert TabularClassifier(**FIT).fit(given, y).score(given, y) > 0.9


def test_missing_numbers_are_values() -> None:
    X, y = blobs(120)
    X[::7, 0] = np.nan
    X[:, 2] = np.nan  # a whole column
    assert TabularClassifier(**FIT).fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize(
    "labels",
    [[0, 1], [-3, 12], ["no", "yes"], ["", "a;b"], ["NA", "-"], [False, True], [0.0, 1.0], [" x", "x"]],
)
def test_labels_come_back_as_they_were(labels: list[Any]) -> None:
    X, y = blobs(60)
    wanted = np.array(labels)[y]
    fitted = TabularClassifier(**FIT).fit(X, wanted)
    assert fitted.classes_.tolist() == sorted(labels) and fitted.classes_.dtype == wanted.dtype
    assert fitted.score(X, wanted) > 0.9


def test_several_targets_of_a_table() -> None:
    X, y = blobs(80)
    cells = {"a": X[:, 0], "b": X[:, 1], "one": X[:, 0] * 2, "two": X[:, 1] - 1}
    fitted = TabularRegressor(**FIT).fit(cells, target=["one", "two"])
    assert fitted.predict(cells).shape == (80, 2) and fitted.score(cells) > 0.3
    labels = {"a": X[:, 0], "b": X[:, 1], "up": (X[:, 0] > 0).astype(int), "right": y}
    several = TabularClassifier(**FIT).fit(labels, target=["up", "right"])
    assert several.predict(labels).shape == (80, 2) and several.predict_proba(labels).shape == (80, 2)


def cases() -> dict[str, tuple[Any, str]]:
    X, y = blobs(30)
    cells = {"a": X[:, 0], "b": X[:, 1]}
    texts = {"a": X[:, 0], "note": [f"a long text of many words, number {i} of them" for i in range(30)]}
    kind = TabularClassifier(**BLINK)
    return {
        "one class": (lambda: kind.fit(X, np.ones(30)), "one class"),
        "no y": (lambda: kind.fit(X), "requires y to be passed"),
        "name without names": (lambda: kind.fit(X, target="y"), "X has no column 'y'"),
        "unknown name": (lambda: kind.fit(cells, target="c"), "no column 'c'"),
        "y and target": (lambda: kind.fit(cells, y, target="a"), "both y and target"),
        "y beside a file": (lambda: kind.fit("x.csv", y), "y is given beside files"),
        "lengths": (lambda: kind.fit(cells, y[:-1]), "inconsistent numbers of samples: \\[30, 29\\]"),
        "infinite": (lambda: kind.fit(np.where(X > 1, np.inf, X), y), "infinity"),
        "text column": (lambda: kind.fit(texts, y), "'note' holds text, which TabularClassifier does not read"),
        "nan in y": (lambda: TabularRegressor(**BLINK).fit(cells, [np.nan] * 30), "NaN"),
        "setting": (lambda: TabularClassifier(settings={"model.stack.detph": 2}).fit(X, y), "depth"),
        "section": (lambda: TabularClassifier(settings={"steps": 2}).fit(X, y), "no such setting"),
        "part": (lambda: TabularClassifier("ft-transformer-tiny", norm="RMSNrom").fit(X, y), "RMSNorm"),
        "no file": (lambda: kind.fit("nowhere.csv", target="y"), "nowhere.csv"),
    }


@pytest.mark.parametrize("name", cases())
def test_mistakes_are_named(name: str) -> None:
    act, said = cases()[name]
    with pytest.raises(ValueError, match=said) as caught:
        act()
    assert len(str(caught.value).split("\n")[0]) <= 400


def test_columns_at_predict_must_be_those_of_fit() -> None:
    X, y = blobs(30)
    fitted = TabularClassifier(**BLINK).fit({"a": X[:, 0], "b": X[:, 1]}, y)
    with pytest.raises(UserError, match="seen at fit time, yet now missing: b"):
        fitted.predict({"a": X[:, 0]})
    with pytest.raises(UserError, match="unseen at fit time: c"):
        fitted.predict({"a": X[:, 0], "b": X[:, 1], "c": y})
    with pytest.raises(ValueError, match="X has 3 features, but TabularClassifier is expecting 2"), pytest.warns():
        fitted.predict(X)


def test_what_is_fitted_to_data_sees_training_rows_only() -> None:
    X, y = blobs(80)
    side = np.where(np.arange(80) % 5 == 0, "valid", "train")
    shops = np.array(["north", "south", "east"])[np.arange(80) % 3].astype(object)
    lean = BLINK["settings"] | {"data.columns.scale": "quantile", "data.split.column": "side"}

    def fitted(rows: np.ndarray) -> str:
        """What is fitted where some rows have other numbers and a new category."""
        a, b = X[:, 0].copy(), shops.copy()
        a[rows], b[rows] = 1000.0, "west"
        cells = {"a": a, "b": b.tolist(), "side": side.tolist()}
        return MixedClassifier(**BLINK | {"settings": lean}).fit(cells, y).predictor_.preprocess.to_json()

    held, trained = np.flatnonzero(side == "valid")[:5], np.flatnonzero(side == "train")[:5]
    assert fitted(held) == fitted(held[:0]) != fitted(trained)


def test_a_kept_fit_is_a_run_with_its_report(tmp_path: Path) -> None:
    X, y = blobs(60)
    made = TabularClassifier(**BLINK, keep=tmp_path / "kept")
    first, second = made.fit(X, y).run_.path, made.fit(X, y).run_.path
    assert first != second and (first / "report.html").is_file() and made.run_.metrics["accuracy"] >= 0
    share = anyformer.load(second).predict_proba([{"x0": a, "x1": b, "x2": c} for a, b, c in X.tolist()])
    assert np.allclose(share.numpy(), made.predict_proba(X), atol=1e-5)
    assert TabularClassifier(**BLINK).fit(X, y).run_ is None
