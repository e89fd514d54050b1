"""What is fitted on training rows: scales, categories, dates, labels; saved and read back to the same bits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.columns.kinds import Category, Date, Number
from anyformer.data.columns.number import normal, quantiles, thin_ties
from anyformer.data.frame import Frame, Source
from anyformer.data.preprocess import Preprocess, fit_preprocess, fitting, sizes
from anyformer.data.settings import Columns, Data
from anyformer.data.targets import ABSENT, NOT_NUMBER, UNSEEN, Classes, Values
from anyformer.errors import UserError
from anyformer.tasks.decide import decide


def frame_of(**columns):
    rows = len(next(iter(columns.values())))
    return Frame(pa.table(columns), (Source("rows.csv", rows=rows, first=2),))


def column(values):
    return pa.chunked_array([pa.array(values)])


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("rows, ties", [(50, False), (400, False), (5000, True)])
def test_quantile_scale_is_scikit_learns(rows, ties):
    sklearn = pytest.importorskip("sklearn.preprocessing")
    draw = np.random.default_rng(rows)
    values = draw.lognormal(size=rows)
    values = np.round(values) if ties else values
    count = max(min(rows // 30, 1000), 10)
    theirs = sklearn.QuantileTransformer(n_quantiles=count, output_distribution="normal", subsample=10**9)
    theirs.fit(values[:, None])
    new = np.concatenate([draw.lognormal(size=500), values[:500], [-9.0, 1e9]])
    ours = normal(new, np.asarray(quantiles(values)))
    assert np.abs(ours - theirs.transform(new[:, None])[:, 0]).max() < 1e-6


@pytest.mark.quick
def test_a_quantile_scale_is_normal_on_its_own_rows_and_ends_at_the_training_range():
    draw = np.random.default_rng(0)
    values = draw.exponential(size=4000)
    fitted = Number.fit("x", values, Columns())
    made = fitted.encode(values)
    assert made.dtype == np.float32 and abs(made.mean()) < 0.02 and abs(made.std() - 1) < 0.05
    far = fitted.encode(np.array([-1e9, 1e9, values.max() * 2, np.nan, np.inf]))
    assert far[0] == -far[1] and far[1] == far[2] and np.isnan(far[3]) and np.isnan(far[4])


def test_the_noise_for_ties_is_small_and_the_same_every_time():
    values = np.repeat(np.arange(5.0), 100)
    one, two = (Number.fit("x", values, Columns(), seed=3) for _ in range(2))
    assert one == two and one != Number.fit("x", values, Columns(), seed=4)
    made = one.encode(np.arange(5.0))
    assert (np.diff(made) > 0.3).all() and abs(made[2]) < 0.1
    assert Number.fit("x", values * 1e-9, Columns(), seed=3).encode(np.arange(5.0) * 1e-9) == pytest.approx(
        made, abs=1e-4
    )


def test_values_beside_one_that_fills_the_column_have_a_scale_of_their_own():
    draw = np.random.default_rng(5)
    rare = np.round(draw.lognormal(8, 1, 400))
    values = np.concatenate([np.zeros(5000), rare])
    thinned = Number.fit("gain", values, Columns()).encode(rare)
    plain = normal(rare, np.asarray(quantiles(values + 0.01 * draw.standard_normal(len(values)))))
    assert np.ptp(np.quantile(thinned, [0.05, 0.95])) > 2.0 > 1.2 > np.ptp(np.quantile(plain, [0.05, 0.95]))
    smooth = draw.normal(size=3000)  # without ties nothing is thinned
    assert thin_ties(smooth).tolist() == np.sort(smooth).tolist()


def test_standard_and_no_scale():
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert Number.fit("x", values, Columns(scale="standard")).encode(values).std() == pytest.approx(1)
    assert Number.fit("x", values, Columns(scale="none")).encode(values).tolist() == values.tolist()


@pytest.mark.parametrize("values", [[5.0] * 9, [np.nan] * 4, [1e308, -1e308, 1e308], [0.1 + 0.2] * 3 + [0.3] * 3])
def test_odd_columns_stay_finite(values):
    made = Number.fit("x", np.array(values), Columns()).encode(np.array(values))
    assert not np.isinf(made).any() and np.isnan(made).sum() == np.isnan(values).sum()


def test_numbers_written_as_text_are_read():
    fitted = Number.fit("x", column(["1", " 2", "3.5", "", "NA", "x"]), Columns(scale="none"))
    assert np.isnan(fitted.encode(column(["7", "", "oops"]))).tolist() == [False, True, True]


# ---------------------------------------------------------------- categories


@pytest.mark.quick
def test_missing_and_unknown_categories_are_values_of_their_own():
    fitted = Category.fit("c", column(["b", "a", " a", "", "b", "c"]), Columns())
    assert fitted.values == ("a", "b", "c") and fitted.count == 4
    assert fitted.encode(column(["a", "c", "new", "", None, "b "])).tolist() == [0, 2, 3, -1, -1, 1]


def test_rare_values_are_as_good_as_unknown():
    fitted = Category.fit("c", column(["a", "a", "b", "b", "odd"]), Columns(rare=2))
    assert fitted.values == ("a", "b") and fitted.encode(column(["odd", "a"])).tolist() == [2, 0]


def test_values_that_are_numbers_stand_in_the_order_of_numbers():
    assert Category.fit("c", column(["10", "9", "-1"]), Columns()).values == ("-1", "9", "10")
    assert Category.fit("c", column([2.0, 1.0, None]), Columns()).values == ("1", "2")


def test_a_column_without_a_training_value_knows_only_the_unknown():
    fitted = Category.fit("c", column(["", None]), Columns())
    assert fitted.values is None and fitted.encode(column(["a", ""])).tolist() == [0, -1]


# ---------------------------------------------------------------- dates


@pytest.mark.quick
def test_a_simple_learner_sees_the_same_parts_of_a_date():
    """Boosting cannot cut weekends out of one number of seconds: it gets what the network gets, unscaled."""
    days = np.datetime64("2024-01-01") + np.arange(400)
    frame = frame_of(d=[str(day) for day in days], y=[f"{(day.astype(int) + 3) % 7 >= 5}" for day in days])
    fitted = Date.fit("d", frame.column("d"), Columns(scale="none"))
    parts = fitted.features(frame)
    names = [part.name for part in fitted.parts]
    assert names == ["year", "month", "day", "weekday", "elapsed days"]
    assert np.array_equal(parts, fitted.encode(frame.column("d")))
    weekday = parts[:, names.index("weekday")]
    assert np.array_equal(weekday >= 5, [word == "True" for word in frame.column("y").to_pylist()])
    # A cell without a date has no part at all.
    assert np.isnan(fitted.features(frame_of(d=["", "2024-02-29"]))[0]).all()
    # The control: the days alone cannot be cut once into weekends and other days.
    elapsed = parts[:, names.index("elapsed days")]
    assert not any(np.array_equal(elapsed >= cut, weekday >= 5) for cut in np.unique(elapsed))


def test_dates_become_parts_and_days_since_the_first():
    fitted = Date.fit("d", column(["2024-02-29", "2024-03-01", "2023-12-31"]), Columns(scale="none"))
    assert [part.name for part in fitted.parts] == ["year", "month", "day", "weekday", "elapsed days"]
    made = fitted.encode(column(["2024-02-29", "", "2025-01-06"]))
    assert made[0].tolist() == [2024, 2, 29, 3, 60]  # a Thursday, 60 days after the last of 2023
    assert np.isnan(made[1]).all() and made[2].tolist() == [2025, 1, 6, 0, 372]


def test_hours_count_where_there_are_any_and_the_form_is_remembered():
    fitted = Date.fit("d", column(["31.12.2023 06:00", "01.02.2024 18:30"]), Columns(scale="none"))
    assert "hour" in [part.name for part in fitted.parts] and fitted.form == "d.m.y"
    names = [part.name for part in fitted.parts]
    made = fitted.encode(column(["02.03.2024 12:00"]))[0]
    assert (made[names.index("month")], made[names.index("hour")]) == (3, 12)


# ---------------------------------------------------------------- targets


@pytest.mark.quick
def test_labels_are_sorted_and_spelled_as_in_the_file():
    target = Classes.fit(frame_of(y=["10", "9", "10", "2"]), ("y",), "one", None)
    assert target.labels == ("2", "9", "10") and target.counts == (1, 1, 2)
    found = target.encode(frame_of(y=["9", "", "11", "10"]))
    assert found.values.tolist() == [1, -100, -200, 2]
    assert found.unusable[ABSENT].tolist() == [False, True, False, False]
    assert found.unusable[UNSEEN].tolist() == [False, False, True, False] and found.unseen == {"11": 2}


def test_a_models_own_labels_keep_their_order_where_they_hold_all():
    assert Classes.fit(frame_of(y=["a", "b"]), ("y",), "one", ["b", "c", "a"]).labels == ("b", "c", "a")
    assert Classes.fit(frame_of(y=["a", "z"]), ("y",), "one", ["b", "c", "a"]).labels == ("a", "z")


@pytest.mark.parametrize(
    "cells",
    [["a;b", "b", " c ; a ", "", "b;;c"], [["a", "b"], ["b"], ["c", "a"], None, ["b", "c"]]],
    ids=["text", "list"],
)
def test_lists_of_labels_become_zeros_and_ones(cells):
    frame = frame_of(y=cells)
    target = Classes.fit(frame, ("y",), "list", None)
    found = target.encode(frame)
    assert target.labels == ("a", "b", "c") and target.multi and target.counts == (2, 3, 2)
    assert found.values[[0, 1, 2, 4]].tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1]]
    assert found.unusable[ABSENT].tolist() == [False, False, False, True, False] and np.isnan(found.values[3]).all()


def test_columns_of_zero_and_one_are_labels():
    frame = frame_of(a=["1", "0", "yes"], b=["0", "", "No"])
    target = Classes.fit(frame, ("a", "b"), "columns", None)
    found = target.encode(frame)
    assert target.labels == ("a", "b") and found.values[[0, 2]].tolist() == [[1, 0], [1, 0]]
    assert found.unusable[ABSENT].tolist() == [False, True, False]


def test_numbers_are_scaled_and_given_back():
    frame = frame_of(y=["10", "20", "30", "", "x"])
    target = Values.fit(frame, ("y",), scale="standard")
    found = target.encode(frame)
    assert target.undo(found.values[:3]) == pytest.approx([10, 20, 30]) and found.values.dtype == np.float32
    assert found.unusable[ABSENT].tolist() == [0, 0, 0, 1, 0] and found.unusable[NOT_NUMBER].tolist() == [0, 0, 0, 0, 1]
    two = frame_of(a=[1.0, 3.0], b=[5.0, None])
    both = Values.fit(two, ("a", "b"), scale="none").encode(two)
    assert both.values.shape == (2, 2) and not both.unusable[ABSENT].any() and np.isnan(both.values[1, 1])


# ---------------------------------------------------------------- the whole


def table(rows=120):
    draw = np.random.default_rng(0)
    return {
        "age": [str(x) for x in draw.integers(0, 90, rows)], "city": draw.choice(["Rom", "Bonn", "?"], rows).tolist(),
        "day": [str(np.datetime64("2020-01-01") + int(x)) for x in draw.integers(0, 900, rows)],
        "label": draw.choice(["yes", "no"], rows).tolist(),
    }  # fmt: skip


def fitted(frame, rows=None, **settings):
    data = Data(target=("label",), **settings)
    rows = np.arange(len(frame)) if rows is None else rows
    return fit_preprocess(frame, decide(frame, data), rows, data, seed=0)


def test_saved_and_read_back_to_the_same(tmp_path):
    made = fitted(frame_of(**table()))
    made.save(tmp_path / "preprocess.json")
    assert Preprocess.read(tmp_path / "preprocess.json") == made
    assert sizes(made) == {"parts": ["table"], "numbers": 6, "categories": [3], "classes": 2, "multi": False}


@pytest.mark.parametrize(
    "change", [('"deviation": ', '"deviation": -'), ('"labels": [', '"labels": [3, '), ('"Number"', '"Model"')]
)
def test_a_damaged_file_is_refused(tmp_path, change):
    path = tmp_path / "preprocess.json"
    fitted(frame_of(**table())).save(path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(UserError, match=r"preprocess\.json"):
        Preprocess.read(path)


@pytest.mark.quick
def test_rows_outside_training_do_not_change_what_is_fitted():
    cells = table()
    rows = np.arange(0, 120, 2)
    before = fitted(frame_of(**cells), rows)
    draw = np.random.default_rng(9)
    other = {name: list(values) for name, values in cells.items()}
    for row in range(1, 120, 2):
        other["age"][row], other["city"][row] = str(draw.integers(500, 999)), "Paris"
        other["day"][row], other["label"][row] = "1999-05-05", "maybe"
    after = fitted(frame_of(**other), rows)
    assert before.to_json() == after.to_json()
    # Control: fitted on every row, the change is seen in every part.
    one, two = fitted(frame_of(**cells)), fitted(frame_of(**other))
    assert all(a != b for a, b in zip(one.columns, two.columns, strict=True)) and one.target != two.target


def test_columns_are_found_by_name_and_missing_ones_named():
    frame = frame_of(**table())
    made = fitted(frame)
    again, notes = fitting(
        frame_of(**{n: table()[n] for n in ("day", "label", "city", "age")}, extra=["x"] * 120), made
    )
    assert set(again.names) == {"age", "city", "day", "label"} and notes == [
        "ignored extra: not among the columns trained on"
    ]
    with pytest.raises(UserError, match=r"the column 'city' is missing.*did you mean 'cty'"):
        fitting(frame_of(age=["1"], cty=["a"], day=["2020-01-01"]), made)
    assert fitting(frame_of(age=["1"], city=["a"], day=["2020-01-01"]), made)[0].names == ["age", "city", "day"]
