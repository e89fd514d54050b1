"""Raw rows as feature matrices for baselines: TF-IDF, grey pixels, columns with codes for categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.evaluation.baseline_rows import RawRows

WEIGHTS = 5_000_000  # largest classes x features of a linear model, to bound its time
CODES = 254  # categories per column that gradient boosting distinguishes; the rest share one code
SIDE = 16  # longer side of an image for a linear model, in pixels


def is_table(rows: RawRows) -> bool:
    """Whether there are columns other than text and images."""
    return any(part is not None and part.shape[1] > 0 for part in (rows.numbers, rows.categories))


def text_counts(train: RawRows, test: RawRows, features: int) -> tuple[Any, Any]:
    """TF-IDF of unigrams and bigrams, fitted to the training texts; None if there are no words at all."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    counter = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, max_features=features, token_pattern=r"(?u)\w+|[^\w\s]", dtype=np.float64
    )
    try:
        return counter.fit_transform(train.texts), counter.transform(test.texts)
    except ValueError:  # every text is empty
        return None, None


def text_factors(train: RawRows, test: RawRows, seed: int, most: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """A truncated SVD of the TF-IDF matrix, as a few dense columns."""
    from sklearn.decomposition import TruncatedSVD

    before, after = text_counts(train, test, 20_000)
    if before is None or min(before.shape) < 3:
        return np.zeros((len(train), 0)), np.zeros((len(test), 0))
    factors = TruncatedSVD(min(most, min(before.shape) - 1), random_state=seed)
    return factors.fit_transform(before), factors.transform(after)


def pixels(images: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Images in grey, downscaled by box averaging, flattened to one row each.

    >>> pixels(np.ones((2, 28, 28, 3), np.uint8)).shape
    (2, 256)
    """
    grey = images.mean(-1) if images.ndim == 4 else images.astype(np.float64)
    for axis in (1, 2):
        length = grey.shape[axis]
        if length > side:
            edges = np.linspace(0, length, side + 1).astype(np.int64)
            widths = np.diff(edges).reshape([-1 if i == axis else 1 for i in range(3)])
            grey = np.add.reduceat(grey, edges[:-1], axis=axis) / widths
    return grey.reshape(len(images), -1)


def codes(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One column of categories as codes by frequency; rare ones share a code, missing is nan."""
    before, after = ([plain(value) for value in column.tolist()] for column in (train, test))
    counts: dict[str, int] = {}
    for value in before:
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    number = {value: float(i) for i, value in enumerate(ranked[:CODES])}

    def coded(values: list[str | None]) -> np.ndarray:
        return np.array([np.nan if value is None else number.get(value, float(CODES)) for value in values])

    return coded(before), coded(after)


def plain(value: Any) -> str | None:
    """A category as text, None if missing."""
    if value is None or value == "" or value != value or (isinstance(value, int | float) and value < 0):
        return None
    return str(value)


def table_columns(train: RawRows, test: RawRows, seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """All inputs as columns for gradient boosting, and which of them are categorical."""
    before: list[np.ndarray] = []
    after: list[np.ndarray] = []
    categorical: list[int] = []
    if train.categories is not None and test.categories is not None:
        for k in range(train.categories.shape[1]):
            pair = codes(train.categories[:, k], test.categories[:, k])
            if np.isfinite(pair[0]).any():
                categorical.append(len(before))
                before.append(pair[0][:, None])
                after.append(pair[1][:, None])
    if train.numbers is not None and test.numbers is not None:
        numbers = [np.where(np.isfinite(one), one, np.nan) for one in (train.numbers, test.numbers)]
        told = np.isfinite(numbers[0]).any(0)  # drop columns without any value
        before.append(numbers[0][:, told])
        after.append(numbers[1][:, told])
    if train.texts is not None and test.texts is not None:
        for side, columns in zip((before, after), text_factors(train, test, seed), strict=True):
            side.append(columns)
    if train.images is not None and test.images is not None:
        before.append(pixels(train.images, 8))
        after.append(pixels(test.images, 8))
    if not sum(part.shape[1] for part in before):
        before, after = [np.zeros((len(train), 1))], [np.zeros((len(test), 1))]
    return np.hstack(before), np.hstack(after), categorical


def design(train: RawRows, test: RawRows, outputs: int, seed: int) -> tuple[str, Any, Any, list[int] | None]:
    """Name of the features, the two matrices, and the categorical columns (None: for a linear model)."""
    table, text, image = is_table(train), train.texts is not None, train.images is not None
    if text and not table and not image:
        before, after = text_counts(train, test, max(1000, min(200_000, WEIGHTS // max(1, outputs))))
        if before is None:
            return "TF-IDF", np.zeros((len(train), 1)), np.zeros((len(test), 1)), None
        return "TF-IDF", before, after, None
    if image and not table and not text:
        before, after = pixels(train.images), pixels(test.images)  # type: ignore[arg-type]
        mean, spread = before.mean(0), before.std() or 1.0
        return f"grey pixels at {SIDE}x{SIDE}", (before - mean) / spread, (after - mean) / spread, None
    if not table and not text and not image:
        return "nothing", np.zeros((len(train), 1)), np.zeros((len(test), 1)), None
    kinds = (("columns", table), ("TF-IDF factors", text), ("pixels", image))
    return list_names([name for name, there in kinds if there]), *table_columns(train, test, seed)


def list_names(names: Sequence[str]) -> str:
    """Names joined by commas and "and".

    >>> list_names(["columns"]), list_names(["columns", "pixels"]), list_names(["columns", "TF-IDF factors", "pixels"])
    ('columns', 'columns and pixels', 'columns, TF-IDF factors and pixels')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def word_features(words: Sequence[str], at: int) -> list[str]:
    """Features of one word for a linear tagger: itself, affixes, shape, neighbours."""
    word = words[at]
    low = word.lower()
    shape = "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word[:12])
    before = words[at - 1].lower() if at else "<s>"
    after = words[at + 1].lower() if at + 1 < len(words) else "</s>"
    return [
        "bias", f"w={word}", f"l={low}", f"s3={low[-3:]}", f"s2={low[-2:]}", f"p3={low[:3]}", f"h={shape}",
        f"b={before}", f"a={after}", f"bl={before}|{low}", f"la={low}|{after}",
        f"b2={words[at - 2].lower() if at > 1 else '<s>'}", f"first={at == 0}|{word[:1].isupper()}",
    ]  # fmt: skip
