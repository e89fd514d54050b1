"""Reading a tokenizer's files: bounded, by plain name, never outside the folder, never as code.

A folder is untrusted. Every reader here returns data or raises a `UserError`; a sentencepiece model is parsed by its
wire format, so that old folders open without further packages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anyformer import safe_files
from anyformer.data.tokenizers.bounds import FEW_IDS
from anyformer.errors import UserError
from anyformer.safe_files import inside, short

AGAIN = safe_files.AGAIN


def there(folder: Path, name: str) -> bool:
    """Whether the folder has this file; a link out of the folder is rejected, not followed."""
    return inside(folder, name).is_file()


def read_bytes(folder: Path, name: str) -> bytes:
    """The whole file, if it exists and is not too large."""
    return safe_files.read_bytes(inside(folder, name))


def read_text(folder: Path, name: str) -> str:
    """The file as UTF-8."""
    return safe_files.read_text(inside(folder, name))


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The file as one JSON object."""
    return safe_files.read_json(inside(folder, name))


def json_if_there(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object, or an empty one if there is no such file."""
    return read_json(folder, name) if there(folder, name) else {}


def read_vocab_json(folder: Path, name: str = "vocab.json") -> dict[str, int]:
    """Token -> id, checked."""
    vocab = read_json(folder, name)
    most = max(inside(folder, name).stat().st_size, FEW_IDS)
    for token, number in vocab.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < most:
            raise UserError(f"{token[:40]!r} has id {str(number)[:40]}", where=name, fix="ids count up from 0")
    return vocab


def read_merges(folder: Path) -> list[tuple[str, str]]:
    """The pairs of merges.txt, most frequent first."""
    merges = []
    for number, line in enumerate(lines(read_text(folder, "merges.txt")), 1):
        if line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise UserError(f"line {number} is not two tokens and one space", where="merges.txt", fix=AGAIN)
        merges.append((left, right))
    return merges


# Unicode's White_Space. Python's own strip() also takes U+001C to U+001F, which are tokens of real vocabularies.
BLANKS = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # noqa: E501


def read_vocab_txt(folder: Path) -> dict[str, int]:
    """One token per line; a duplicate token keeps its last id."""
    return {line.rstrip(BLANKS): i for i, line in enumerate(lines(read_text(folder, "vocab.txt")))}


def lines(text: str) -> list[str]:
    """Lines split at newlines only: splitlines() would also split at U+0085 and U+2028, which are tokens."""
    found = [line.removesuffix("\r") for line in text.split("\n")]
    return found[:-1] if not found[-1] else found


# Sentencepiece's numbers for the kinds of a piece and of a model (sentencepiece_model.proto).
CONTROL, USER_DEFINED = 3, 4
UNIGRAM, BPE = 1, 2


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a sentencepiece model."""

    pieces: list[tuple[str, float]] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    algorithm: int = UNIGRAM
    unk: int = 0
    byte_fallback: bool = False
    charsmap: bytes = b""

    def of_kind(self, *kinds: int) -> list[tuple[str, int]]:
        """Pieces of these kinds, with their kind."""
        return [(piece, kind) for (piece, _), kind in zip(self.pieces, self.kinds, strict=True) if kind in kinds]


def read_pieces(folder: Path, name: str) -> SentencePieceModel:
    """A sentencepiece model: its pieces and scores, and how it was trained."""
    data = read_bytes(folder, name)
    pieces: list[tuple[str, float]] = []
    kinds: list[int] = []
    trained: dict[int, Any] = {}
    normal: dict[int, Any] = {}
    try:
        for number, value in fields(data):
            if number == 1:
                piece = dict(fields(value))
                pieces.append((piece[1].decode("utf-8"), struct.unpack("<f", piece.get(2, bytes(4)))[0]))
                kinds.append(int(piece.get(3, 1)))
            elif number == 2:
                trained = dict(fields(value))
            elif number == 3:
                normal = dict(fields(value))
        found = SentencePieceModel(
            pieces, kinds, int(trained.get(3, UNIGRAM)), int(trained.get(40, 0)), bool(trained.get(35, 0)),
            bytes(normal.get(2, b"")),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, IndexError) as error:
        raise UserError(f"not a sentencepiece model ({short(error) or 'cut off'})", where=name, fix=AGAIN) from None
    if not pieces:
        raise UserError("a sentencepiece model without pieces", where=name, fix=AGAIN)
    if found.algorithm not in (UNIGRAM, BPE):
        raise UserError("a sentencepiece model of words or characters", where=name, fix="unigram and BPE are read")
    if not 0 <= found.unk < len(pieces):
        raise UserError(f"unknown token {found.unk} of {len(pieces)}", where=name, fix=AGAIN)
    check_charsmap(found.charsmap, name)
    return found


def check_charsmap(data: bytes, where: str) -> None:
    """Reject a character map that points outside its table: the library would panic while encoding.

    The map is a double-array trie (a size in bytes, then units of 32 bits) and the texts it points to. A unit has its
    label, an offset to its children, and whether a text belongs to it; a unit with the top bit set is a pointer.
    """
    if not data:
        return
    (size,) = struct.unpack("<I", data[:4]) if len(data) >= 4 else (0,)
    units = np.frombuffer(data[4 : 4 + size // 4 * 4], dtype="<u4").astype(np.int64)
    rest = data[4 + size // 4 * 4 :]
    good = size % 4 == 0 and 0 < size <= len(data) - 4 and len(units) % 256 == 0
    if good:
        try:
            rest.decode("utf-8")
        except UnicodeDecodeError:
            good = False
    if good:
        places = np.arange(len(units))
        inner = (units >> 31 == 0) & ((units & 255) != 0) | (places == 0)
        base = (places ^ ((units >> 10) << ((units & 512) >> 6)))[inner]
        good = bool((base < len(units)).all())
        if good:
            starts = units[base[(units[inner] >> 8 & 1) == 1]] & (2**31 - 1)
            texts = np.append(np.frombuffer(rest, dtype=np.uint8), 0)
            good = bool((starts <= len(rest)).all()) and bool((texts[starts] & 0xC0 != 0x80).all())
    if not good:
        raise UserError("a broken character map", where=where, fix=AGAIN)


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message: an int for varints, else bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"field {number} of wire type {wire}")
        if at + size > end:
            raise ValueError(f"field {number} is cut off")
        yield number, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 10 bytes")
