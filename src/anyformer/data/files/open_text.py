"""Opening text files of any compression and encoding; files that are not text are rejected with what they are.

A file is scanned once before it is read: its hash, its encoding and whatever else reading needs. Only a block is in
memory at a time, so a file may be larger than memory.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from anyformer.data.files.encoding import NOTES, EncodingDetector, encoding_of_mark, find_encoding
from anyformer.data.settings import Format
from anyformer.errors import UserError, nearest, one_edit
from anyformer.extras import require

# Signature, its position, and the common name of the format. The first match counts.
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
HEAD = 512  # bytes needed for detection
RATIO, ROOM = 500, 2**29  # a small file that exceeds both on decompression is a decompression bomb


def packing(head: bytes) -> str:
    """The compression given by the first bytes, or ""."""
    return next((name for magic, name in PACKED if head.startswith(magic)), "")


def looks_like(head: bytes) -> str:
    """The common name of a binary file's format, or "" if it may be text."""
    if packing(head):
        return f"a {packing(head)} file"
    return next((name for magic, at, name in BINARY if head[at : at + len(magic)] == magic), "")


def unpack_stream(file: BinaryIO, kind: str, name: str, stored: int) -> BinaryIO:
    """The decompressed bytes of a file, in blocks; `stored` is its size on disk."""
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
    """A zstd stream, through pyarrow."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        import_pyarrow(name)
        import pyarrow as pa

        self.stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def read(self, size: int) -> bytes:
        return bytes(self.stream.read(size))

    def close(self) -> None:
        self.stream.close()


class Watched(io.RawIOBase):
    """A decompressing stream that raises user-facing errors."""

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
            self.file.close()  # the standard library does not close a stream it was given
        super().close()


def import_pyarrow(name: str = "") -> None:
    """Raise an error with the command to install if pyarrow is missing."""
    require("pyarrow", "tables need", where=name)


BLOCK = 2**20
Bytes = bytes  # below, a field of the same name hides it


@dataclass(frozen=True)
class OpenedText:
    """A scanned text file: `stream()` yields it as UTF-8, any number of times."""

    path: Path
    packed: str  # gzip, xz, bzip2, zstd or ""
    encoding: str
    notes: tuple[str, ...]  # for the user: "gzip", "Latin-1", "byte-order mark"
    sha256: str  # of the stored file
    bytes: int  # as stored
    size: int  # decompressed
    newlines: int
    quotes: int  # double quotes, which slow down reading a table

    @property
    def name(self) -> str:
        """The file's name for messages."""
        return self.path.name

    def stream(self) -> BinaryIO:
        """The whole file as UTF-8 without a byte-order mark."""
        raw = unpack_stream(cast(BinaryIO, self.path.open("rb")), self.packed, self.name, self.bytes)
        if self.encoding in ("utf-8", "utf-8-sig"):
            read_up_to(raw, 3 if self.encoding == "utf-8-sig" else 0)
            return raw
        return io.BufferedReader(Recoded(raw, self.encoding, self.name), BLOCK)

    def lines(self) -> Iterator[str]:
        """Its lines without line ends, which are only \\n or \\r\\n."""
        with self.stream() as stream:
            for line in stream:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")

    def head(self, size: int) -> Bytes:
        """The first bytes of `stream()`."""
        with self.stream() as stream:
            return read_up_to(stream, size)


class Recoded(io.RawIOBase):
    """A stream re-encoded as UTF-8."""

    def __init__(self, raw: BinaryIO, encoding: str, name: str) -> None:
        self.raw, self.encoding, self.name = raw, encoding.removesuffix("-sig"), name
        self.decoder = codecs.getincrementaldecoder(self.encoding)()
        self.ready, self.offset, self.done = memoryview(b""), 0, False
        if encoding == "utf-8-sig":  # dropped here, so that offsets include it
            self.offset = len(read_up_to(raw, 3))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready and not self.done:
            block = self.raw.read(BLOCK)
            self.done = not block
            pending = len(self.decoder.getstate()[0])
            try:
                text = self.decoder.decode(block, self.done)
                self.ready = memoryview(text.encode("utf-8"))
            except UnicodeError as error:
                at = self.offset - pending + error.start if isinstance(error, UnicodeDecodeError) else self.offset
                what = f"not {self.encoding} at byte {at:,}"
                raise UserError(what, where=self.name, fix="give another --set data.format.encoding=...") from None
            self.offset += len(block)
        count = min(len(buffer), len(self.ready))
        buffer[:count] = self.ready[:count]
        self.ready = self.ready[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self.raw.close()
        super().close()


class Hashed(io.RawIOBase):
    """A file hashed while it is read."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)
        self.hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(buffer) or 0
        self.hash.update(memoryview(buffer)[:count])
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def open_text_file(path: Path, format: Format) -> OpenedText:
    """Scan a text file: whether it is text, its compression and encoding, its hash."""
    path = present(path)
    name = path.name
    with path.open("rb") as file:
        packed = packing(file.read(8))
    stored = path.stat().st_size
    hashed = Hashed(path)
    outer = io.BufferedReader(hashed, BLOCK)
    with unpack_stream(cast(BinaryIO, outer), packed, name, stored) as raw:
        head = read_up_to(raw, HEAD)
        refuse(head, name)
        encoding = encoding_of_mark(head)
        if format.encoding is not None:
            asked = find_encoding(format.encoding, name)
            encoding = encoding if asked == "utf-8" and encoding == "utf-8-sig" else asked
        detector = None if encoding else EncodingDetector(name)
        source: BinaryIO = cast(BinaryIO, Rest(head, raw))
        stream = source if detector else io.BufferedReader(Recoded(source, encoding, name), BLOCK)
        size = newlines = quotes = 0
        blank = True
        while block := stream.read(BLOCK):
            if detector:
                detector.feed(block)
            elif b"\0" in block:
                what = f"a NUL character near byte {size + block.index(0):,}: this is not text in {encoding}"
                raise UserError(what, where=name, fix="give a text file")
            size += len(block)
            newlines += block.count(b"\n")
            quotes += block.count(b'"')
            blank = blank and not block.strip()
        encoding = detector.verdict() if detector else encoding
        while outer.read(BLOCK):  # bytes after the compressed part are hashed too
            pass
        digest = hashed.hash.hexdigest()
    if blank:
        what = "the file is empty" if not size else "there are only blank lines"
        raise UserError(what, where=name, fix="give a file with something in it")
    notes = ((packed,) if packed else ()) + NOTES.get(encoding, (encoding,))
    return OpenedText(path, packed, encoding, notes, digest, stored, size, newlines, quotes)


def lines(path: Path, format: Format) -> Iterator[str]:
    """The lines of a text file, split only at \\n and \\r\\n: Unicode's other line ends stay in the line."""
    return open_text_file(path, format).lines()


class Rest(io.RawIOBase):
    """A stream with its first bytes put back."""

    def __init__(self, head: bytes, raw: BinaryIO) -> None:
        self.head, self.raw = head, raw

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self.head:
            given, self.head = (self.head, b"") if size < 0 else (self.head[:size], self.head[size:])
            return given
        return self.raw.read(size)


def read_up_to(stream: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, or fewer at the end."""
    parts, missing = [], size
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def refuse(head: bytes, name: str) -> None:
    """Raise an error if the first bytes are those of a binary format."""
    guess = "" if encoding_of_mark(head) else looks_like(head)
    if guess:
        raise UserError(f"looks like {guess}, not text (byte 0)", where=name, fix="give a text file or a table")
    if head.startswith(b"version https://git-lfs"):
        raise UserError("only a Git LFS pointer, not the data itself", where=name, fix="run git lfs pull first")


def present(path: Path) -> Path:
    """The path of a readable file; otherwise an error that suggests the nearest name."""
    path = Path(path)
    where = show_path(path)
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise UserError("a link to a file that is not there", where=where, fix="give the file itself") from None
        raise UserError("no such file", where=where, fix=beside(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise UserError(f"cannot be opened ({reason})", where=where, fix="check the path") from None
    if stat.S_ISDIR(mode):
        raise UserError("a folder, where a file is expected", where=where, fix="give the file inside it")
    if not stat.S_ISREG(mode):
        raise UserError("not a plain file", where=where, fix="write it to a file first: it is read twice")
    if not os.access(path, os.R_OK):
        raise UserError("may not be read (permission denied)", where=where, fix=f"try chmod u+r {path.name[:60]}")
    return path


def beside(path: Path) -> str:
    """A suggestion for the name of a missing file."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        path, folder = folder, folder.parent
    names: list[str] = []
    if os.access(folder, os.R_OK | os.X_OK):
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry, _ in zip(found, range(10_000), strict=False))
    # A shared suffix is no similarity: among .csv files, the one with the most similar stem.
    near = next((name for name in names if one_edit(path.name, name)), None)
    by_stem = {Path(name).stem: name for name in names}
    near = near or by_stem.get(nearest(path.stem, by_stem) or "")
    return f"did you mean {str(folder / near)[-120:]!r}?" if near else "check the path"


def show_path(path: Path) -> str:
    """A path for messages, shortened to its name if long."""
    text = str(path)
    return text if len(text) <= 80 else path.name[-80:]
