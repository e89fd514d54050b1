"""Cells and names that no table should hold: each is read, left out and counted, or refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from anyformer.data.columns.look import look
from anyformer.data.files import tables
from anyformer.data.files.tables import read
from anyformer.data.images.decode_all import read_pictures
from anyformer.data.settings import Format
from anyformer.errors import UserError

HALF = "\ud800"


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("write", [jsonl, lambda path, rows: path.write_text(json.dumps(rows)) and path])
def test_half_a_character_leaves_its_row_out(tmp_path: Path, write: Callable[..., Path]) -> None:
    rows = [{"text": "fine \U0001f600"}, {"text": f"broken {HALF}"}, {f"te{HALF}xt": "broken"}, {"text": "fine"}]
    frame = read([write(tmp_path / "rows.json", rows)], Format())
    assert frame.column("text").to_pylist() == ["fine \U0001f600", "fine"]
    assert frame.skipped == {"half a character": 2}
    with pytest.raises(UserError, match="half a character") as error:
        read([tmp_path / "rows.json"], Format(), bad="error")
    assert "2" in error.value.where  # the row is named


def test_half_a_character_in_columns_by_name(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"a": ["x", HALF]}))
    with pytest.raises(UserError, match="half a character"):
        read([tmp_path / "rows.json"], Format())


def test_folders_whose_names_are_not_utf8(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"d\xff"):
        folder = os.fsdecode(os.path.join(os.fsencode(tmp_path), name))
        os.mkdir(folder)
        Image.new("L", (8, 8)).save(os.path.join(folder, "a.png"))
    with pytest.raises(UserError, match="names of all 2 files.* are not UTF-8; rename them"):
        read_pictures([tmp_path])


def test_moments_outside_the_calendar_are_missing(tmp_path: Path) -> None:
    table = pa.table({
        "seconds": pa.array([2**62, -(2**62), 0], pa.timestamp("s")),
        "micros": pa.array([2**63 - 1, 0, 1], pa.timestamp("us")),
        "nanos": pa.array([2**63 - 1, 0, 1], pa.timestamp("ns")),
        "days": pa.array([2**31 - 1, -(2**31), 2_932_896], pa.date32()),
    })  # fmt: skip
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    frame = read([tmp_path / "a.arrow"], Format())
    missing = {name: frame.column(name).null_count for name in frame.names}
    assert missing == {"seconds": 2, "micros": 1, "nanos": 0, "days": 2}
    assert look(frame, {})["days"].missing == 2


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_cell_as_large_as_a_library_is_refused(tmp_path: Path, ending: str) -> None:
    path, long = tmp_path / f"rows.{ending}", "word " * (tables.LONGEST_CELL // 5 + 1)
    if ending == "csv":
        path.write_text(f"text,label\nfine,a\n{long},b\n")
    else:
        jsonl(path, [{"text": "fine", "label": "a"}, {"text": long, "label": "b"}])
    with pytest.raises(UserError, match="'text' holds 4,194,30. bytes") as error:
        read([path], Format())
    assert "rows." in error.value.where and len(error.value.line) < 250


def test_too_many_columns_and_too_long_names_are_refused(tmp_path: Path) -> None:
    wide = tables.MOST_COLUMNS + 1
    (tmp_path / "wide.csv").write_text(",".join(f"c{at}" for at in range(wide)) + "\n" + ",".join("1" * wide) + "\n")
    with pytest.raises(UserError, match="20,001 columns; at most 20,000"):
        read([tmp_path / "wide.csv"], Format())
    (tmp_path / "long.csv").write_text("x" * 5000 + ",y\n" + "1,2\n" * 30)
    with pytest.raises(UserError, match="a column name of 5,000 characters") as error:
        read([tmp_path / "long.csv"], Format())
    assert len(error.value.line) < 250


def test_lists_of_structures_are_read_as_text(tmp_path: Path) -> None:
    table = pa.table({"deep": pa.array([[{"x": [1], "y": "z"}], None]), "flat": pa.array([["a"], ["b", "c"]])})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    frame = read([tmp_path / "a.arrow"], Format())
    assert frame.column("deep").to_pylist() == ['[{"x": [1], "y": "z"}]', None]
    assert frame.column("flat").to_pylist() == [["a"], ["b", "c"]]
