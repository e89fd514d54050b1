"""Malformed texts, tagged words and pairs: how each is made, by what it is read, and words its error must hold."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.files.conll import read_conll
from anyformer.data.files.open_text import open_text_file
from anyformer.data.files.parallel_text import read_pairs
from anyformer.data.settings import Format
from tests.data.files.bad_tables import written, zstd

TEXT = "The first line of a text.\nThe second, with an é in it.\n" * 20
WORDS = "The DT O\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\nsleeps VBZ O\n\n"
UNIVERSAL = (
    "# text = It works\n1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n2\tworks\twork\tVERB\tVBZ\t_\t0\troot\t_\t_\n\n"
)


def text(paths: list[Path], format: Format) -> Any:
    """Read as running text."""
    return open_text_file(paths[0], format)


def tagged(paths: list[Path], format: Format) -> Any:
    """Read as tagged words, strictly."""
    return read_conll(paths, format, bad="error")


def by(column: str | int) -> Callable[[list[Path], Format], Any]:
    """Read as tagged words by one column."""
    return lambda paths, format: read_conll(paths, format, column=column)


def paired(paths: list[Path], format: Format) -> Any:
    """Read as pairs, strictly."""
    return read_pairs(paths, format, bad="error")


@dataclass(frozen=True)
class Bad:
    """A malformed file: `make` writes it into a folder and gives its paths, `read` is how it is read."""

    name: str
    make: Callable[[Path], list[Path]]
    words: tuple[str, ...]
    read: Callable[[list[Path], Format], Any] = text
    format: Format = field(default_factory=Format)


def both(one: str | bytes, other: str | bytes) -> Callable[[Path], list[Path]]:
    """Two parallel files."""
    return lambda folder: written("a.en", one)(folder) + written("a.de", other)(folder)


def near(folder: Path) -> list[Path]:
    (folder / "book.txt").write_text(TEXT)
    return [folder / "bok.txt"]


def below_a_file(folder: Path) -> list[Path]:
    (folder / "a.txt").write_text(TEXT)
    return [folder / "a.txt" / "b.txt"]


def looped(folder: Path) -> list[Path]:
    (folder / "a.txt").symlink_to(folder / "a.txt")
    return [folder / "a.txt"]


def pipe(folder: Path) -> list[Path]:
    os.mkfifo(folder / "a.txt")
    return [folder / "a.txt"]


def listening(folder: Path) -> list[Path]:
    place = socket.socket(socket.AF_UNIX)
    before = os.getcwd()
    try:
        os.chdir(folder)  # the path of a socket must be short
        place.bind("a.txt")
    finally:
        os.chdir(before)
        place.close()
    return [folder / "a.txt"]


def npy() -> bytes:
    return b"\x93NUMPY\x01\x00" + np.zeros(4).tobytes()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


NOISE = np.random.default_rng(0).integers(1, 256, 4000, np.uint8).tobytes()
GZ, XZ, BZ = gzip.compress(TEXT.encode()), lzma.compress(TEXT.encode()), bz2.compress(TEXT.encode())

BAD = [
    # the file
    Bad("missing", lambda folder: [folder / "a.txt"], ("no such file",)),
    Bad("misspelt", near, ("no such file", "did you mean", "book.txt")),
    Bad("missing folder", lambda folder: [folder / "deep" / "a.txt"], ("no such file",)),
    Bad("below a file", below_a_file, ("no such file",)),
    Bad("a folder", lambda folder: [folder], ("a folder",)),
    Bad("link to itself", looped, ("cannot be opened",)),
    Bad("pipe", pipe, ("not a plain file",)),
    Bad("socket", listening, ("not a plain file",)),
    Bad("NUL in the name", lambda folder: [folder / "a\0.txt"], ("cannot be opened",)),
    Bad("name too long", lambda folder: [folder / ("a" * 300 + ".txt")], ("cannot be opened",)),
    # the bytes
    Bad("empty", written("a.txt", ""), ("empty",)),
    Bad("blank", written("a.txt", " \n\t\n"), ("blank lines",)),
    Bad("NUL", written("a.txt", TEXT[:33] + "\0" + TEXT), ("NUL", "offset 33")),
    Bad("NUL behind the first block", written("a.txt", b"a line\n" * 200_000 + b"\0"), ("NUL", "offset 1,400,000")),
    Bad("jpeg", written("a.txt", b"\xff\xd8\xff\xe0" + b"x" * 50), ("JPEG image", "byte 0")),
    Bad("gif", written("a.txt", b"GIF89a" + b"x" * 50), ("GIF image",)),
    Bad("webp", written("a.txt", b"RIFF\x10\0\0\0WEBPVP8 "), ("WebP image",)),
    Bad("wav", written("a.txt", b"RIFF\x10\0\0\0WAVEfmt "), ("WAV recording",)),
    Bad("pdf", written("a.txt", b"%PDF-1.7\n1 0 obj"), ("PDF",)),
    Bad("docx", written("a.txt", b"PK\x03\x04\x14\0\x06\0"), ("zip archive",)),
    Bad("old Word", written("a.txt", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), ("Word",)),
    Bad("program", written("a.txt", b"\x7fELF\x02\x01\x01"), ("program",)),
    Bad("numpy", written("a.txt", npy()), ("numpy array",)),
    Bad("parquet", written("a.txt", b"PAR1" + b"\x15\x04" * 20), ("Parquet file",)),
    Bad("pickle", written("a.txt", b"\x80\x05\x95\x10\0"), ("pickle",)),
    Bad("7z", written("a.txt", b"7z\xbc\xaf\x27\x1c\0\x04"), ("7z archive",)),
    Bad("noise", written("a.txt", NOISE), ("byte", "offset")),
    Bad("lfs pointer", written("a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), ("Git LFS",)),
    # packed
    Bad("cut gzip", written("a.txt.gz", GZ[:-9]), ("gzip", "cut short")),
    Bad("cut gzip head", written("a.txt.gz", GZ[:7]), ("gzip", "cut short")),
    Bad("flipped gzip", written("a.txt.gz", flipped(GZ, -6)), ("gzip", "damaged")),
    Bad("cut xz", written("a.txt.xz", XZ[:-20]), ("xz", "cut short")),
    Bad("flipped xz", written("a.txt.xz", flipped(XZ, len(XZ) // 2)), ("xz", "damaged")),
    Bad("cut bz2", written("a.txt.bz2", BZ[:-5]), ("bzip2", "cut short")),
    Bad("flipped bz2", written("a.txt.bz2", flipped(BZ, 30)), ("bzip2", "damaged")),
    Bad("cut zst", written("a.txt.zst", zstd(TEXT.encode())[:-4]), ("zstd", "cut short")),
    Bad("only the mark of zst", written("a.txt.zst", b"\x28\xb5\x2f\xfd"), ("zstd",)),
    Bad("png in gzip", written("a.txt.gz", gzip.compress(b"\x89PNG\r\n\x1a\n")), ("PNG image",)),
    Bad("zeros in gzip", written("a.txt.gz", gzip.compress(b"\0" * 10_000_000)), ("NUL",)),
    # encodings
    Bad("broken UTF-8", written("a.txt", TEXT.encode() + b"\xe9 a\n"), ("0xe9", "not UTF-8", "offset")),
    Bad("cut inside a letter", written("a.txt", ("é" * 30).encode()[:-1]), ("0xc3", "not UTF-8", "offset 58")),
    Bad("UTF-16 without mark", written("a.txt", TEXT.encode("utf-16-le")), ("UTF-16", "utf-16-le")),
    Bad("UTF-16 big without mark", written("a.txt", TEXT.encode("utf-16-be")), ("UTF-16", "utf-16-be")),
    Bad("cut UTF-16", written("a.txt", TEXT.encode("utf-16")[:-1]), ("not utf-16", "byte")),
    Bad("Cyrillic KOI8", written("a.txt", ("Привет, мир. " * 20).encode("koi8-r")), ("Western",)),
    Bad("Chinese GBK", written("a.txt", ("你好，世界。" * 20).encode("gbk")), ("UTF-8",)),
    Bad("mark, then Latin-1", written("a.txt", b"\xef\xbb\xbfcaf\xe9\n"), ("byte 6",)),
    Bad("no such encoding", written("a.txt", TEXT), ("klingon", "not an encoding"), text, Format(encoding="klingon")),
    Bad("not a text encoding", written("a.txt", TEXT), ("not an encoding",), text, Format(encoding="base64")),
    Bad("asked ASCII", written("a.txt", TEXT), ("not ascii", "byte 46"), text, Format(encoding="ascii")),
    # tagged words
    Bad("short line", written("a.conll", WORDS.replace("rejects VBZ O", "rejects VBZ")),
        ("line 3", "2 fields"), tagged),
    Bad("long line", written("a.conll", WORDS.replace("sleeps VBZ O", "sleeps VBZ O x")),
        ("line 6", "4 fields"), tagged),
    Bad("words alone", written("a.conll", "One\nTwo\n\nThree\n"), ("no tag",), tagged),
    Bad("only comments", written("a.conll", "# one\n# two\n\n"), ("no sentences",), tagged),
    Bad("no word number", written("a.conllu", UNIVERSAL * 2 + UNIVERSAL.replace("2\tworks", "x\tworks")),
        ("line 11",), tagged),
    Bad("empty tag", written("a.tsv", "The\tO\nEU\tB\n\nA\t\nB\tO\n"), ("without a tag",), tagged),
    Bad("no such column", written("a.conll", WORDS), ("column 7 is out of range", "3"), by(7)),
    Bad("column zero", written("a.conll", WORDS), ("column 0 is out of range",), by(0)),
    Bad("no names here", written("a.conll", WORDS), ("no names",), by("upos")),
    Bad("no such name", written("a.conllu", UNIVERSAL), ("'upso'", "did you mean 'upos'"), by("upso")),
    # pairs
    Bad("lines missing", both("a\nb\nc\n", "x\ny\n"), ("3 lines", "2 in a.de"), paired),
    Bad("lines too many", both("a\nb\n", "x\ny\nz\nw\n"), ("2 lines", "4 in a.de"), paired),
    Bad("empty source", both("a\n\nc\n", "x\ny\nz\n"), ("line 2", "empty source"), paired),
    Bad("empty target", both("a\nb\nc\n", "x\ny\n \n"), ("line 3", "empty target"), paired),
    Bad("nothing in common", both("a\n\n", "\nx\n"), ("both sides",), lambda p, f: read_pairs(p, f)),
    Bad("one column", written("a.csv", "text\nhello\nyou there\n"), ("two columns of text", "found"), paired),
    Bad("empty cell", written("a.tsv", "source\ttarget\na b\tx y\nc\t\n"), ("row 3", "empty target"), paired),
]  # fmt: skip
