"""Malformed tables: how each is made, and words its error must hold. One list, tried by test_reading.py."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anyformer.data.settings import Format

GOOD = "name,size,label\n" + "".join(f"item {at},{at * 3},{'yes' if at % 2 else 'no'}\n" for at in range(30))
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


@dataclass(frozen=True)
class Bad:
    """A malformed table: `make` writes it into a folder and gives its paths."""

    name: str
    make: Callable[[Path], Any]
    words: tuple[str, ...]  # all of them stand in the error
    format: Format = field(default_factory=Format)
    bad: str = "error"
    file: str = ""  # the file named, where it is not the first


def written(name: str, content: str | bytes) -> Callable[[Path], list[Path]]:
    """A maker of one file."""

    def make(folder: Path) -> list[Path]:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
        return [folder / name]

    return make


def several(**contents: str) -> Callable[[Path], list[Path]]:
    """A maker of several CSV files."""

    def make(folder: Path) -> list[Path]:
        return [written(f"{name}.csv", content)(folder)[0] for name, content in contents.items()]

    return make


def row(number: int, text: str, base: str = GOOD) -> str:
    """The good table with one row replaced; rows are counted as a spreadsheet does, the header being 1."""
    lines = base.splitlines()
    lines[number - 1] = text
    return "\n".join(lines) + "\n"


def parquet(name: str, **columns: list[Any]) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        pq.write_table(pa.table(columns), folder / name)
        return [folder / name]

    return make


def cut_parquet(folder: Path) -> list[Path]:
    path = parquet("a.parquet", x=list(range(1000)))(folder)[0]
    path.write_bytes(path.read_bytes()[:-200])
    return [path]


def two_parquet(folder: Path) -> list[Path]:
    return [parquet("a.parquet", x=[1, 2])(folder)[0], parquet("b.parquet", x=["a", "b"])(folder)[0]]


def twice_parquet(folder: Path) -> list[Path]:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as file:
        file.write_table(table)
    return [folder / "a.arrow"]


def folder_named(folder: Path) -> list[Path]:
    (folder / "a.csv").mkdir()
    return [folder / "a.csv"]


def misspelt(folder: Path) -> list[Path]:
    (folder / "reviews.csv").write_text(GOOD)
    return [folder / "review.csv"]


def dangling(folder: Path) -> list[Path]:
    (folder / "a.csv").symlink_to(folder / "gone.csv")
    return [folder / "a.csv"]


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def lines(*rows: Any) -> str:
    return "".join((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in rows)


NESTED = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"

BAD = [
    # the file
    Bad("missing", lambda folder: [folder / "a.csv"], ("no such file",)),
    Bad("misspelt", misspelt, ("no such file", "did you mean", "reviews.csv"), file="review.csv"),
    Bad("folder", folder_named, ("a folder",)),
    Bad("dangling link", dangling, ("link",)),
    Bad("empty", written("a.csv", ""), ("empty",)),
    Bad("empty after unpacking", written("a.csv.gz", gzip.compress(b"")), ("empty",)),
    Bad("only a byte-order mark", written("a.csv", b"\xef\xbb\xbf"), ("empty",)),
    Bad("blank lines", written("a.csv", "\n\n  \n"), ("blank lines",)),
    Bad("png", written("a.csv", PNG), ("PNG image", "byte 0")),
    Bad("excel", written("a.csv", b"PK\x03\x04" + b"\0" * 40), ("Excel", "byte 0")),
    Bad("pickle", written("a.csv", b"\x80\x04\x95" + b"x" * 40), ("pickle",)),
    Bad("sqlite", written("a.csv", b"SQLite format 3\0" + b"x" * 40), ("SQLite",)),
    Bad("gzip in gzip", written("a.csv.gz", gzip.compress(gzip.compress(GOOD.encode()))), ("gzip file",)),
    Bad("tar in gzip", written("a.csv.gz", gzip.compress(b"a" * 257 + b"ustar" + b"b" * 300)), ("tar archive",)),
    Bad("cut gzip", written("a.csv.gz", gzip.compress(GOOD.encode())[:-12]), ("gzip", "cut short", "unpacked")),
    Bad("cut xz", written("a.csv.xz", lzma.compress(GOOD.encode())[:-12]), ("xz", "cut short")),
    Bad("cut bz2", written("a.csv.bz2", bz2.compress(GOOD.encode())[:-12]), ("bzip2", "cut short")),
    Bad("cut zst", written("a.csv.zst", zstd(GOOD.encode())[:-6]), ("zstd", "cut short")),
    Bad("gzip with garbage", written("a.csv.gz", gzip.compress(GOOD.encode()) + b"garbage"), ("gzip", "damaged")),
    Bad("NUL", written("a.csv", row(5, "it\0em,3,yes")), ("NUL", "offset")),
    Bad("web page", written("a.csv", "<!DOCTYPE html>\n<html><body>404</body></html>\n"), ("web page",)),
    Bad("lfs pointer", written("a.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), ("LFS",)),
    Bad("bad UTF-8", written("a.csv", ("é" * 50 + GOOD).encode() + b"x\xff,1,no\n"), ("0xff", "not UTF-8", "offset")),
    Bad("shift-jis", written("a.csv", ("名前,値\n" + "こんにちは世界,1\n" * 20).encode("shift_jis")), ("UTF-8",)),
    Bad("unknown encoding", written("a.csv", GOOD), ("utf-9", "not an encoding"), Format(encoding="utf-9")),
    Bad("wrong encoding", written("a.csv", "a,b\né,1\n".encode("latin-1")), ("byte 4",), Format(encoding="utf-8")),
    # separated values
    Bad("only a header", written("a.csv", "name,size,label\n"), ("header", "no rows")),
    Bad("too few fields", written("a.csv", row(9, "item,4")), ("row 9", "2 fields where 3")),
    Bad("too many fields", written("a.csv", row(17, "item,4,no,more")), ("row 17", "4 fields where 3")),
    Bad("too many fields in tsv", written("a.tsv", row(4, "a\t1\tno\tx", GOOD.replace(",", "\t"))), ("row 4", "4 f")),
    Bad("first row short", written("a.csv", row(2, "item")), ("row 2", "1 fields")),
    Bad("last row cut", written("a.csv", GOOD + "item 31,9"), ("row 32", "2 fields")),
    Bad("a name twice", written("a.csv", GOOD.replace("size", "name", 1)), ("'name'", "twice", "row 1")),
    Bad("two names twice", written("a.csv", "a,b,a,b\n" + "1,2,3,4\n" * 5), ("'a', 'b'", "twice")),
    Bad("header too short", written("a.csv", "a,b\n" + "1,2,3,4,5\n" * 9),
        ("header has 2", "5 fields"), Format(header=True)),
    Bad("quote never closed", written("a.csv", row(12, 'item,"4')), ("row 12", "2 fields")),
    Bad("quote never closed, multi-line", written("a.csv", 'a,b\n1,"x\ny"\n2,"u\nv"\n3,"never\n4\n5\n'),
        ("line 6", "never closed")),
    Bad("long delimiter", written("a.csv", GOOD), ("not a delimiter",), Format(delimiter="||")),
    Bad("letter as delimiter", written("a.csv", GOOD), ("not a delimiter",), Format(delimiter="x")),
    Bad("other delimiter asked", written("a.csv", GOOD + "a;b,1,no\n"),
        ("row 32",), Format(delimiter=";", header=True)),
    Bad("no usable row", written("a.csv", "a,b,c\n1,2,3\n".replace("1,2,3", "1") * 1),
        ("3 names",), Format(header=True), "skip"),
    Bad("other columns", several(a=GOOD, b=GOOD.replace("size", "weight")),
        ("a.csv", "'size'", "'weight'"), file="b.csv"),
    Bad("a column less", several(a=GOOD, b="name,size\nx,1\ny,2\n"), ("lacks 'label'",), file="b.csv"),
    Bad("a second file short", several(a=GOOD, b=row(7, "x,1")), ("row 7", "2 fields"), file="b.csv"),
    # JSON
    Bad("line no JSON", written("a.jsonl", lines({"a": 1}, {"a": 2}, "{oops}")), ("line 3", "not JSON", "column 2")),
    Bad("line cut", written("a.jsonl", lines({"a": 1}, '{"a": ')), ("line 2", "not JSON")),
    Bad("line a list, then not", written("a.jsonl", lines([1, 2], [3])), ("line 2", "1 values where 2")),
    Bad("line a number", written("a.jsonl", lines({"a": 1}, "7")), ("line 2", "7 is not an object")),
    Bad("line without fields", written("a.jsonl", lines({"a": 1}, {})), ("line 2", "without fields")),
    Bad("nested too deeply", written("a.jsonl", lines({"a": 1}, NESTED)), ("line 2", "deeply")),
    Bad("number too long", written("a.jsonl", lines({"a": 1}, '{"a": ' + "9" * 5000 + "}")), ("line 2", "too long")),
    Bad("list not closed", written("a.json", '[{"a": 1}, {"a": 2}'), ("row 3", "not closed", "character")),
    Bad("list broken", written("a.json", '[{"a": 1}, {"a" 2}]'), ("row 2", "not JSON", "character 16")),
    Bad("list and more", written("a.json", '[{"a": 1}] [2]'), ("follows the list", "character 11")),
    Bad("list of numbers", written("a.json", "[1, 2, 3]"), ("row 1", "not an object")),
    Bad("one object", written("a.json", '{"a": 1, "b": {"c": 2}}'), ("one JSON object",)),
    Bad("unequal columns", written("a.json", '{"a": [1, 2], "b": [3]}'), ("a 2, b 1",)),
    Bad("object broken", written("a.json", '{\n "a": [1,\n}\n'), ("line 3", "not JSON")),
    Bad("empty list", written("a.json", "[]"), ("no rows",)),
    # Parquet and Arrow
    Bad("text as parquet", written("a.parquet", GOOD), ("not a parquet file",)),
    Bad("cut parquet", cut_parquet, ("damaged Parquet",)),
    Bad("parquet of zeros", written("a.parquet", b"PAR1" + b"\0" * 100), ("damaged Parquet",)),
    Bad("parquet without rows", parquet("a.parquet", x=[]), ("no rows",)),
    Bad("cut arrow", written("a.arrow", b"ARROW1\0\0" + b"\1" * 50), ("damaged Arrow",)),
    Bad("other types", two_parquet, ("'x' is string", "int64"), file="b.parquet"),
    Bad("arrow name twice", twice_parquet, ("'x'", "twice")),
]  # fmt: skip

# Not mistakes: they are read, and said. Maker, words in the notes, and the rows to be found.
NOTED: list[tuple[str, Callable[[Path], list[Path]], tuple[str, ...], int]] = [
    ("byte-order mark", written("a.csv", b"\xef\xbb\xbf" + GOOD.encode()), ("byte-order mark",), 30),
    ("UTF-16", written("a.csv", GOOD.encode("utf-16")), ("UTF-16",), 30),
    ("Latin-1", written("a.csv", GOOD.replace("item", "Stück").encode("latin-1")), ("Latin-1",), 30),
    ("Windows-1252", written("a.csv", GOOD.replace("item", "5 €").encode("cp1252")), ("Windows-1252",), 30),
    ("gzip, named csv", written("a.csv", gzip.compress(GOOD.encode())), ("gzip",), 30),
    ("xz, named gz", written("a.csv.gz", lzma.compress(GOOD.encode())), ("xz",), 30),
    ("bz2", written("a.csv.bz2", bz2.compress(GOOD.encode())), ("bzip2",), 30),
    ("zst", written("a.csv.zst", zstd(GOOD.encode())), ("zstd",), 30),
    ("semicolons", written("a.csv", GOOD.replace(",", ";")), ('delimiter ";"',), 30),
    ("tabs named csv", written("a.csv", GOOD.replace(",", "\t")), ("delimiter tab",), 30),
    ("bars", written("a.txt", GOOD.replace(",", "|")), ('delimiter "|"',), 30),
    ("no header", written("a.csv", GOOD.split("\n", 1)[1]), ("no header: columns are c1 ... c3",), 30),
    ("spaces", written("a.data", GOOD.split("\n", 1)[1].replace(",", ", ")), ("spaces after the delimiter",), 30),
    ("spaces, quotes", written("a.csv", GOOD.replace(",", ", ") + '"a, b", "1", "c"\n'), ("spaces after",), 31),
    ("old Mac", written("a.csv", GOOD.replace("\n", "\r")), ("carriage returns",), 30),
    ("title above", written("a.csv", "Sales of 2020\n\n" + GOOD), ("1 line above the table",), 30),
    ("row names", written("a.csv", "a,b\n" + "".join(f"r{at},{at},2\n" for at in range(9))),
        ("first column has no name",), 9),
    ("stray quotes", written("a.tsv", 'a\tb\n"x" y\t1\n"z\t2\nw" v\t3\n'), ("quotes are part",), 3),
    ("a stray quote", written("a.csv", row(12, 'item",30,no').replace("item 3,", '"item 3,')),
        ("quotes are part",), 30),
    ("parquet, named csv", parquet("a.csv", x=[1, 2, 3]), ("Parquet",), 3),
    ("columns by name", written("a.json", '{"a": [1, 2], "b": [3, 4]}'), ("columns by name",), 2),
    ("rows under a name", written("a.json", '{"version": 2, "data": [{"a": 1}, {"a": 2}]}'), ("rows under 'data'",), 2),
    ("lists", written("a.jsonl", "[1, 2]\n[3, 4]\n"), ("no header: columns are c1 ... c2",), 2),
    ("labels", written("a.all", "".join(f"{at % 2} a film of number {at}\n" for at in range(60))),
        ("a label and a text",), 60),
]  # fmt: skip
