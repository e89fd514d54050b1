"""Tables and series as the files a user would have. `raw` is the folder with the sets as they were published."""

from __future__ import annotations

import csv
import gzip
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.scoreboard.write_texts import Writer, read_lines, write_csv

CALIFORNIA = (13_209, 3_303, 4_128)  # rows to train, validate and test
ADULT = 26_048  # of adult.data to train; the others validate
ADULT_COLUMNS = ("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
                 "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
                 "label")  # fmt: skip
UNEVEN = (5250, 1750)  # rows of the two classes
ETT_HOURS = 14_400  # those that the papers use


def write_california(raw: Path, out: Path) -> None:
    """The eight columns that scikit-learn has, the value in 100,000 dollars; a random split of the paper's sizes."""
    with lzma.open(raw / "tabular" / "california_housing" / "cal_housing.data.xz", "rt") as file:
        found = np.loadtxt(file, delimiter=",")
    longitude, latitude, age, rooms, bedrooms, people, households, income, value = found.T
    table = np.stack([income, age, rooms / households, bedrooms / households, people, people / households, latitude,
                      longitude, value / 1e5], 1)  # fmt: skip
    names = ("income", "age", "rooms", "bedrooms", "people", "occupants", "latitude", "longitude", "target")
    order = np.random.default_rng(0).permutation(len(table))
    for side, rows in zip(("train", "valid", "test"), np.split(order, np.cumsum(CALIFORNIA)[:2]), strict=True):
        write_csv(out / f"{side}.csv", names, table[rows].round(6).tolist())


def write_adult(raw: Path, out: Path) -> None:
    """adult.data by lot into rows that train and rows that validate; the official test file."""
    rows, test = read_adult(raw, "data"), read_adult(raw, "test")
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    sides = {"train": order[:ADULT], "valid": order[ADULT:]}
    for side, chosen in sides.items():
        write_csv(out / f"{side}.csv", ADULT_COLUMNS, (rows[n] for n in chosen))
    write_csv(out / "test.csv", ADULT_COLUMNS, test)


def write_uneven_adult(raw: Path, out: Path) -> None:
    """7,000 rows, a quarter of them positive, in one file."""
    rows = read_adult(raw, "test")
    draw = np.random.default_rng(0)
    chosen = []
    for label, count in zip(("<=50K", ">50K"), UNEVEN, strict=True):
        chosen += draw.choice([n for n, row in enumerate(rows) if row[-1] == label], count, replace=False).tolist()
    write_csv(out / "rows.csv", ADULT_COLUMNS, (rows[n] for n in sorted(chosen)))


def read_adult(raw: Path, name: str) -> list[list[str]]:
    """Rows with empty cells for what is missing; labels of the test file end in a dot."""
    lines = read_lines(raw / "tabular" / "adult" / f"adult.{name}.xz")
    rows = [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == len(ADULT_COLUMNS)]
    return [["" if cell == "?" else cell.rstrip(".") for cell in row] for row in rows]


def write_digits_table(raw: Path, out: Path) -> None:
    """64 brightnesses and the digit; the first half trains, the second tests, as in scikit-learn's example."""
    table = read_digits(raw)
    names = (*(f"p{n}" for n in range(64)), "label")
    half = len(table) // 2
    write_csv(out / "train.csv", names, table[:half].tolist())
    write_csv(out / "test.csv", names, table[half:].tolist())


def read_digits(raw: Path) -> np.ndarray:
    """(1797, 65): pixels from 0 to 16, the digit last."""
    with gzip.open(raw / "sklearn_digits" / "digits.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",").astype(np.int64)


# ---------------------------------------------------------------- of scikit-learn


def write_sklearn(name: str) -> Writer:
    """A set that comes with scikit-learn, in one file: `diabetes`, `wine` or `breast_cancer`."""

    def write(raw: Path, out: Path) -> None:
        import sklearn.datasets

        found = getattr(sklearn.datasets, f"load_{name}")()
        names = [str(one) for one in found.feature_names]
        classes = getattr(found, "target_names", None)
        answers = found.target.tolist() if classes is None else [str(classes[n]) for n in found.target]
        write_table(out / "rows.csv", names, found.data, answers)

    return write


def write_friedman(raw: Path, out: Path) -> None:
    """Friedman's first function of ten numbers, five of which matter, with noise."""
    from sklearn.datasets import make_friedman1

    inputs, target = make_friedman1(4000, 10, noise=1.0, random_state=0)
    write_table(out / "rows.csv", names_of(inputs), inputs, target.round(4).tolist())


def write_counts(raw: Path, out: Path) -> None:
    """Whole numbers from 1 to about 30, skewed to the right: a regression that looks like classes."""
    from sklearn.datasets import make_friedman2

    inputs, target = make_friedman2(4000, random_state=0)
    draw = np.random.default_rng(0)
    rate = 1.5 * np.exp(target / target.std() * 0.55)
    counts = 1 + np.minimum(draw.poisson(rate), 28)
    inputs = inputs * (1 + 0.05 * draw.standard_normal(inputs.shape))  # as measured, with errors
    write_table(out / "rows.csv", names_of(inputs), inputs, counts.tolist())


def names_of(inputs: np.ndarray) -> list[str]:
    return [f"x{n}" for n in range(inputs.shape[1])]


def write_table(path: Path, names: Sequence[str], inputs: np.ndarray, answers: Iterable[object]) -> None:
    rows = ([*row, answer] for row, answer in zip(inputs.round(6).tolist(), answers, strict=True))
    write_csv(path, (*names, "target"), rows)


# ---------------------------------------------------------------- series


def write_ett(raw: Path, out: Path) -> None:
    lines = list(read_lines(raw / "ett" / "ETTh1.csv.xz"))[: 1 + ETT_HOURS]
    (out / "ETTh1.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def write_hours(raw: Path, out: Path) -> None:
    """An hourly load of 400 days: day, week and season, a trend, and noise that lasts for hours."""
    draw = np.random.default_rng(0)
    hours = np.arange(400 * 24)
    noise = np.zeros(len(hours))
    for n in range(1, len(hours)):
        noise[n] = 0.9 * noise[n - 1] + draw.normal(0, 3)
    day = 20 * np.sin(2 * np.pi * (hours - 8) / 24) + 8 * np.sin(4 * np.pi * hours / 24)
    week = np.where(hours // 24 % 7 >= 5, -15.0, 0.0)
    load = 200 + 0.003 * hours + 25 * np.cos(2 * np.pi * hours / (24 * 365)) + day + week + noise
    start = np.datetime64("2024-01-01T00:00")
    stamps = (str(start + np.timedelta64(int(n), "h")).replace("T", " ") for n in hours)
    write_csv(out / "load.csv", ("time", "load"), zip(stamps, load.round(2).tolist(), strict=True))
