"""Tables of every kind are read exactly, nothing is lost uncounted, and what is wrong is named."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anyformer.data.files import csv_rows, spool
from anyformer.data.files.tables import frame_of, kind_of_path, read
from anyformer.data.frame import Frame
from anyformer.data.settings import Format
from anyformer.errors import UserError
from tests.data.files.bad_tables import BAD, GOOD, NOTED, Bad, row, written

PLAIN = Format()


def table(folder: Path, content: str | bytes, name: str = "a.csv", **asked: object) -> Frame:
    format = Format(**asked)  # type: ignore[arg-type]
    return read(written(name, content)(folder), format)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


# ---------------------------------------------------------------- malformed files


def test_there_are_enough_malformed_tables() -> None:
    assert len(BAD) >= 45 and len({bad.name for bad in BAD}) == len(BAD)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_malformed_table_is_one_line_that_names_file_place_and_fix(bad: Bad, tmp_path: Path) -> None:
    paths = bad.make(tmp_path)
    before, start = contents(tmp_path), time.perf_counter()
    with pytest.raises(UserError) as caught:
        read(paths, bad.format, bad=bad.bad, cache=tmp_path)  # type: ignore[arg-type]
    line = str(caught.value)
    assert time.perf_counter() - start < 5
    assert "\n" not in line and len(line) <= 300 and line.isprintable()
    assert (bad.file or paths[0].name) in line
    assert caught.value.fix
    for words in bad.words:
        assert words in line, line
    assert contents(tmp_path) == before, "nothing is written"


@pytest.mark.parametrize("name, make, notes, rows", NOTED, ids=[case[0] for case in NOTED])
def test_what_is_unusual_but_readable_is_read_and_said(name, make, notes, rows, tmp_path: Path) -> None:
    frame = read(make(tmp_path), PLAIN)
    said = "; ".join(frame.sources[0].notes)
    for note in notes:
        assert note in said
    assert len(frame) == rows == frame.sources[0].rows and not frame.skipped
    if "label" in frame.names and "size" in frame.names:
        assert frame.column("label").to_pylist()[:30] == ["no", "yes"] * 15
        assert frame.column("size").to_pylist()[:30] == [str(at * 3) for at in range(30)]


# ---------------------------------------------------------------- separated values


@pytest.mark.quick
def test_cells_stay_as_written_and_a_plain_file_has_no_notes(tmp_path: Path) -> None:
    frame = table(tmp_path, 'id,text,n\n007," a,\nb ",1e5\nx,NA,\n\ny,é\u2028\u0085,+1\n')
    assert frame.table.to_pydict() == {
        "id": ["007", "x", "y"], "text": [" a,\nb ", "NA", "é\u2028\u0085"], "n": ["1e5", "", "+1"],
    }  # fmt: skip
    source = frame.sources[0]
    assert source.notes == () and source.rows == 3 and len(source.sha256) == 64
    assert frame.place(0) == "a.csv row 2"


CELL = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(rows=[[";\n"]], delimiter=";", quoting=csv.QUOTE_MINIMAL, end="\n")
@given(
    rows=st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=1, max_size=8)),
    delimiter=st.sampled_from(",;|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_whatever_the_csv_module_writes_is_read_exactly(tmp_path: Path, rows, delimiter, quoting, end) -> None:
    if end == "\n":  # the module leaves a bare \r unquoted then, and cannot read it back itself
        rows = [[cell.replace("\r", "") for cell in row] for row in rows]
    rows = [row for row in rows if len(row) > 1 or row[0].strip() or quoting == csv.QUOTE_ALL or not row[0]]
    if not rows or not any(cell.strip() for row in rows for cell in row):
        return  # a file of nothing is refused, and a line of spaces is a blank line
    names = [f"n{at}" for at in range(len(rows[0]))]
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerows([names, *rows])
    frame = table(tmp_path, out.getvalue().encode(), delimiter=delimiter, header=True)
    assert frame.names == names
    assert [list(cells) for cells in zip(*(frame.column(name).to_pylist() for name in names), strict=True)] == rows


WORD = st.text("abcdefghijklmnop", min_size=1, max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.lists(WORD, min_size=1, max_size=4).map(" ".join), st.integers(), WORD), min_size=3,
        max_size=20),
    delimiter=st.sampled_from(",;|\t"),
)  # fmt: skip
def test_usual_tables_need_no_word_about_their_form(tmp_path: Path, rows, delimiter) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows([["text", "count", "label"], *rows])
    frame = table(tmp_path, out.getvalue())
    assert frame.names == ["text", "count", "label"]
    assert frame.column("count").to_pylist() == [str(count) for _, count, _ in rows]


@pytest.mark.quick
def test_rows_used_and_rows_left_out_are_the_rows_of_the_file(tmp_path: Path) -> None:
    lines = [f"a{at},{at},x" for at in range(100)]
    lines[10], lines[50], lines[99] = "short,1", "long,1,x,y", "a"
    lines.insert(30, "")
    frame = table(tmp_path, "name,n,label\n" + "\n".join(lines) + "\n")
    assert dict(frame.skipped) == {"too few fields": 2, "too many fields": 1}
    assert len(frame) + sum(frame.skipped.values()) == frame.sources[0].rows == 100
    assert frame.skipped_at["too many fields"] == ("a.csv row 52",)
    kept = [at for at in range(100) if at not in (10, 50, 99)]
    assert frame.numbers is not None and frame.numbers.tolist() == kept
    assert frame.column("n").to_pylist() == [str(at) for at in kept]
    assert frame.place(len(frame) - 1) == "a.csv row 100" and frame.take([60]).place(0) == "a.csv row 64"


def test_rows_are_counted_across_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK", 256)
    lines = [f"a{at},{at}" + ",odd" * (at % 7 == 3) for at in range(500)]
    frame = table(tmp_path, "name,n\n" + "\n".join(lines))
    assert frame.numbers is not None
    assert frame.column("n").to_pylist() == [str(at) for at in frame.numbers.tolist()]
    assert len(frame) + frame.skipped["too many fields"] == 500 and frame.table.column(0).num_chunks > 3


def test_a_field_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK", 1024)
    long = "word, " * 5000
    frame = table(tmp_path, f'text,n\nshort,1\n"{long}",2\nshort,3\n')
    assert frame.column("text").to_pylist() == ["short", long, "short"]


@pytest.mark.parametrize(
    "content, names",
    [
        ("text,label\ngood film,pos\nbad film,neg\n", ["text", "label"]),
        ("good film,pos\nbad film,neg\nfine film,pos\n", ["c1", "c2"]),
        ("1,2,3\n4,5,6\n", ["c1", "c2", "c3"]),
        ("0,1,2\n4,5,6\n7,8,9\n", ["0", "1", "2"]),
        (",a,b\n0,1,2\n1,3,4\n", ["c1", "a", "b"]),
        ("2020-01-01,x\n2020-01-02,y\n", ["c1", "c2"]),
        ("date,x\n2020-01-01,y\n", ["date", "x"]),
        ("What is this?\tA test.\nWhy, then?\tSo it is.\n", ["c1", "c2"]),
        ("text\nhello there\nwell, hello, you\nfine\n", ["text"]),
        ("a,b,\n1,2,\n3,4,\n", ["a", "b", "c3"]),
        ("land,2019,2020\nA,1.5,2.5\nB,3,4\n", ["land", "2019", "2020"]),
        ("cap-shape-above-ring,class-of-it\n" + "x,e\ny,p\n" * 9, ["cap-shape-above-ring", "class-of-it"]),
        ("How are you\tWie geht es\nGood day sir\tGuten Tag\nAnd you\tUnd Sie\n", ["c1", "c2"]),
        ("en\tde\nGood day sir\tGuten Tag\nAnd you\tUnd Sie\n", ["en", "de"]),
        ("a,b\n1,2,\n3,4,\n", ["a", "b", "c3"]),
    ],
)
def test_headers_are_told_from_rows(content: str, names: list[str], tmp_path: Path) -> None:
    frame = table(tmp_path, content)
    assert frame.names == names
    first = 2 if "c1" not in names or (names[0] == "c1" and "a" in names) else 1
    assert frame.place(0) == f"a.csv row {first}"


def test_header_and_delimiter_given_win(tmp_path: Path) -> None:
    assert table(tmp_path, "a,b\nc,d\n", header=False).column("c1").to_pylist() == ["a", "c"]
    assert table(tmp_path, "1,2\n3,4\n", header=True).names == ["1", "2"]
    assert table(tmp_path, "a b\n1 2\n", delimiter="space").names == ["a", "b"]
    assert table(tmp_path, "a\tb;c\n1\t2;3\n", delimiter="tab").names == ["a", "b;c"]


def test_quotes_that_hold_fields_together_are_told_from_those_in_texts(tmp_path: Path) -> None:
    real = 'id\ttext\n1\t"a ""quoted"" word"\n2\t"tab\there"\n'
    assert table(tmp_path, real, "a.tsv").column("text").to_pylist() == ['a "quoted" word', "tab\there"]
    stray = 'id\ttext\n1\t"Well" he said\n2\tplain\n3\t"open\n4\tclosed" again\n5\t5" disk\n'
    frame = table(tmp_path, stray, "a.tsv")
    assert frame.column("text").to_pylist() == ['"Well" he said', "plain", '"open', 'closed" again', '5" disk']
    assert "quotes are part of the text" in frame.sources[0].notes


def test_a_stray_quote_far_down_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.data.files import csv_dialect

    for module in (csv_dialect, csv_rows):
        monkeypatch.setattr(module, "SAMPLE", 2000)
    lines = [f"{at}\ttext {at}\tx" for at in range(600)]
    lines[500], lines[540] = '500\t"open and\tx', '540\tclosed" late\tx'
    frame = table(tmp_path, "n\ttext\tlabel\n" + "\n".join(lines) + "\n", "a.tsv")
    assert len(frame) == 600 and not frame.skipped and frame.column("text")[500].as_py() == '"open and'


def test_several_files_are_put_together_by_name(tmp_path: Path) -> None:
    one = written("one.csv", "a,b\n1,x\n2,y\n3\n")(tmp_path)
    two = written("two.csv", "b;a\nz;4\n")(tmp_path)
    frame = read(one + two, PLAIN)
    assert frame.table.to_pydict() == {"a": ["1", "2", "4"], "b": ["x", "y", "z"]}
    assert [frame.place(at) for at in range(3)] == ["one.csv row 2", "one.csv row 3", "two.csv row 2"]
    assert [source.rows for source in frame.sources] == [3, 1] and frame.skipped == {"too few fields": 1}


# ---------------------------------------------------------------- the cache


def test_a_large_table_goes_to_the_cache_and_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LARGE", 1000)
    monkeypatch.setattr(csv_rows, "BLOCK", 512)
    path = written("a.csv", "name,n\n" + "".join(f"a{at},{at}\n" for at in range(2000)))(tmp_path)
    kept, mapped = read(path, PLAIN), read(path, PLAIN, cache=tmp_path / "cache")
    assert mapped.table.equals(kept.table)
    (file,) = (tmp_path / "cache").iterdir()
    assert file.suffix == ".arrow"
    again = read(path, PLAIN, cache=tmp_path / "cache")  # over a file that is mapped
    assert again.table.equals(mapped.table) and len(list((tmp_path / "cache").iterdir())) == 1


def test_a_cache_is_left_empty_by_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LARGE", 1000)
    monkeypatch.setattr(csv_rows, "BLOCK", 512)
    path = written("a.csv", row(1900, "short", "name,n\n" + "".join(f"a{at},{at}\n" for at in range(2000))))(tmp_path)
    with pytest.raises(UserError, match="row 1900"):
        read(path, PLAIN, bad="error", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_types_that_change_late_reach_earlier_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.data.files import json_rows

    monkeypatch.setattr(json_rows, "BATCH", 10)
    rows = [{"n": at, "same": "x"} for at in range(40)] + [{"n": 0.5, "new": [1]}, {"n": "word", "new": None}]
    path = written("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))(tmp_path)
    kept = read(path, PLAIN)
    assert kept.column("n").to_pylist() == [str(at) for at in range(40)] + ["0.5", "word"]
    assert kept.column("new").to_pylist() == [None] * 40 + [[1], None]
    monkeypatch.setattr(spool, "LARGE", 100)
    assert read(path, PLAIN, cache=tmp_path / "cache").table.equals(kept.table)


# ---------------------------------------------------------------- JSON, Parquet, Arrow


@pytest.mark.parametrize("form", ["lines", "list", "pretty"])
def test_json_rows_are_read_whichever_way_they_are_written(form: str, tmp_path: Path) -> None:
    rows = [
        {"t": f"é {at}", "n": at, "f": at / 2, "b": at % 2 == 0, "l": ["x", str(at)], "o": {"p": at}}
        for at in range(50)
    ]
    del rows[7]["n"]
    text = {
        "lines": "\n".join(json.dumps(r) for r in rows),
        "list": json.dumps(rows),
        "pretty": json.dumps(rows, indent=2),
    }
    frame = table(tmp_path, text[form], "a.jsonl" if form == "lines" else "a.json")
    assert frame.names == ["t", "n", "f", "b", "l", "o.p"]
    assert frame.column("n").to_pylist() == [at if at != 7 else None for at in range(50)]
    assert frame.column("l").type == pa.list_(pa.string()) and frame.column("b").type == pa.bool_()
    assert frame.place(1) == ("a.jsonl line 2" if form == "lines" else "a.json row 2")


def test_a_list_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.data.files import json_rows

    monkeypatch.setattr(json_rows, "BLOCK", 7)
    rows = [{"n": at, "t": "é]},[" * 5} for at in range(30)]
    assert table(tmp_path, json.dumps(rows, ensure_ascii=False), "a.json").table.to_pylist() == rows


def test_bad_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    frame = table(tmp_path, '{"a": 1}\n\nnope\n{"a": 2}\n[1]\n{"a": 3}\n3\n', "a.jsonl")
    assert frame.column("a").to_pylist() == [1, 2, 3] and frame.names == ["a"]
    assert len(frame) + sum(frame.skipped.values()) == frame.sources[0].rows == 6
    assert frame.skipped["not JSON"] == 1 and frame.skipped_at["not JSON"] == ("a.jsonl line 3",)
    assert frame.skipped["not like the first row"] == 2 and frame.place(1) == "a.jsonl row 3"


def test_typed_files_keep_their_types(tmp_path: Path) -> None:
    source = pa.table({
        "i": [1, 2, None], "f": [0.5, None, 1.5], "s": ["a", None, "c"],
        "d": pa.array(["x", "y", "x"]).dictionary_encode(),
        "when": pa.array([0, 1, 2], pa.timestamp("s")), "o": [{"p": 1, "q": "z"}] * 3,
    })  # fmt: skip
    pq.write_table(source, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), source.schema) as file:
        file.write_table(source)
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), source.schema) as stream:
        stream.write_table(source)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        frame = read([tmp_path / name], PLAIN)
        assert frame.names == ["i", "f", "s", "d", "when", "o.p", "o.q"]
        assert frame.column("i").type == pa.int64() and frame.column("d").type == pa.string()
        assert frame.column("o.q").to_pylist() == ["z"] * 3
    both = read([tmp_path / "a.parquet", tmp_path / "a.arrow"], PLAIN)
    assert len(both) == 6 and both.place(3) == "a.arrow row 1"


# ---------------------------------------------------------------- data in Python


@pytest.mark.quick
def test_data_in_python_becomes_the_same_frame() -> None:
    rows = {"a": [1, 2], "b": ["x", None]}
    for data in (rows, pa.table(rows), [{"a": 1, "b": "x"}, {"a": 2, "b": None}], frame_of(rows)):
        assert frame_of(data).table.to_pydict() == rows
    assert frame_of(["one", "two"]).names == ["text"]
    array = np.array([[1.0, np.nan], [3.0, 4.0]], np.float32)
    assert frame_of(array).names == ["c1", "c2"] and frame_of(array).column("c1").type == pa.float32()
    mixed = np.array([[1, "a"], [None, "b"]], dtype=object)
    assert frame_of(mixed).table.to_pydict() == {"c1": [1, None], "c2": ["a", "b"]}
    assert frame_of(rows).place(1) == "rows row 2"
    assert frame_of({"m": [1, "a", 0.5, None]}).table.to_pydict() == {"m": ["1", "a", "0.5", None]}


def test_a_data_frame_is_known_by_its_name_alone() -> None:
    """pandas need not be installed: the little that is used of it is enough."""

    class Column(list):
        def tolist(self) -> list:
            return list(self)

        def __arrow_array__(self, type: object = None) -> pa.Array:
            return pa.array(list(self))

    class Place:
        def __init__(self, columns: list) -> None:
            self.columns = columns

        def __getitem__(self, at: tuple) -> object:
            return self.columns[at[1]]

    class DataFrame:
        columns = ["a", 7]
        iloc = Place([Column([1, 2]), Column(["x", "y"])])

    DataFrame.__module__ = "pandas.core.frame"
    assert frame_of(DataFrame()).table.to_pydict() == {"a": [1, 2], "7": ["x", "y"]}


@pytest.mark.parametrize(
    "data, words",
    [
        ({"a": [1, 2], "b": [1]}, "different lengths (a 2, b 1)"),
        ([1, 2], "rows of int"),
        (["a", {"b": 1}], "row 2"),
        ([[1, 2], [3]], "row 2"),
        ([], "no rows"),
        ({}, "no rows"),
        (np.zeros((2, 2, 2)), "3 axes"),
        (7, "int is not data"),
        ({"a": "word"}, "not a list"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]), "twice"),
    ],
)
def test_data_that_is_none_is_named(data: object, words: str) -> None:
    with pytest.raises(UserError) as caught:
        frame_of(data)
    assert words in str(caught.value) and len(str(caught.value)) <= 300 and caught.value.fix


# ---------------------------------------------------------------- what a path is


CONLL = "EU NNP B-ORG\nrejects VBZ O\nGerman JJ B-MISC\ncall NN O\n\nPeter NNP B-PER\nBlackburn NNP I-PER\n\n"
PROSE = "It was late, and nobody came.\nThen, at last, a knock.\n\nWho was it? Nobody knew.\n" * 5


@pytest.mark.parametrize(
    "name, content, kind",
    [
        ("a.csv", GOOD, "table"),
        ("a.data", "1.5,2,3\n4,5,6\n", "table"),
        ("a.dat", "1.5;2;3\n4;5;6\n", "table"),
        ("a.txt", GOOD.replace(",", "\t"), "table"),
        ("a.txt", GOOD, "table"),
        ("a.txt", PROSE, "text"),
        ("book", PROSE, "text"),
        ("a.txt", CONLL, "conll"),
        ("a.train", CONLL, "conll"),
        ("a.conllu", "x", "conll"),
        ("a.txt", '{"a": 1}\n{"a": 2}\n', "table"),
        ("a", '[{"a": 1}, {"a": 2}]', "table"),
        ("a.all", "".join(f"{at % 3} some words here {at}\n" for at in range(60)), "table"),
        ("train.de", "".join(f"Ein Mann, der {at} Dinge hat.\nZwei Frauen singen.\n" for at in range(60)), "text"),
        ("a.bin", b"\x89PNG\r\n\x1a\n\0\0", "image"),
        ("labels", b"\x00\x00\x08\x01\x00\x00\x00\x02\x01\x02", "idx"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x03", "idx"),
        ("a.wav", b"RIFF....WAVE", "wav"),
        ("a.json", "[]", "table"),
    ],
)
def test_a_path_is_known_by_name_and_content(name: str, content: str | bytes, kind: str, tmp_path: Path) -> None:
    (path,) = written(name, content)(tmp_path)
    assert kind_of_path(path) == kind


def test_folders_are_known_by_what_most_files_are(tmp_path: Path) -> None:
    def made(*names: str) -> Path:
        folder = tmp_path / f"f{len(list(tmp_path.iterdir()))}"
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("x")
        return folder

    assert kind_of_path(made("cat/1.png", "dog/2.JPG", "README.md")) == "images"
    assert kind_of_path(made("a.txt", "b/c.md", ".hidden.png")) == "folder-of-text"
    assert kind_of_path(made("a.parquet", "b.parquet")) == "folder-of-tables"
    assert kind_of_path(made("train-images-idx3-ubyte.gz", "README.txt")) == "idx"
    assert kind_of_path(made("a.wav", "b.wav")) == "wav"
    with pytest.raises(UserError, match="of a model"):
        kind_of_path(made("config.json", "model.safetensors"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        kind_of_path(tmp_path / "empty")
    with pytest.raises(UserError, match="PDF"):
        kind_of_path(written("a.txt", b"%PDF-1.4 \xff")(tmp_path)[0])


# ---------------------------------------------------------------- cost

MAKE = """
import random, sys
r = random.Random(0)
words = [f"w{i}" for i in range(2000)]
few = [f"city{i}" for i in range(300)]
with open(sys.argv[1], "w") as f:
    f.write("a,b,c,d,e,city,colour,day,note,label\\n")
    for block in range(100):
        rows = []
        for i in range(10_000):
            x = r.random()
            day = f"20{10 + int(x * 15)}-{1 + int(x * 997) % 12:02d}-{1 + int(x * 9973) % 28:02d}"
            note = f"{words[int(x * 1e5) % 2000]} {words[int(x * 1e6) % 2000]} {words[int(x * 1e7) % 2000]}"
            rows.append(f"{x:.6f},{x * 300 - 20:.3f},{int(x * 997)},{x * 1e6:.2f},{int(x * 1e9)},"
                        f"{few[int(x * 9973) % 300]},{'red' if x < .3 else 'green'},{day},{note},"
                        f"{'yes' if x < .5 else 'no'}\\n")
        f.writelines(rows)
"""
MEASURE = """
import sys, time
from pathlib import Path
start = time.perf_counter()
from anyformer.data.columns.look import look
from anyformer.data.files.tables import read
from anyformer.data.settings import Format
frame = read([Path(sys.argv[1])], Format(), cache=Path(sys.argv[2]))
facts = look(frame, {})
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(frame), seconds, peak / 2**20, " ".join(fact.kind for fact in facts.values()))
"""


@pytest.mark.alone
def test_a_million_rows_are_read_and_looked_at_in_ten_seconds_and_a_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "million.csv"
    subprocess.run([sys.executable, "-c", MAKE, str(path)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(tmp_path / "cache")], check=True, capture_output=True, text=True
    )
    rows, seconds, peak, *kinds = done.stdout.split()
    assert int(rows) == 1_000_000
    assert kinds == ["number"] * 5 + ["category"] * 2 + ["date", "text", "category"]
    assert float(seconds) <= 10, f"{seconds} s"
    assert float(peak) <= 1, f"{peak} GiB"
