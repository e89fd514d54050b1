"""Convert X and y to training input: recorded at fit, validated against it afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from anyformer.data.files.tables import frame_of
from anyformer.data.frame import Frame
from anyformer.errors import UserError
from anyformer.estimators.base import Estimator, check_is_fitted, validate_data
from anyformer.estimators.inputs import (
    files_of,
    free_name,
    holds_words,
    is_table,
    of_cells,
    of_list,
    of_numbers,
    of_pictures,
    only,
    with_column,
)

Target = str | Sequence[str] | None
# Missing cells are supported; infinite ones are an error.
NUMBERS: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}


class RowEstimator(Estimator):
    """An estimator of rows: matrices, tables with names, lists of one kind of value, or files."""

    lists: ClassVar[str] = ""  # name of the single column if X may be a plain list

    # ------------------------------------------------------------ to fit

    def _take(self, X: Any, y: Any, target: Target) -> tuple[Any, tuple[str, ...], dict[str, Any]]:
        """The training data, its targets, and the settings derived from X."""
        if isinstance(y, str) and target is None:
            y, target = None, y
        targets = (target,) if isinstance(target, str) else tuple(target or ())
        self._forget()
        files = files_of(X)
        if files is not None:
            if y is not None:
                raise UserError("y is given beside files", where="y", fix="name the column with target=")
            return files, targets, {}
        if targets and y is not None:
            raise UserError("both y and target are given", where="target", fix="give one of them")
        if is_table(X):
            frame = frame_of(X)
            if y is not None:
                frame, targets = self._with_target(frame, y)
            self._named([name for name in frame.names if name not in targets])
            return frame, targets, {}
        if targets:
            raise UserError(f"X has no column {targets[0]!r}: it has no names", where="target", fix="give a table")
        frame, y, asked = self._unnamed(X, y)
        frame, targets = self._with_target(frame, y)
        return frame, targets, asked

    def _unnamed(self, X: Any, y: Any) -> tuple[Frame, Any, dict[str, Any]]:
        """A list or a matrix as a frame; every column of a numeric matrix is used as a number."""
        if self.lists:
            if y is None:
                raise missing_y(self)
            frame = of_pictures(X) if self.lists == "image" else of_list(X, self.lists)
            self.n_features_in_ = 1
            return frame, y, {"data.types": (f"{self.lists}={self.lists}",)}
        if holds_words(X):
            if y is None:
                raise missing_y(self)
            frame = of_cells(X)
            self.n_features_in_ = len(frame.names)
            return frame, y, {}
        X, y = validate_data(self, X, y, **NUMBERS, ensure_min_samples=2, y_numeric=self.numeric_target)
        names = tuple(f"x{at}" for at in range(X.shape[1]))
        asked = {"data.types": tuple(f"{name}=number" for name in names), "data.inputs": names}
        return of_numbers(X, names), y, asked

    def _with_target(self, frame: Frame, y: Any) -> tuple[Frame, tuple[str, ...]]:
        """The frame with the target as a column."""
        wanted = getattr(y, "name", None)
        name = free_name(frame.names, wanted if isinstance(wanted, str) and wanted else "target")
        return with_column(frame, name, self._column(y)), (name,)

    def _column(self, y: Any) -> Any:
        """Targets as an Arrow column."""
        raise NotImplementedError

    def _forget(self) -> None:
        for name in ("n_features_in_", "feature_names_in_"):
            if name in vars(self):
                delattr(self, name)

    def _named(self, names: list[str]) -> None:
        self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = len(names)

    # ------------------------------------------------------------ after it

    def _rows(self, X: Any) -> Any:
        """New rows as a frame for the model, or their files."""
        check_is_fitted(self, "predictor_")
        files = files_of(X)
        if files is not None:
            return files
        names = getattr(self, "feature_names_in_", None)
        if names is not None and is_table(X):
            read = [column.name for column in self.predictor_.preprocess.columns or ()]  # type: ignore[union-attr]
            return only(frame_of(X), read, list(names), self.target_)
        if self.lists and not is_table(X):
            return of_pictures(X) if self.lists == "image" else of_list(X, self.lists)
        if names is None:
            frame = of_cells(X) if holds_words(X) else self._numbers(X)
        else:
            warnings.warn(
                f"X does not have valid feature names, but {type(self).__name__} was fitted with feature names",
                stacklevel=3,
            )
            frame = of_cells(X)
        if len(frame.names) != self.n_features_in_:
            raise UserError(
                f"X has {len(frame.names)} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input", fix="give the columns it was fitted on",
            )  # fmt: skip
        return frame if names is None else Frame(frame.table.rename_columns(list(names)), frame.sources)

    def _numbers(self, X: Any) -> Frame:
        X = validate_data(self, X, reset=False, **NUMBERS)
        return of_numbers(X, [f"x{at}" for at in range(X.shape[1])])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self.lists:
            tags.input_tags.two_d_array = False
            tags.input_tags.one_d_array = True
            tags.input_tags.string = self.lists == "text"
        return tags


def missing_y(estimator: Any) -> UserError:
    return UserError(
        f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None", where="fit",
        fix="give y, or a table and target=",
    )  # fmt: skip
