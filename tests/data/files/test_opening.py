"""Files are opened whatever they are packed and encoded in; what is no text is named with its place."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyformer.data.files import open_text
from anyformer.data.files.open_text import lines, open_text_file
from anyformer.data.settings import Format
from anyformer.errors import UserError
from tests.data.files.bad_tables import written, zstd
from tests.data.files.bad_texts import BAD, TEXT, Bad

PLAIN = Format()


def test_there_are_enough_malformed_texts() -> None:
    assert len(BAD) >= 40 and len({bad.name for bad in BAD}) == len(BAD)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_malformed_text_is_one_line_that_names_file_place_and_fix(bad: Bad, tmp_path: Path) -> None:
    paths = bad.make(tmp_path)
    before, start = sorted(os.listdir(tmp_path)), time.perf_counter()
    with pytest.raises(UserError) as caught:
        bad.read(paths, bad.format)
    line = str(caught.value)
    assert time.perf_counter() - start < 5
    assert "\n" not in line and len(line) <= 300
    assert any(path.name[-40:].replace("\0", "") in line.replace("\0", "") for path in paths)
    assert caught.value.fix
    for words in bad.words:
        assert words in line, line
    assert sorted(os.listdir(tmp_path)) == before, "nothing is written"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (path,) = written("a.txt", TEXT)(tmp_path)
    path.chmod(0)
    with pytest.raises(UserError, match="permission denied"):
        open_text_file(path, PLAIN)


def test_a_file_that_may_not_be_read_is_named_also_to_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = written("a.txt", TEXT)(tmp_path)
    monkeypatch.setattr(open_text.os, "access", lambda *_: False)
    with pytest.raises(UserError, match=r"a\.txt: may not be read \(permission denied\); try chmod"):
        open_text_file(path, PLAIN)


PACK = {"": bytes, "gzip": gzip.compress, "xz": lzma.compress, "zstd": zstd}
CODES = {
    "utf-8": (),
    "utf-8-sig": ("byte-order mark",),
    "utf-16": ("UTF-16", "byte-order mark"),
    "latin-1": ("Latin-1",),
}


@pytest.mark.quick
@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("code", CODES)
def test_every_packing_and_encoding_gives_the_same_text(packed: str, code: str, tmp_path: Path) -> None:
    stored = PACK[packed](TEXT.encode(code))
    (path,) = written("wrong.png", stored)(tmp_path)  # the name does not matter
    file = open_text_file(path, PLAIN)
    with file.stream() as stream:
        assert stream.read().decode() == TEXT
    assert file.notes == (((packed,) if packed else ()) + CODES[code])
    assert file.sha256 == hashlib.sha256(stored).hexdigest() and file.bytes == len(stored)
    assert list(file.lines()) == TEXT.split("\n")[:-1] == list(lines(path, PLAIN))
    assert file.head(9) == b"The first"


def test_lines_end_where_a_line_ends_and_nowhere_else(tmp_path: Path) -> None:
    (path,) = written("a.txt", "a\u2028b\r\nc\u0085d\x0b\x0c\x1ce\rf\n\nlast".encode())(tmp_path)
    assert list(lines(path, PLAIN)) == ["a\u2028b", "c\u0085d\x0b\x0c\x1ce\rf", "", "last"]
    assert list(lines(path, PLAIN)) != path.read_text().splitlines(), "control: the usual way cuts more"


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1),
    block=st.integers(1, 9),
)
def test_any_text_survives_blocks_of_any_size(text: str, block: int, tmp_path: Path) -> None:
    if not text.encode().strip() or text.startswith("\ufeff"):
        return
    before, open_text.BLOCK = open_text.BLOCK, block
    try:
        for code in ("utf-8", "utf-16"):
            (path,) = written("a.txt", text.encode(code))(tmp_path)
            try:
                file = open_text_file(path, PLAIN)
            except UserError as error:  # a text may begin like a picture
                assert "looks like" in str(error)
                continue
            with file.stream() as stream:
                assert stream.read().decode() == text
    finally:
        open_text.BLOCK = before


def test_windows_letters_are_told_from_latin_ones(tmp_path: Path) -> None:
    (path,) = written("a.txt", "5 € “for” free\n".encode("cp1252"))(tmp_path)
    file = open_text_file(path, PLAIN)
    assert file.notes == ("Windows-1252",) and next(file.lines()) == "5 € “for” free"
    assert open_text_file(path, Format(encoding="latin-1")).notes == ("Latin-1",)
    assert next(lines(path, Format(encoding="latin-1"))) == "5 \x80 \x93for\x94 free"


def test_a_small_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = written("a.txt.gz", gzip.compress(b"a line\n" * 1_000_000))(tmp_path)
    assert open_text_file(path, PLAIN).size == 7_000_000, "control: below the limit it is read"
    monkeypatch.setattr(open_text, "ROOM", 2**21)
    monkeypatch.setattr(open_text, "RATIO", 100)
    with pytest.raises(UserError, match="more than 100 times its size"):
        open_text_file(path, PLAIN)


def test_looking_at_a_file_holds_a_block_of_it_and_no_more(tmp_path: Path) -> None:
    import tracemalloc

    (path,) = written("a.txt.gz", gzip.compress(b"some words in a line\n" * 2_000_000, 1))(tmp_path)
    tracemalloc.start()
    try:
        assert open_text_file(path, PLAIN).size == 42_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000, peak


def test_unicode_paths_are_opened(tmp_path: Path) -> None:
    folder = tmp_path / "Bücher – 本"
    folder.mkdir()
    (path,) = written("čapek 🤖.txt", TEXT)(folder)
    assert open_text_file(path, PLAIN).name == "čapek 🤖.txt"
