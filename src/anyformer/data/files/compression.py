"""What the first bytes of a file say: how it is packed, and what it is where it is no text at all."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from typing import Any, BinaryIO

from anyformer.errors import UserError
from anyformer.extras import require

# Signature, where it stands, and what people call such a file. The first that fits counts.
PACKED = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"), (b"\x28\xb5\x2f\xfd", "zstd"))
BINARY: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "a PNG image"), (b"\xff\xd8\xff", 0, "a JPEG image"), (b"GIF8", 0, "a GIF image"),
    (b"WEBP", 8, "a WebP image"), (b"WAVE", 8, "a WAV recording"), (b"ID3", 0, "an MP3 recording"),
    (b"fLaC", 0, "a FLAC recording"), (b"OggS", 0, "an Ogg recording"), (b"%PDF-", 0, "a PDF"),
    (b"PK\x03\x04", 0, "a zip archive or an Excel workbook"), (b"\xd0\xcf\x11\xe0", 0, "an old Excel or Word file"),
    (b"\x7fELF", 0, "a program"), (b"\x93NUMPY", 0, "a numpy array"), (b"\x89HDF", 0, "an HDF5 file"),
    (b"SQLite format 3\x00", 0, "an SQLite database"), (b"PAR1", 0, "a Parquet file"), (b"ARROW1", 0, "an Arrow file"),
    (b"FEA1", 0, "a Feather file"), (b"7z\xbc\xaf\x27\x1c", 0, "a 7z archive"), (b"Rar!", 0, "a RAR archive"),
    (b"ustar", 257, "a tar archive"), (b"\x00\x00\x08\x01", 0, "an IDX file"), (b"\x00\x00\x08\x03", 0, "an IDX file"),
    (b"GGUF", 0, "a GGUF model"), (b"\x80\x02", 0, "a pickle"), (b"\x80\x03", 0, "a pickle"),
    (b"\x80\x04", 0, "a pickle"), (b"\x80\x05", 0, "a pickle"), (b"Obj\x01", 0, "an Avro file"),
)  # fmt: skip
HEAD = 512  # bytes that are enough to tell
RATIO, ROOM = 500, 2**29  # a small file that unpacks beyond both is a trap, not data


def packing(head: bytes) -> str:
    """The compression that the first bytes tell, or nothing."""
    return next((name for magic, name in PACKED if head.startswith(magic)), "")


def looks_like(head: bytes) -> str:
    """What a file of bytes is, as people call it, or nothing where it may be text."""
    if packing(head):
        return f"a {packing(head)} file"
    return next((name for magic, at, name in BINARY if head[at : at + len(magic)] == magic), "")


def unpacked(file: BinaryIO, kind: str, name: str, stored: int) -> BinaryIO:
    """The bytes inside a compressed file, a block at a time; `stored` is its size on disk."""
    if not kind:
        return file
    if kind == "zstd":
        inner: Any = Zstd(file, name)
    elif kind == "gzip":
        inner = gzip.GzipFile(fileobj=file, mode="rb")
    elif kind == "xz":
        inner = lzma.LZMAFile(file)  # noqa: SIM115 - closed by whoever reads
    else:
        inner = bz2.BZ2File(file)
    return io.BufferedReader(Watched(inner, file, kind, name, stored), 2**20)


class Zstd:
    """A zstd stream, read through pyarrow."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        import_pyarrow(name)
        import pyarrow as pa

        self.stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def read(self, size: int) -> bytes:
        return bytes(self.stream.read(size))

    def close(self) -> None:
        self.stream.close()


class Watched(io.RawIOBase):
    """A stream that unpacks, whose troubles are told as a user can mend them."""

    def __init__(self, inner: Any, file: BinaryIO, kind: str, name: str, stored: int) -> None:
        self.file = file
        self.inner, self.kind, self.name, self.stored, self.given = inner, kind, name, stored, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            block = self.inner.read(len(buffer))
        except EOFError:
            raise self.broken("is cut short") from None
        except (OSError, zlib.error, lzma.LZMAError, ValueError) as error:
            if "Truncated" in str(error):
                raise self.broken("is cut short") from None
            raise self.broken("is damaged") from None
        buffer[: len(block)] = block
        self.given += len(block)
        if self.given > ROOM and self.given > RATIO * self.stored:
            what = f"unpacks to more than {RATIO} times its size"
            raise UserError(what, where=self.name, fix="unpack it yourself if that is meant")
        return len(block)

    def broken(self, how: str) -> UserError:
        what = f"the {self.kind} file {how} (after {self.given:,} unpacked bytes)"
        return UserError(what, where=self.name, fix="copy or download it again")

    def close(self) -> None:
        if not self.closed:
            self.inner.close()
            self.file.close()  # the standard library leaves open what it was given
        super().close()


def import_pyarrow(name: str = "") -> None:
    """Say what to install where pyarrow is missing."""
    require("pyarrow", "tables need", where=name)
