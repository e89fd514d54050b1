"""Documents: texts on disk or in memory, read piece by piece, any number of times, never as a whole."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyformer.data.files.open_text import BLOCK, OpenedText, open_text_file
from anyformer.data.settings import Format
from anyformer.errors import UserError

PIECE = 2**15  # minimum characters of a piece; the maximum is twice as many
KEPT = 2**26  # bytes of text cached in memory, so that small files are read once
# Places where a byte-level tokenizer splits anyway: before the last white space before a word.
LINE, BLANK = re.compile(r"\n(?=\S)"), re.compile(r" (?=\S)")


class Aside:
    """A temporary file for texts that do not fit into memory, deleted with its last reference."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115

    def __del__(self) -> None:
        self.file.close()

    def put(self, raw: bytes) -> int:
        """Append; returns the position."""
        at = self.file.seek(0, os.SEEK_END)
        self.file.write(raw)
        return at

    def get(self, at: int, size: int) -> bytes:
        """Read what was appended."""
        self.file.seek(at)
        return self.file.read(size)


@dataclass(slots=True)
class Document:
    """One text: a file, or a string already in memory."""

    name: str
    characters: int
    size: int  # in UTF-8
    sha256: str
    notes: tuple[str, ...] = ()
    file: OpenedText | None = None
    text: str | None = None
    aside: tuple[Aside, int, int] | None = None  # temporary file, position, and number of bytes

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """The characters from start to stop, in pieces that depend only on the text."""
        stop = self.characters if stop is None else stop
        if self.text is not None:
            yield from cut([self.text if (start, stop) == (0, self.characters) else self.text[start:stop]])
        elif self.file is not None:
            yield from cut(between(decode_blocks(self.file), start, stop))
        elif self.aside is not None:
            texts, at, size = self.aside
            yield from cut([texts.get(at, size).decode()[start:stop]])


def cut(chunks: Iterable[str]) -> Iterator[str]:
    """Chunks of any length as pieces of about `PIECE` characters, cut at lines, else at spaces, else anywhere."""
    rest = ""
    for chunk in chunks:
        rest = rest + chunk if rest else chunk
        at = 0
        while len(rest) - at >= 2 * PIECE:
            span = at + PIECE, at + 2 * PIECE
            found = LINE.search(rest, *span) or BLANK.search(rest, *span)
            stop = found.start() if found else span[1]
            yield rest[at:stop]
            at = stop
        rest = rest[at:]
    if rest:
        yield rest


def between(chunks: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """The characters from start to stop of a text in chunks."""
    at = 0
    for chunk in chunks:
        if at >= stop:
            return
        if at + len(chunk) > start:
            yield chunk[max(0, start - at) : stop - at]
        at += len(chunk)


def decode_blocks(file: OpenedText) -> Iterator[str]:
    """A file's text, in blocks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with file.stream() as stream:
        while block := stream.read(BLOCK):
            if text := decoder.decode(block):
                yield text
    if text := decoder.decode(b"", final=True):
        yield text


def read_document(path: Path, name: str, format: Format, *, room: int) -> Document:
    """Read a file once: check that it is text, count, and keep it in memory if it fits into `room` bytes."""
    file = open_text_file(path, format)
    characters = size = 0
    kept: list[str] | None = []
    for text in decode_blocks(file):
        characters += len(text)
        size += len(text) if text.isascii() else len(text.encode())
        if kept is not None:
            kept = None if size > room else kept
        if kept is not None:
            kept.append(text)
    whole = None if kept is None else "".join(kept)
    return Document(name, characters, size, file.sha256, file.notes, file, whole)


NO_TEXT = "give a text file, or a folder of text files"


def read_documents(paths: Sequence[Path], format: Format) -> tuple[list[Document], dict[str, list[str]]]:
    """All text files among the paths and in the folders among them, and what was left out, by reason.

    A file given by name must be text; in a folder, hidden files are ignored and others that are not text are skipped.
    """
    found: list[Document] = []
    skipped: dict[str, list[str]] = {}
    room = KEPT
    for path, name, asked in files_of(paths):
        try:
            document = read_document(path, name, format, room=room)
        except UserError as error:
            if asked:
                raise
            skipped.setdefault(error.what, []).append(name)
            continue
        room -= document.size if document.text is not None else 0
        found.append(document)
    if not found:
        shown = ", ".join(path.name for path in paths)[:100]
        what = "; ".join(f"{len(names)} {reason}" for reason, names in skipped.items()) or "no files"
        raise UserError(f"no text in it ({what})", where=shown, fix=NO_TEXT)
    return found, skipped


def files_of(paths: Sequence[Path]) -> Iterator[tuple[Path, str, bool]]:
    """Each file with its display name, and whether it was given by name; folders are sorted by name."""
    for path in paths:
        if not path.is_dir():
            yield path, path.name, True
            continue
        for folder, inner, names in os.walk(path):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in sorted(names):
                file = Path(folder) / name
                if not name.startswith("."):
                    yield file, file.relative_to(path).as_posix(), False


def in_memory(texts: Iterable[str], name: str, unit: str) -> list[Document]:
    """Individual texts, such as the cells of a column; empty ones are left out, and large amounts are kept on disk."""
    made: list[Document] = []
    aside = Aside()
    total = 0
    for number, text in enumerate(texts, 1):
        if not text:
            continue
        where = f"{name} {unit} {number}"
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise UserError("half a character (a lone surrogate)", where=where, fix="read it as UTF-8") from None
        document = Document(where, len(text), len(raw), hashlib.sha256(raw).hexdigest())
        total += len(raw)
        if total <= KEPT:
            document.text = text
        else:
            document.aside = aside, aside.put(raw), len(raw)
        made.append(document)
    return made
