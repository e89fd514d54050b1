"""Classifiers and regressors of rows: tables, texts, images, and all of these together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anyformer.data.frame import Frame
from anyformer.errors import UserError
from anyformer.estimators.ablation import Ablation, ablate
from anyformer.estimators.base import ClassifierMixin, RegressorMixin
from anyformer.estimators.labels import Cells, classes_of, spell_classes
from anyformer.estimators.taking import RowEstimator, Target

TABULAR = ("number", "category", "date")


class Classifier(ClassifierMixin, RowEstimator):
    """Base class: classify rows."""

    task = "classify"
    classes_: np.ndarray
    _given: np.ndarray | None = None  # the classes, if y was given as data
    _order: list[int]  # index in `classes_` of each label of the training

    def fit(self, X: Any, y: Any = None, *, target: Target = None) -> Any:
        """Train on X and y, or on a table or file whose column `target` (or y, as a name) is to be predicted."""
        source, targets, asked = self._take(X, y, target)
        self._learn(source, targets, asked)
        labels = list(self.predictor_.labels or ())
        if self._given is not None:
            self.classes_, words = self._given, spell_classes(self._given)
        else:
            cells = cells_of(source, self.target_[0]) if isinstance(source, Frame) else "file"
            self.classes_, words = classes_of(labels, cells), labels
        self._order = [words.index(label) for label in labels]
        return self

    def _column(self, y: Any) -> Any:
        import pyarrow as pa
        from sklearn.utils import assert_all_finite, column_or_1d
        from sklearn.utils.multiclass import check_classification_targets

        values = column_or_1d(y, warn=True)
        assert_all_finite(values, input_name="y")
        check_classification_targets(values)
        classes, codes = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise UserError(
                f"y has one class only, {classes.tolist()}", where="y", fix="give rows of at least two classes"
            )
        self._given = classes
        words = np.array(spell_classes(classes), dtype=object)
        return pa.array(words[codes].tolist(), pa.string())

    def _forget(self) -> None:
        super()._forget()
        self._given = None

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, in the order of `classes_`."""
        found = np.asarray(self._answers(self._rows(X)).probability, dtype=np.float64)
        share = np.zeros((len(found), len(self.classes_)))
        share[:, self._order] = found
        return share

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row; 0 or 1 per class for label sets."""
        share = self.predict_proba(X)
        if self._multi:
            return (share > 0.5).astype(np.int64)
        return self.classes_[share.argmax(1)]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy; with a table or file that has the target column, y may be left out."""
        if y is not None and not isinstance(y, str):
            return float(super().score(X, y, sample_weight))
        found = self._answers(self._rows(X))
        truth, predicted = np.asarray(found.truth), np.asarray(found.predicted)
        known = truth.reshape(len(truth), -1).min(1) >= 0
        if not known.any():
            raise UserError("no row has a known answer", where="score", fix="give y, or the target column")
        same = (truth == predicted).reshape(len(truth), -1).all(1)
        return float(same[known].mean())

    @property
    def _multi(self) -> bool:
        preprocess = self.predictor_.preprocess
        return preprocess is not None and preprocess.multi

    def _facts(self) -> dict[str, Any]:
        dtype = "object" if self.classes_.dtype == object else str(self.classes_.dtype)
        return super()._facts() | {"classes": self.classes_.tolist(), "dtype": dtype, "order": self._order}

    def _put_facts(self, facts: Mapping[str, Any]) -> None:
        super()._put_facts(facts)
        self.classes_ = np.array(facts["classes"], dtype=facts["dtype"])
        self._order = [int(place) for place in facts["order"]]
        if len(self._order) != len(self.predictor_.labels or ()) or max(self._order) >= len(self.classes_):
            raise ValueError("classes and labels do not fit")


class Regressor(RegressorMixin, RowEstimator):
    """Base class: predict numbers from rows."""

    task = "regress"
    numeric_target = True
    other = "MixedRegressor"

    def fit(self, X: Any, y: Any = None, *, target: Target = None) -> Any:
        """Train on X and y, or on a table or file whose column `target` (or y, as a name) is to be predicted."""
        source, targets, asked = self._take(X, y, target)
        self._learn(source, targets, asked)
        return self

    def _column(self, y: Any) -> Any:
        import pyarrow as pa
        from sklearn.utils import assert_all_finite, column_or_1d

        values = column_or_1d(y, warn=True).astype(np.float64)
        assert_all_finite(values, input_name="y")
        return pa.array(values)

    def predict(self, X: Any) -> np.ndarray:
        """A number per row; a row of numbers with several targets."""
        return np.asarray(self._answers(self._rows(X)).predicted, dtype=np.float64)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R²; with a table or file that has the target column, y may be left out."""
        if y is not None and not isinstance(y, str):
            return float(super().score(X, y, sample_weight))
        from sklearn.metrics import r2_score

        found = self._answers(self._rows(X))
        truth, predicted = np.asarray(found.truth, dtype=np.float64), np.asarray(found.predicted)
        known = np.isfinite(truth.reshape(len(truth), -1)).all(1)
        if not known.any():
            raise UserError("no row has a known answer", where="score", fix="give y, or the target column")
        return float(r2_score(truth[known], predicted[known]))


class TabularClassifier(Classifier):
    """Numbers, categories and dates into classes: by default an FT-Transformer."""

    kinds = TABULAR


class TabularRegressor(Regressor):
    """Numbers, categories and dates into a number: by default an FT-Transformer."""

    kinds = TABULAR


class TextClassifier(Classifier):
    """Texts into classes; X is a list of texts, or a table or file with one or two columns of text."""

    kinds, lists = ("text",), "text"


class TextRegressor(Regressor):
    """Texts into a number; X is a list of texts, or a table or file with one or two columns of text."""

    kinds, lists = ("text",), "text"


class ImageClassifier(Classifier):
    """Images into classes; X is a list of paths or of uint8 arrays, a table with a column of paths, or a folder."""

    kinds, lists = ("image",), "image"


class MixedClassifier(Classifier):
    """Text, numbers, categories, dates and an image of a row as one sequence, into classes."""

    def ablation(self, X: Any, y: Any = None) -> Ablation:
        """The score without each column in turn: its cells are taken as missing. Printed, it is a table."""
        return ablate(self, self._rows(X), y)


class MixedRegressor(Regressor):
    """Text, numbers, categories, dates and an image of a row as one sequence, into a number."""

    def ablation(self, X: Any, y: Any = None) -> Ablation:
        """The score without each column in turn: its cells are taken as missing. Printed, it is a table."""
        return ablate(self, self._rows(X), y)


def cells_of(frame: Frame, name: str) -> Cells:
    """The type of a target column's cells."""
    import pyarrow as pa

    kind = frame.column(name).type
    if pa.types.is_boolean(kind):
        return "truths"
    return "numbers" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "words"
