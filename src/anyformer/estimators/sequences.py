"""Estimators that predict sequences: a tag per word, a translation, a continuation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.files.tables import frame_of
from anyformer.data.frame import Frame
from anyformer.data.settings import Data
from anyformer.errors import UserError
from anyformer.estimators.base import Estimator, check_is_fitted
from anyformer.estimators.inputs import files_of, is_table, list_values, of_list
from anyformer.evaluation.answers import Answers
from anyformer.log import silence
from anyformer.tasks import find

WORDS, TAGS, SOURCE, WRITTEN = "words", "tags", "source", "target"


class SequenceEstimator(Estimator):
    """Base class: X is a list of sequences, y a list of the same length."""

    reads: str = SOURCE
    writes: str = WRITTEN

    def _pairs(self, X: Any, y: Any) -> tuple[Any, tuple[str, ...]]:
        """The data to train or evaluate on, and the name of its target if needed."""
        files = files_of(X)
        if files is not None:
            other = files_of(y) if y is not None else None
            if other is not None and other[0].is_file():
                return [*files, *other], ()
            return files, () if y is None else (str(y),)
        if is_table(X):
            frame = frame_of(X)
            if y is None or isinstance(y, str):
                return frame, () if y is None else (y,)
            X = frame.column(self.reads if self.reads in frame.names else frame.names[0]).to_pylist()
        if y is None:
            raise UserError("y is None", where="y", fix=f"give {self.writes} for every row of X")
        read, written = list_values(X), list_values(y)
        if len(read) != len(written):
            raise UserError(f"X has {len(read)} rows, y has {len(written)}", where="y", fix="give one for each row")
        return frame_of({self.reads: plain_lists(read), self.writes: plain_lists(written)}), (self.writes,)

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self, "predictor_")
        if files_of(X) is not None or is_table(X):
            return files_of(X) or frame_of(X)
        preprocess = self.predictor_.preprocess
        name = preprocess.columns[0].name if preprocess is not None and preprocess.columns else self.reads
        return of_list(plain_lists(list_values(X)), name)

    def _evaluate(self, X: Any, y: Any) -> Answers:
        check_is_fitted(self, "predictor_")
        source, _ = self._pairs(X, y)
        if isinstance(source, Frame):
            preprocess = self.predictor_.preprocess
            assert preprocess is not None and preprocess.columns and preprocess.target
            names = {self.reads: preprocess.columns[0].name, self.writes: preprocess.target.names[0]}
            renamed = source.table.rename_columns([names.get(name, name) for name in source.names])
            source = Frame(renamed, source.sources)
        return self._answers(source)

    def score(self, X: Any, y: Any = None) -> float:
        """The main metric of the task; larger is better."""
        found = self._evaluate(X, y)
        task = find(self.task)
        return float(task.metrics(found)[task.main_metric(labels=found.labels or ())])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        tags.target_tags.required = True
        return tags


class TokenTagger(SequenceEstimator):
    """Tag every word: X and y are lists of lists, or X is a CoNLL file."""

    task = "tag"
    reads, writes = WORDS, TAGS

    def fit(self, X: Any, y: Any = None) -> Any:
        """Train on sentences (lists of words) and their tags."""
        source, targets = self._pairs(X, y)
        self._learn(source, targets, {})
        self.classes_ = np.array(self.predictor_.labels or (), dtype=object)
        return self

    def predict(self, X: Any) -> list[list[str]]:
        """The tags of every sentence, one per word; words beyond the model's length get the outside tag."""
        return [list(tags) for tags in self._answers(self._rows(X)).predicted]

    def _put_facts(self, facts: Any) -> None:
        super()._put_facts(facts)
        self.classes_ = np.array(self.predictor_.labels or (), dtype=object)


class Translator(SequenceEstimator):
    """Text to text: X and y are lists of texts, or two line-aligned files."""

    task = "translate"
    stacks = ("encoder.stack", "decoder.stack")

    def fit(self, X: Any, y: Any = None) -> Any:
        """Train on source texts and target texts."""
        source, targets = self._pairs(X, y)
        self._learn(source, targets, {"data.types": ("source=text", "target=text")} if isinstance(source, Frame) and
                    set(source.names) == {SOURCE, WRITTEN} else {})  # fmt: skip
        return self

    def predict(self, X: Any) -> list[str]:
        """The generated text for every source text, by beam search."""
        return [str(text) for text in self._answers(self._rows(X)).predicted]


class LanguageModel(Estimator):
    """Language modelling: X is a list of texts, a file or a folder."""

    task = "lm"

    def fit(self, X: Any, y: Any = None) -> Any:
        """Train on texts; y is ignored."""
        files = files_of(X)
        source = files if files is not None else frame_of({"text": [str(text) for text in list_values(X)]})
        self._learn(source, (), {} if files is not None else {"data.inputs": ("text",)})
        return self

    def predict(self, X: Sequence[str], *, tokens: int = 40) -> list[str]:
        """Continue each text by at most `tokens` tokens with greedy decoding."""
        check_is_fitted(self, "predictor_")
        return list(self.predictor_.generate(list_values(X), max_new_tokens=tokens, do_sample=False))

    def score(self, X: str | Path | Sequence[str], y: Any = None) -> float:
        """The mean log-probability per token, in nats."""
        check_is_fitted(self, "predictor_")
        files = files_of(X)
        if files is not None:
            from anyformer.inference.evaluate import evaluate_files

            found = evaluate_files(self.predictor_, files, settings=Data(), batch_size=32, log=silence)
            return -float(found["loss"])
        scored = [self.predictor_.score(str(text)) for text in list_values(X)]
        tokens = sum(int(found.counts.sum()) for found in scored)
        if not tokens:
            raise UserError("no token has another before it", where="X", fix="give longer texts")
        return sum(float(found.total.sum()) for found in scored) / tokens

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        return tags


def plain_lists(cells: list[Any]) -> list[Any]:
    """Convert tuples and arrays inside a list to lists, so that it is recognised as a column of lists."""
    return [list(cell) if isinstance(cell, tuple | np.ndarray) else cell for cell in cells]
