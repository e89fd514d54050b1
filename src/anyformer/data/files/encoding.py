"""Detection of a file's text encoding from all of its bytes, block by block."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field

import numpy as np

from anyformer.errors import UserError

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose BOM is its prefix
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
NOTES = {
    "utf-8": (), "utf-8-sig": ("byte-order mark",), "utf-16": ("UTF-16", "byte-order mark"),
    "utf-32": ("UTF-32", "byte-order mark"), "latin-1": ("Latin-1",), "cp1252": ("Windows-1252",),
}  # fmt: skip
UNUSED = (0x81, 0x8D, 0x8F, 0x90, 0x9D)  # bytes undefined in Windows-1252
CONTROL = tuple(byte for byte in range(1, 32) if chr(byte) not in "\t\n\r\f\v\x1b\x1a")
SPACE = tuple(b" \t\n\r")
FIX = "save it as UTF-8, or give --set data.format.encoding=..."


def encoding_of_mark(head: bytes) -> str:
    """The encoding given by a byte-order mark, or ""."""
    return next((name for mark, name in MARKS if head.startswith(mark)), "")


def find_encoding(encoding: str, where: str) -> str:
    """The canonical name of a text encoding, or an error."""
    try:
        "a".encode(encoding)  # rejects codecs that do not encode text, such as base64
        name = codecs.lookup(encoding).name
        return "latin-1" if name == "iso8859-1" else name
    except (LookupError, ValueError):
        what = f"{encoding[:40]!r} is not an encoding"
        fix = "use utf-8, latin-1, cp1252, utf-16 or shift_jis"
        raise UserError(what, where=f"data.format.encoding for {where}", fix=fix) from None


@dataclass
class EncodingDetector:
    """Checks every byte once: UTF-8 if all of it is valid, else Latin-1 or Windows-1252 if possible, else an error."""

    name: str
    offset: int = 0  # bytes seen
    bad_at: int | None = None  # position of the first byte that is not UTF-8
    bad_byte: int = 0
    wide: int = 0  # valid multi-byte characters
    wrong: int = 0  # bytes that are not UTF-8
    unused_at: int | None = None
    counts: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int64))

    def __post_init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, block: bytes, last: bool = False) -> None:
        """Check the next bytes."""
        at = block.find(b"\0")
        if at >= 0:
            raise self.binary(block, at)
        if block.isascii() and not self.decoder.getstate()[0]:
            if self.bad_at is not None:
                self.counts += np.bincount(np.frombuffer(block, np.uint8), minlength=256)
            self.offset += len(block)
            return
        array = np.frombuffer(block, np.uint8)
        if self.bad_at is None:
            pending = len(self.decoder.getstate()[0])
            try:
                self.decoder.decode(block, last)
                self.wide += int(np.count_nonzero(array >= 0xC0))
            except UnicodeDecodeError as error:
                self.bad_at = self.offset - pending + error.start
                self.bad_byte = error.object[error.start]
                self.decoder.reset()
        if self.bad_at is not None:
            letters = np.frombuffer(
                block.decode("utf-8", "surrogateescape").encode("utf-32-le", "surrogatepass"), "<u4"
            )
            escaped = (letters >= 0xDC80) & (letters <= 0xDCFF)
            self.wrong += max(int(escaped.sum()), 1)
            self.wide += int(np.count_nonzero((letters >= 0x80) & ~escaped))
            self.counts += np.bincount(array, minlength=256)
            if self.unused_at is None and self.counts[list(UNUSED)].any():
                self.unused_at = self.offset + int(np.flatnonzero(np.isin(array, UNUSED))[0])
        self.offset += len(block)

    def verdict(self) -> str:
        """The encoding, after all bytes."""
        if self.decoder.getstate()[0]:  # the file ends within a character
            self.feed(b"", last=True)
        if self.bad_at is None:
            return "utf-8"
        place = f"byte 0x{self.bad_byte:02x} at offset {self.bad_at:,}"
        if self.wide > self.wrong:
            raise UserError(f"{place} is not UTF-8, though the rest is", where=self.name, fix=FIX)
        total = int(self.counts.sum())
        if self.counts[list(CONTROL)].sum() * 50 > total:
            raise UserError(f"looks like a binary file ({place} is not text)", where=self.name, fix="give a text file")
        if self.unused_at is not None:
            place = f"the byte at offset {self.unused_at:,}"
            raise UserError(f"neither UTF-8 nor Latin-1 ({place} is in neither)", where=self.name, fix=FIX)
        solid = total - int(self.counts[list(SPACE)].sum())
        if solid >= 64 and self.counts[128:].sum() > 0.4 * solid:
            raise UserError(f"neither UTF-8 nor a Western encoding ({place})", where=self.name, fix=FIX)
        return "cp1252" if self.counts[128:160].any() else "latin-1"

    def binary(self, block: bytes, at: int) -> UserError:
        start = block[:4096]
        for begin, name in ((1, "utf-16-le"), (0, "utf-16-be")):
            if (
                len(start) >= 4
                and start[begin::2].count(0) > 0.4 * len(start) / 2
                and not start[1 - begin :: 2].count(0)
            ):
                what = f"looks like UTF-16 without its mark (NUL at byte {self.offset + at:,})"
                return UserError(what, where=self.name, fix=f"give --set data.format.encoding={name}")
        what = f"not a text file: a NUL byte at offset {self.offset + at:,}"
        return UserError(what, where=self.name, fix="give a text file, or remove that byte")
