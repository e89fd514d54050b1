"""FASTA into rows: headers, folded lines, labels beside; junk is named with its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from anyformer import UserError
from anyformer.data.files.fasta import EMPTY, ODD, join_labels, read_fasta
from anyformer.data.files.path_kinds import kind_of_path
from anyformer.data.files.tables import frame_of
from anyformer.data.gather import origin_of
from anyformer.data.settings import Data, Format
from anyformer.tasks.prepare import prepare

TEXT = """>sp|P1|FIRST a protein
MKTAY IAKQR
qisf*
; a comment of the old kind
>second
AC-DE.F

>third	tabbed
mkv
"""


def written(folder: Path, text: str | bytes = TEXT, name: str = "p.fasta") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.quick
def test_records_are_joined_upper_and_named_by_their_first_word(tmp_path: Path) -> None:
    frame = read_fasta([written(tmp_path)], Format())
    assert frame.column("id").to_pylist() == ["sp|P1|FIRST", "second", "third"]
    assert frame.column("sequence").to_pylist() == ["MKTAYIAKQRQISF*", "AC-DE.F", "MKV"]
    assert frame.place(1) == "p.fasta record 2"


def test_windows_line_ends_and_packed_files_are_the_same(tmp_path: Path) -> None:
    wanted = read_fasta([written(tmp_path)], Format()).table
    dos = written(tmp_path, TEXT.replace("\n", "\r\n"), "dos.fa")
    packed = written(tmp_path, gzip.compress(TEXT.encode()), "p.faa.gz")
    for path in (dos, packed):
        assert kind_of_path(path) == "fasta" and origin_of([path], None) == "fasta"
        assert read_fasta([path], Format()).table.equals(wanted)


def test_what_is_no_residue_is_left_out_and_counted_or_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ">a\nMKT\n>b\nMK7\n>c\n\n>d\nACD\n")
    frame = read_fasta([path], Format())
    assert frame.column("id").to_pylist() == ["a", "d"] and dict(frame.skipped) == {ODD: 1, EMPTY: 1}
    assert frame.skipped_at[ODD] == ("p.fasta line 3",) and frame.place(1) == "p.fasta record 4"
    with pytest.raises(UserError, match=r"p\.fasta line 3: .*'7' at residue 3"):
        read_fasta([path], Format(), bad="error")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MKT\n>a\nMKT\n", "p.fasta line 1: residues before the first header"),
        ("just some prose\n", "p.fasta line 1: residues before the first header"),
        (">a\n>b\n", "p.fasta line 1: nothing but a record without residues"),
        ("\n\n", "only blank lines"),
        ("; nothing but a comment\n", "no record in it"),
        (">a\n12\n", "nothing but a record with a sign that is not a residue"),
    ],
    ids=["no-header", "prose", "headers-only", "blank", "comment", "numbers"],
)
def test_junk_is_one_error_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read_fasta([written(tmp_path, text)], Format())
    assert said in str(refused.value) and len(str(refused.value)) <= 300


def test_labels_come_from_a_table_by_id(tmp_path: Path) -> None:
    frame = read_fasta([written(tmp_path)], Format())
    table = frame_of({"kind": ["x", "y"], "protein": ["third", "second"]})
    made = join_labels(frame, table)
    assert made.names == ["id", "sequence", "kind"] and made.column("kind").to_pylist() == [None, "y", "x"]
    with pytest.raises(UserError, match="no column holds the ids"):
        join_labels(frame, frame_of({"kind": ["x"], "protein": ["other"]}))
    with pytest.raises(UserError, match="'second' comes twice"):
        join_labels(frame, frame_of({"kind": ["x", "y"], "protein": ["second", "second"]}))


def test_alone_it_is_a_language_model_by_residue_and_with_labels_a_classifier(tmp_path: Path) -> None:
    many = "".join(f">p{i}\n{'ACDEFGHIK' if i % 2 else 'LMNPQRSTVWY'}\n" for i in range(40))
    path = written(tmp_path, many)
    labels = tmp_path / "labels.csv"
    labels.write_text("id,family\n" + "".join(f"p{i},{'even' if i % 2 else 'odd'}\n" for i in range(40)))
    alone = prepare([path], cache=tmp_path / "one")
    assert alone.task == "lm" and alone.tokenizer is not None and alone.tokenizer.size < 30
    assert alone.tokenizer.decode(alone.tokenizer.encode("MKV")) == "MKV"
    beside = prepare([path, labels], settings=Data(target=("family",)), cache=tmp_path / "two")
    assert beside.task == "classify" and beside.preprocess.labels == ("even", "odd")
    assert [column.name for column in beside.preprocess.columns or ()] == ["sequence"]
    assert beside.tokenizer is not None and beside.tokenizer.size < 30
