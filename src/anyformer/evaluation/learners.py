"""The strong baselines, each a few lines of scikit-learn: linear models, gradient boosting."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows, sample_rows, take_items
from anyformer.evaluation.features import design, word_features
from anyformer.extras import install_command, is_installed

MOST_ROWS = 50_000  # training rows; above it a sample is drawn, and the baseline's name says so
MOST_WORDS = 200_000  # training words of a tagger
WORK = 3_000_000_000  # multiplications of a linear model's fit, about half a minute
TREES = 300  # largest number of gradient boosting rounds


class Learnt(NamedTuple):
    """Display name of a baseline and its predictions for the test rows; None if it cannot run, and the name says
    why."""

    name: str
    predicted: Any


Learner = Callable[[RawRows, Any, RawRows, Answers, int], tuple[str, Any]]  # train, its truth, test, its answers, seed


def learn(
    learner: Learner,
    train: RawRows,
    truth: Any,
    test: RawRows,
    answers: Answers,
    *,
    seed: int = 0,
    most: int = MOST_ROWS,
) -> Learnt:
    """Fit a baseline to the training rows, or a sample of at most `most`, and predict the rows of `answers`."""
    if not is_installed("sklearn"):
        return Learnt(f"scikit-learn is not installed: {install_command('sklearn')}", None)
    if not len(train) or not len(test):
        return Learnt("no rows to learn from", None)
    rows = sample_rows(len(train), most, seed)
    said_rows = ""
    if len(rows) < len(train):
        said_rows = f" on {len(rows):,} of {len(train):,} rows"
        train, truth = train.take(rows), take_items(truth, rows)
    with quiet_and_single():
        name, predicted = learner(train, truth, test, answers, seed)
    return Learnt(name + said_rows, predicted)


def load_learners() -> None:
    """Import scikit-learn, if installed, before a baseline is timed."""
    if is_installed("sklearn"):
        import sklearn.decomposition
        import sklearn.ensemble
        import sklearn.feature_extraction.text
        import sklearn.linear_model  # noqa: F401


@contextlib.contextmanager
def quiet_and_single() -> Iterator[None]:
    """One thread, for reproducible sums and to leave other processes undisturbed; no convergence warnings."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def classification(train: RawRows, truth: Any, test: RawRows, answers: Answers, seed: int) -> tuple[str, np.ndarray]:
    """Probabilities by logistic regression on texts or pixels, by gradient boosting on tables; one model per label for
    label sets."""
    truth = np.asarray(truth).astype(np.int64)
    classes = (
        2 if answers.multi else max(int(truth.max()), int(np.max(answers.truth)), len(answers.labels or ()) - 1) + 1
    )
    outputs = truth.shape[1] if answers.multi else classes
    features, before, after, categorical = design(train, test, 1 if classes == 2 else outputs, seed)
    if answers.multi:
        columns = [
            class_chances(before, truth[:, k], after, 2, categorical, seed, outputs)[:, 1] for k in range(outputs)
        ]
        chances = np.stack(columns, 1)
    else:
        known = truth >= 0
        chances = class_chances(before[known], truth[known], after, classes, categorical, seed, classes)
    return name_learner(features, categorical, "logistic regression"), chances


def name_learner(features: str, categorical: list[int] | None, linear: str) -> str:
    """Display name of the baseline."""
    if categorical is None:
        return f"{features} + {linear}"
    return "gradient boosting" + ("" if features == "columns" else f" on {features}")


def class_chances(
    before: Any, truth: np.ndarray, after: Any, classes: int, categorical: list[int] | None, seed: int, outputs: int
) -> np.ndarray:
    """Probabilities (N, classes) of the test rows."""
    from scipy.sparse import issparse
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    chances = np.zeros((after.shape[0], classes))
    met, count = np.unique(truth, return_counts=True)
    if len(met) < 2:
        chances[:, met] = 1.0
        return chances
    learner: Any
    if categorical is None:
        # liblinear is exact and fast for two classes; texts need weaker regularisation than scikit-learn's default.
        solver = "liblinear" if len(met) == 2 else "lbfgs"
        filled = before.nnz if issparse(before) else before.size
        rounds = int(min(100, max(20, WORK // (filled * len(met)))))
        learner = LogisticRegression(
            C=10.0 if solver == "liblinear" else 5.0, solver=solver, max_iter=rounds, random_state=seed
        )
    else:
        learner = HistGradientBoostingClassifier(**boosting(len(truth), int(count.min()), outputs, categorical, seed))
    chances[:, met] = learner.fit(before, truth).predict_proba(after)
    return chances


def boosting(rows: int, fewest: int, outputs: int, categorical: list[int], seed: int) -> dict[str, Any]:
    """Settings of gradient boosting: up to 300 rounds, fewer if each round grows trees for many outputs."""
    stops = rows >= 500 and fewest >= 2  # else too few rows for early stopping
    return {
        "max_iter": max(20, min(TREES if stops else 100, 10 * TREES // max(1, outputs))),
        "early_stopping": stops,
        "n_iter_no_change": 20,
        "learning_rate": 0.1,
        "categorical_features": categorical or None,
        "random_state": seed,
        "min_samples_leaf": max(2, min(20, rows // 20)),
    }


def regression(train: RawRows, truth: Any, test: RawRows, answers: Answers, seed: int) -> tuple[str, np.ndarray]:
    """Ridge regression on texts or pixels, gradient boosting on tables; one model per output."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    truth = np.asarray(truth, np.float64).reshape(len(train), -1)
    outputs = truth.shape[1]
    features, before, after, categorical = design(train, test, outputs, seed)
    predicted = np.zeros((after.shape[0], outputs))
    for k in range(outputs):
        known = np.isfinite(truth[:, k])
        if not known.any():
            continue
        learner: Any
        if categorical is None:
            learner = Ridge(alpha=1.0, solver="sparse_cg" if features == "TF-IDF" else "auto", random_state=seed)
        else:
            learner = HistGradientBoostingRegressor(
                **boosting(int(known.sum()), int(known.sum()), outputs, categorical, seed)
            )
        predicted[:, k] = learner.fit(before[known], truth[known, k]).predict(after)
    shaped = predicted if np.ndim(answers.truth) == 2 else predicted[:, 0]
    return name_learner(features, categorical, "ridge regression"), shaped


def tagger(train: RawRows, truth: Any, test: RawRows, answers: Answers, seed: int) -> tuple[str, list[list[str]]]:
    """A linear model of each word's hashed features, trained on sentences up to a number of words."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier

    if train.words is None or test.words is None:
        raise ValueError("a tagger learns from Rows(words=...)")
    taken, words = 0, 0
    while taken < len(train) and words < MOST_WORDS:
        words += len(train.words[taken])
        taken += 1
    hasher = FeatureHasher(2**18, input_type="string")
    sentences = [
        (list(sentence)[: len(tags)], list(tags))
        for sentence, tags in zip(train.words[:taken], truth[:taken], strict=True)
    ]
    before = hasher.transform(word_features(words_, at) for words_, _ in sentences for at in range(len(words_)))
    known = np.array([tag for words_, tags in sentences for tag in tags[: len(words_)]])
    after = hasher.transform(word_features(words_, at) for words_ in test.words for at in range(len(words_)))
    if len(np.unique(known)) < 2:
        flat = np.full(after.shape[0], known[0])
    else:
        learner = SGDClassifier("modified_huber", alpha=1e-6, max_iter=8, tol=None, average=True, random_state=seed)
        flat = learner.fit(before, known).predict(after) if after.shape[0] else np.array([], str)
    ends = np.cumsum([len(words_) for words_ in test.words])
    predicted = [part.tolist() for part in np.split(flat, ends[:-1])]
    said = f" ({words:,} words)" if taken < len(train) else ""
    return f"linear model of words and neighbours{said}", predicted
