"""A tokenizer for running text, and the text tokenized once into arrays on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anyformer.amounts import megabytes
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.files.documents import Document
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.settings import Data, TokenizerSettings
from anyformer.data.tokenizers.fast_encode import Encoder
from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer, train_tokenizer
from anyformer.data.tokenizers.training import Kind, default_special, special_token
from anyformer.errors import UserError
from anyformer.log import Log

FORMAT = 1  # version of the packed arrays; raised when the same text would be packed differently
FEWEST = 32  # minimum tokens to train on
SAMPLE = 10_000_000  # maximum bytes of text to train a tokenizer on
AT_ONCE = 2**22  # characters encoded at once
# Bytes of training text and the vocabulary size for them; interpolated on a log scale.
SIZES = ((200_000, 512), (1_000_000, 2048), (10_000_000, 8192), (50_000_000, 16384))
NAMES = {
    "bpe": "byte-level BPE", "char-bpe": "BPE of characters", "wordpiece": "WordPiece", "unigram": "unigram",
    "word": "words", "char": "characters", "byte": "bytes",
}  # fmt: skip


@dataclass
class CorpusPart:
    """One side of the split: characters `start` to `stop` of the concatenated documents."""

    documents: list[Document]
    start: int = 0
    stop: int | None = None

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Document number, first and last character of each span of the part."""
        at = 0
        for number, document in enumerate(self.documents):
            stop = at + document.characters
            first, last = max(at, self.start), stop if self.stop is None else min(stop, self.stop)
            if first < last:
                yield number, first - at, last - at
            at = stop

    def pieces(self) -> Iterator[tuple[int, int, str]]:
        """Document number, character and text of each piece."""
        for number, first, last in self.spans():
            at = first
            for piece in self.documents[number].pieces(first, last):
                yield number, at, piece
                at += len(piece)

    @property
    def characters(self) -> int:
        """Number of characters."""
        return sum(last - first for _, first, last in self.spans())

    @property
    def bytes(self) -> int:
        """Approximate size in bytes; exact if no document is cut."""
        whole = sum(document.characters for document in self.documents)
        return sum(document.size for document in self.documents) * self.characters // max(1, whole)


# ---------------------------------------------------------------- the tokenizer


def vocabulary(size: int) -> int:
    """Default vocabulary size for a text of so many bytes.

    >>> [vocabulary(size) for size in (10_000, 1_000_000, 3_000_000, 10**9)]
    [512, 2048, 4096, 16384]
    """
    known, tokens = np.log([s for s, _ in SIZES]), np.log2([v for _, v in SIZES])
    return round(2 ** float(np.interp(np.log(max(1, size)), known, tokens)) / 256) * 256


def given_tokenizer(words: TokenizerSettings, given: StartModelConstraints) -> Tokenizer | None:
    """The tokenizer of a pretrained model or a folder, if any."""
    if given.tokenizer is None:
        given.check_tokenizer(words.folder)
    if given.tokenizer is not None or words.folder is None:
        return given.tokenizer
    tokenizer = open_tokenizer(Path(words.folder)) if Path(words.folder).is_dir() else None
    if tokenizer is None:
        raise UserError(
            f"no tokenizer in {words.folder}", where="data.tokenizer.folder", fix="give a folder with tokenizer.json"
        )
    return tokenizer


@dataclass(frozen=True)
class TaskTokens:
    """The special tokens that a task needs in a newly trained tokenizer, beside those of its kind."""

    roles: tuple[str, ...] = ()  # such as mask
    extra: tuple[str, ...] = ()  # such as T5's sentinels

    def special(self, kind: Kind) -> dict[str, str]:
        """The token of each role."""
        return default_special(kind) | {role: special_token(kind, role) for role in self.roles}


def train_tokenizer_on(
    part: CorpusPart, words: TokenizerSettings, asked: TaskTokens, log: Log
) -> tuple[Tokenizer, str]:
    """A tokenizer trained on the training part alone, and its kind."""
    kind: Kind = "bpe" if words.kind == "auto" else words.kind
    size = part.bytes
    usual = {"char": 2**16, "byte": 512}.get(kind, vocabulary(size)) + len(asked.extra)
    sample = list(sample_pieces(part, size))
    try:
        tokenizer = train_tokenizer(
            sample, kind, words.vocab_size or usual, special=asked.special(kind), extra=asked.extra,
            lower=words.lowercase, safe=asked == TaskTokens(),
        )  # fmt: skip
    except UserError as error:
        raise error.inside("data.tokenizer.vocab_size") from None
    of = f"{sum(map(len, sample)):,} characters spread over the training part" if size > SAMPLE else "the training part"
    log(f"tokens   {NAMES[kind]}, vocabulary {tokenizer.size:,}, trained on {of}")
    if kind in ("wordpiece", "unigram", "word"):
        log("note     this tokenizer loses line breaks, so that bits per byte compare with nothing")
    return tokenizer, kind


def sample_pieces(part: CorpusPart, size: int) -> Iterator[str]:
    """Pieces of a part to train a tokenizer on: all, or an evenly spread sample."""
    share = min(1.0, SAMPLE / max(1, size))
    taken = 0
    for number, (_, _, piece) in enumerate(part.pieces(), 1):
        if taken < number * share:
            taken += 1
            yield piece


# ---------------------------------------------------------------- the arrays


def pack_parts(
    parts: dict[str, CorpusPart],
    settings: Data,
    given: StartModelConstraints,
    asked: TaskTokens,
    cache: Path,
    log: Log,
) -> tuple[Arrays, Tokenizer]:
    """Every part as an array of tokens on disk, with the tokenizer; cached for the same text and settings."""
    enough(parts["train"].characters, "characters")
    own = given_tokenizer(settings.tokenizer, given)
    mark = fingerprint(parts, settings.tokenizer, own, asked)
    arrays = Arrays.of(cache)
    if arrays is not None and arrays.facts.get("fingerprint") == mark:
        tokenizer = own if own is not None else open_tokenizer(cache / "tokenizer")
        if tokenizer is not None and tokenizer.sha256 == arrays.facts.get("tokenizer"):
            log(f"disk     packed before, {megabytes(arrays.bytes)} on disk")
            return arrays, tokenizer
    if own is not None:
        tokenizer, kind = own, "given"
        log(f"tokens   given, vocabulary {tokenizer.size:,}")
    else:
        tokenizer, kind = train_tokenizer_on(parts["train"], settings.tokenizer, asked, log)
    kind_known = "given" if settings.tokenizer.lowercase else kind  # the fast encoders cannot lower-case
    # A prompt may contain a task's special tokens; training text never does.
    encoder = Encoder(tokenizer, kind_known, safe=None if own is not None else True)
    if parts["train"].characters < AT_ONCE:  # fail before anything is written
        enough(sum(map(len, encoder.encode([piece for _, _, piece in parts["train"].pieces()]))), "tokens")
    arrays = Arrays.new(cache)
    counts = {name: pack(part, encoder, arrays, name) for name, part in parts.items()}
    tokenizer.save(cache / "tokenizer")  # a given one too, so that the folder is self-contained
    arrays.close({"fingerprint": mark, "parts": counts, "kind": kind, "tokenizer": tokenizer.sha256})
    tokens, of = (sum(count[name] for count in counts.values()) for name in ("tokens", "bytes"))
    each = ", ".join(f"{name} {count['tokens']:,}" for name, count in counts.items())
    log(f"tokens   {each}; {tokens / of:.3f} a byte")
    log(f"disk     {megabytes(arrays.bytes)}")
    for name, count in counts.items():
        if count["unknown"]:
            log(f"note     {name}: {count['unknown']:,} tokens are unknown ({count['unknown'] / count['tokens']:.2%})")
    return arrays, tokenizer


def enough(count: int, unit: str) -> None:
    """Raise an error if there is too little to train on."""
    if count < FEWEST:
        raise UserError(
            f"only {count} {unit} to train on", where="text", fix=f"give a longer text; {FEWEST} tokens are the least"
        )


def fingerprint(
    parts: dict[str, CorpusPart], words: TokenizerSettings, own: Tokenizer | None, asked: TaskTokens
) -> str:
    """A hash of everything that determines the arrays."""
    mark = hashlib.sha256(json.dumps([FORMAT, words.replace(max_length=None).to_dict()], sort_keys=True).encode())
    mark.update(repr(asked).encode() if asked != TaskTokens() else b"")
    mark.update(own.sha256.encode() if own is not None else b"")
    for name, part in parts.items():
        mark.update(f"{name} {part.start} {part.stop} {len(part.documents)}".encode())
        for document in part.documents:
            mark.update(f"{document.sha256} {document.characters}".encode())
    return mark.hexdigest()


def pack(part: CorpusPart, encoder: Encoder, arrays: Arrays, name: str) -> dict[str, int]:
    """Encode a part on all cores into one array, documents separated by the end token; memory is bounded by
    `AT_ONCE`."""
    tokenizer = encoder.tokenizer
    ends = (tokenizer.eos, tokenizer.sep, tokenizer.bos)
    apart = np.array([token for token in ends if token is not None][:1], encoder.dtype)
    raw = arrays.folder / f"{name}.part"
    marks: list[tuple[int, int, int]] = []
    tokens = size = unknown = 0
    last = -1
    with raw.open("wb") as file:
        for batch in batches(part.pieces()):
            rows = encoder.encode([piece for _, _, piece in batch])
            ready: list[np.ndarray] = []
            for (number, at, piece), row in zip(batch, rows, strict=True):
                if last not in (-1, number):
                    ready.append(apart)
                    tokens += len(apart)
                last = number
                marks.append((tokens, number, at))
                ready.append(row)
                tokens += len(row)
                size += len(piece) if piece.isascii() else len(piece.encode())
            block = np.concatenate(ready)
            unknown += 0 if tokenizer.unk is None else int(np.count_nonzero(block == tokenizer.unk))
            file.write(block.tobytes())
    room = arrays.room(name, (tokens,), encoder.dtype)
    if tokens:
        room[:] = np.memmap(raw, dtype=encoder.dtype, mode="r")
    raw.unlink()
    arrays.put(f"{name}_marks", np.array(marks, dtype=np.int64).reshape(-1, 3))
    return {"tokens": tokens, "bytes": size, "characters": part.characters, "unknown": unknown}


def batches(pieces: Iterable[tuple[int, int, str]]) -> Iterator[list[tuple[int, int, str]]]:
    """Pieces in groups of about `AT_ONCE` characters."""
    batch: list[tuple[int, int, str]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[2])
        if size >= AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
