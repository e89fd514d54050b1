"""Splits: shares kept class by class, equal rows together, groups and times respected, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Data, Split
from anyformer.data.splits import TEST, TRAIN, VALID, by_lot, quotas, split
from anyformer.errors import UserError
from anyformer.tasks import find
from anyformer.tasks.decide import decide


def frame_of(**columns):
    rows = len(next(iter(columns.values())))
    return Frame(pa.table(columns), (Source("rows.csv", rows=rows, first=2),))


def sides_of(frame, seed=0, fixed=None, **settings):
    chosen = Split(**settings)
    data = Data(target=("label",), split=chosen)
    return split(frame, decide(frame, data), chosen, seed, fixed=fixed)


def table(rows=500, classes=(0.7, 0.25, 0.05), seed=1):
    draw = np.random.default_rng(seed)
    labels = draw.choice(["a", "b", "c"], rows, p=classes)
    values = [f"{value:.9f}" for value in draw.normal(size=rows)]
    return frame_of(x=values, label=labels.tolist())


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(5))
def test_every_class_has_its_share_within_one_row(seed):
    frame = table(seed=seed)
    side = sides_of(frame, seed).side
    labels = np.array(frame.column("label").to_pylist())
    for label in "abc":
        of = side[labels == label]
        for number in (VALID, TEST):
            assert abs((of == number).sum() - 0.1 * len(of)) <= 1
    assert (side == VALID).sum() == 50 and (side == TEST).sum() == 50


def test_control_without_strata_a_class_is_further_off():
    off = 0.0
    for seed in range(5):
        frame = table(seed=seed)
        side = sides_of(frame, seed, stratify=False).side
        labels = np.array(frame.column("label").to_pylist())
        off = max(
            off, *(abs((side[labels == label] == VALID).sum() - 0.1 * (labels == label).sum()) for label in "abc")
        )
    assert off > 1


def test_a_class_of_one_row_stays_in_training():
    labels = ["a"] * 60 + ["b"] * 38 + ["rare", "odd"]
    frame = frame_of(x=[str(i * 0.37) for i in range(100)], label=labels)
    for seed in range(20):
        side = sides_of(frame, seed).side
        assert side[98] == TRAIN and side[99] == TRAIN


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    frame = table()
    assert np.array_equal(sides_of(frame, 3).side, sides_of(frame, 3).side)
    assert not np.array_equal(sides_of(frame, 3).side, sides_of(frame, 4).side)


@pytest.mark.quick
def test_equal_rows_stay_on_one_side_and_are_counted():
    draw = np.random.default_rng(0)
    values = draw.integers(0, 60, 400)
    frame = frame_of(
        x=[f"{v / 7:.5f}" for v in values],
        z=[str(v % 5 + 0.5) for v in values],
        label=draw.choice(["a", "b"], 400).tolist(),
    )
    sides = sides_of(frame)
    assert sides.duplicates == 400 - len(np.unique(values))
    for value in np.unique(values):
        assert len(np.unique(sides.side[values == value])) == 1
    assert (sides.side == VALID).any() and (sides.side == TEST).any()


def test_control_drawing_row_by_row_tears_equal_rows_apart():
    draw = np.random.default_rng(0)
    values = draw.integers(0, 60, 400)
    side = by_lot(np.arange(400), None, (0.1, 0.1), 0)
    assert any(len(np.unique(side[values == value])) > 1 for value in np.unique(values))


def test_groups_stay_whole_also_through_equal_rows():
    draw = np.random.default_rng(0)
    groups = draw.integers(0, 40, 300)
    values = [f"{i / 3:.4f}" for i in range(300)]
    values[10] = values[200]  # ties two groups together
    frame = frame_of(x=values, who=[f"g{g}" for g in groups], label=draw.choice(["a", "b"], 300).tolist())
    sides = sides_of(frame, group="who")
    for group in np.unique(groups):
        assert len(np.unique(sides.side[groups == group])) == 1
    assert sides.side[10] == sides.side[200]
    assert 15 <= (sides.side == VALID).sum() <= 45 and 15 <= (sides.side == TEST).sum() <= 45


def test_two_groups_cannot_make_three_sides():
    frame = frame_of(x=[f"{i / 3:.4f}" for i in range(20)], who=["a", "b"] * 10, label=["p", "q", "q", "p"] * 5)
    with pytest.raises(UserError, match="too few groups"):
        sides_of(frame, group="who")


def test_the_latest_rows_come_last():
    draw = np.random.default_rng(0)
    days = np.datetime64("2020-01-01") + draw.permutation(200)
    frame = frame_of(
        x=[f"{i / 3:.4f}" for i in range(200)], day=[str(d) for d in days], label=draw.choice(["a", "b"], 200).tolist()
    )
    side = sides_of(frame, time="day").side
    assert days[side == TRAIN].max() < days[side == VALID].min()
    assert days[side == VALID].max() < days[side == TEST].min()
    assert (side == VALID).sum() == 20 and (side == TEST).sum() == 20


def test_a_column_says_the_split_in_any_spelling():
    words = ["train", "Training", "dev", "VALIDATION", "val", "test", "Testing", "train"]
    frame = frame_of(x=[f"{i / 3:.4f}" for i in range(8)], part=words, label=["a", "b"] * 4)
    assert sides_of(frame, column="part").side.tolist() == [0, 0, 1, 1, 1, 2, 2, 0]


def test_an_unknown_word_in_the_split_column_is_named_with_its_row():
    frame = frame_of(
        x=["1.5", "2.5", "3.5", "4.5"], part=["train", "train", "tset", "test"], label=["a", "b", "a", "b"]
    )
    with pytest.raises(UserError, match=r"rows.csv row 4: 'tset' in column part.*did you mean 'test'"):
        sides_of(frame, column="part")


def test_validation_is_drawn_where_a_column_knows_only_train_and_test():
    frame = frame_of(x=[f"{i / 3:.4f}" for i in range(100)], part=["train"] * 80 + ["test"] * 20, label=["a", "b"] * 50)
    side = sides_of(frame, column="part").side
    assert (side[80:] == TEST).all() and (side[:80] == VALID).sum() == 8 and (side == TEST).sum() == 20


def test_files_keep_their_sides_and_shared_rows_are_counted():
    frame = frame_of(x=[f"{i % 90 / 3:.4f}" for i in range(100)], label=["a", "b"] * 50)
    fixed = np.array([-1] * 80 + [1] * 10 + [2] * 10, np.int8)
    sides = sides_of(frame, fixed=fixed)
    assert (sides.side[:80] == TRAIN).all() and (sides.side[80:90] == VALID).all() and (sides.side[90:] == TEST).all()
    assert any("10 held-out rows" in note for note in sides.notes)


@pytest.mark.parametrize(
    "labels, words",
    [(["a"] * 30, "only 'a'"), (["a", "b"][:1], "too few rows|only 'a'")],
)
def test_too_little_to_learn_from_is_refused_with_counts(labels, words):
    frame = frame_of(x=[f"{i / 3:.4f}" for i in range(len(labels))], label=labels)
    with pytest.raises(UserError, match=words) as error:
        data = Data(target=("label",), inputs=("x",), types=("x=number",))
        split(frame, decide(frame, data, task=find("classify")), data.split, 0)
    assert "train" in str(error.value)


def test_quotas_add_up_and_leave_one_row_of_each_class():
    draw = np.random.default_rng(0)
    for _ in range(200):
        totals = draw.integers(1, 30, draw.integers(1, 12))
        found = quotas(totals, int(totals.sum()), (0.1, 0.2))
        assert (found >= 0).all() and (found.sum(0) < totals).all()
        assert (np.abs(found - totals * np.array([[0.1], [0.2]])) <= 1.0 + 1e-9).all() or totals.min() < 5


def test_ten_thousand_rows_are_split_as_ten_thousand_single_draws_would_be_counted():
    side = by_lot(np.arange(10_000), None, (0.15, 0.05), 0)
    assert (side == VALID).sum() == 1500 and (side == TEST).sum() == 500
