"""The time of rows in the many ways that files say it; repeats and gaps; each beside what is no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.columns.convert import date_form, days
from anyformer.data.datasets.series import after
from anyformer.data.datasets.time_axis import is_even, moments_of, step_numbers
from anyformer.data.targets import Future
from anyformer.errors import UserError
from anyformer.tasks.prepare import prepare

HOURS = np.datetime64("2024-03-01T00", "s") + np.arange(400) * np.timedelta64(1, "h")
TEXTS = [str(moment).replace("T", " ") for moment in HOURS]
WAVE = [f"{value:.3f}" for value in np.sin(np.arange(400) / 12)]
NAMES = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def half_day(text: str) -> str:
    hour = int(text[11:13])
    return f"{int(text[5:7])}/{int(text[8:10])}/{text[:4]} {hour % 12 or 12}:00 {'PM' if hour > 11 else 'AM'}"


def some(keep: np.ndarray) -> dict[str, list[str]]:
    return {"date": [text for text, kept in zip(TEXTS, keep, strict=True) if kept],
            "load": [text for text, kept in zip(WAVE, keep, strict=True) if kept]}  # fmt: skip


TWICE = TEXTS[:50] + TEXTS[49:399]  # an hour comes twice, as when clocks are put back
SERIES: dict[str, tuple[dict[str, list[str]], tuple[str, ...] | None]] = {  # columns, and those that say the time
    "an hour twice": ({"date": TWICE, "load": WAVE}, ("date",)),
    "date and clock": ({"Date": [t[:10] for t in TEXTS], "Time": [t[11:] for t in TEXTS], "load": WAVE},
                       ("Date", "Time")),
    "date and dotted clock": ({"Date": [f"{t[8:10]}/{t[5:7]}/{t[:4]}" for t in TEXTS],
                               "Time": [f"{t[11:13]}.00.00" for t in TEXTS], "load": WAVE}, ("Date", "Time")),
    "date and hour": ({"day": [t[:10] for t in TEXTS], "hr": [str(at % 24) for at in range(400)], "load": WAVE},
                      ("day", "hr")),
    "parts": ({"No": [str(at + 1) for at in range(400)],
               "year": [t[:4] for t in TEXTS], "month": [t[5:7] for t in TEXTS],
               "day": [t[8:10] for t in TEXTS], "hour": [t[11:13] for t in TEXTS], "load": WAVE},
              ("year", "month", "day", "hour")),
    "year and name of month": ({"year": [str(1949 + at // 12) for at in range(144)], "month": NAMES * 12,
                                "load": WAVE[:144]}, ("year", "month")),
    "months": ({"Month": [
        f"{1949 + at // 12}-{at % 12 + 1:02d}" for at in range(144)], "load": WAVE[:144]}, ("Month",)),
    "Jan-49": ({"Month": [f"{NAMES[at % 12]}-{49 + at // 12}" for at in range(144)], "load": WAVE[:144]}, ("Month",)),
    "AM and PM": ({"when": [half_day(text) for text in TEXTS], "load": WAVE}, ("when",)),
    "epochs": ({"ts": [str(1_600_000_000 + 3600 * at) for at in range(400)], "load": WAVE}, ("ts",)),
    "years": ({"year": [str(1700 + at) for at in range(300)], "load": WAVE[:300]}, ("year",)),
    "gaps": (some(np.random.default_rng(0).random(400) > 0.3), ("date",)),
    "control: few hours of many": (some(np.random.default_rng(0).random(400) > 0.8), None),
    "control: every hour twice": ({"date": sorted(TEXTS[:200] * 2), "load": WAVE}, None),
    "control: model years": ({"year": [str(2000 + at * 7 % 20) for at in range(400)], "load": WAVE}, None),
}  # fmt: skip


def written(path: Path, columns: dict[str, list[str]]) -> Path:
    rows = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("case", SERIES)
def test_the_time_is_found_however_it_is_written(tmp_path: Path, case: str) -> None:
    columns, time = SERIES[case]
    path = written(tmp_path / "a.csv", columns)
    if time is None:
        with pytest.raises(UserError, match="no target column given"):
            prepare([path], cache=tmp_path / "cache")
        return
    said: list[str] = []
    made = prepare([path], cache=tmp_path / "cache", log=said.append)
    target = made.preprocess.target
    assert made.task == "forecast" and isinstance(target, Future)
    assert (target.time_columns, target.names) == (time, ("load",)), said
    assert any(f"by {' and '.join(time)}" in line for line in said)


def test_rows_of_one_moment_are_one_step_and_gaps_are_missing_values(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "date": TEXTS[:60] + TEXTS[59:60] + TEXTS[62:200],
        "load": [str(at) for at in range(199)],
    }
    said: list[str] = []
    made = prepare([written(tmp_path / "a.csv", columns)], cache=tmp_path / "cache", log=said.append)
    assert any("1 row has the date of another" in line and "the mean of its rows" in line for line in said), said
    assert any("2 of 200 steps of date have no row: their values are missing" in line for line in said), said
    target, values = made.preprocess.target, np.asarray(made.train.values)[:, 0]
    assert isinstance(target, Future) and len(values) == 200
    found = target.undo(values)
    assert np.allclose(found[[58, 59, 62, 63]], [58, 59.5, 61, 62], atol=1e-3) and np.isnan(found[60:62]).all()
    assert made.train.arrays["order"][[59, 60, 61, 62]].tolist() == [59, 59, 59, 61]


def test_months_go_on_by_months_and_weekends_are_no_gaps() -> None:
    months = np.arange("1960-09", "1961-01", dtype="datetime64[M]").astype("datetime64[s]")
    assert [str(moment)[:10] for moment in after(months, 3)] == ["1961-01-01", "1961-02-01", "1961-03-01"]
    calendar = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")
    working = calendar[np.is_busday(calendar)].astype("datetime64[s]").astype(np.float64)
    assert step_numbers(working) is None and is_even(working)
    every = np.delete(calendar, [5, 6, 20]).astype("datetime64[s]").astype(np.float64)
    numbers = step_numbers(every)
    assert numbers is not None and numbers[-1] == len(calendar) - 1


FORMS = [
    (["1949-01", "1949-12"], "y-m", "1949-12-01T00"),
    (["1949M01", "1949M12"], "y-m", "1949-12-01T00"),
    (["1949 Jan", "1949 Dec"], "y month", "1949-12-01T00"),
    (["1949 Q1", "1949Q4"], "y quarter", "1949-10-01T00"),
    (["19490131", "19491201"], "ymd", "1949-12-01T00"),
    (["Jan-49", "Dec-60"], "month y", "1960-12-01T00"),
    (["1 Feb 2020", "12-Sept-2021"], "d month y", "2021-09-12T00"),
    (["Jan 5, 2020", "February 12, 2020 11:30 pm"], "month d y", "2020-02-12T23"),
    (["1/13/2020 12:05 AM", "1/14/2020 1:00 PM"], "m/d/y", "2020-01-14T13"),
    (["1949-13", "1949-01"], None, ""),
    (["Sunny 20", "Jan 20"], None, ""),
    (["2020-01-01 13:00 PM"], None, ""),
]


@pytest.mark.parametrize("words, form, last", FORMS)
def test_dates_of_more_forms(words: list[str], form: str | None, last: str) -> None:
    cells = pa.chunked_array([pa.array(words)])
    assert date_form(cells) == form
    if form is not None:
        assert str(days(cells, form)[-1])[:13] == last


def test_a_joined_time_is_read_again_from_new_rows() -> None:
    from anyformer.data.in_memory import frame_of

    frame = frame_of({"Date": ["2024-01-01", "2024-01-02"], "Time": ["18:30:00", "00:15"]})
    moments = moments_of(frame, ("Date", "Time")).astype(np.int64).astype("datetime64[s]")
    assert [str(moment) for moment in moments] == ["2024-01-01T18:30:00", "2024-01-02T00:15:00"]
