"""Running text: split, tokenized, and packed once into arrays of tokens on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.datasets.corpus import CorpusPart, TaskTokens, enough, pack_parts
from anyformer.data.datasets.windows import Windows
from anyformer.data.files.documents import Document, in_memory, read_documents
from anyformer.data.prepared import DataRequest, Prepared, StartModelConstraints
from anyformer.data.preprocess import Preprocess, sizes
from anyformer.data.settings import Data, TokenizerSettings
from anyformer.errors import UserError
from anyformer.log import Log, keep_lines

LENGTH = 256  # default tokens of a window
NO_TOKENS = TaskTokens()
WINDOWS = 8  # default windows get shorter until an epoch has at least this many


def prepare_text(
    request: DataRequest, *, task: str, rows: type[Windows] = Windows, tokens: TaskTokens = NO_TOKENS
) -> Prepared:
    """Prepare text files and folders of them for a `task` on running text; nothing here is random."""
    documents, skipped = read_documents([Path(path) for path in request.source], request.settings.format)
    return prepare_documents(documents, request, task=task, skipped=skipped, unit="file", rows=rows, tokens=tokens)


def prepare_texts(
    request: DataRequest,
    *,
    task: str,
    name: str = "texts",
    unit: str = "row",
    valid: Iterable[str] | None = None,
    test: Iterable[str] | None = None,
    rows: type[Windows] = Windows,
    tokens: TaskTokens = NO_TOKENS,
) -> Prepared:
    """Prepare individual texts, one document each, for a `task`; `valid` and `test` are texts too."""
    documents = in_memory(request.source, name, unit)
    own = {side: in_memory(some, side, unit) for side, some in (("valid", valid), ("test", test)) if some is not None}
    if not documents:
        raise UserError("there is no text in it", where=name, fix="give at least one text that is not empty")
    return prepare_documents(documents, request, task=task, skipped={}, unit="text", own=own, rows=rows, tokens=tokens)


def prepare_documents(
    documents: list[Document],
    request: DataRequest,
    *,
    task: str,
    skipped: dict[str, list[str]],
    unit: str,
    own: Mapping[str, list[Document]] | None = None,
    rows: type[Windows] = Windows,
    tokens: TaskTokens = NO_TOKENS,
) -> Prepared:
    """The split, the tokenizer and the arrays, from the cache if nothing has changed.

    `rows` is how the text is cut, `tokens` the special tokens that a tokenizer trained here needs for the task.
    """
    settings, given = request.settings, request.given
    notes, log = keep_lines(request.log)
    for reason, names in skipped.items():
        log(f"skipped  {len(names):,} files: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} ({reason})")
    parts = split(documents, settings, unit, own or {}, task, log)
    arrays, tokenizer = pack_parts(parts, settings, given, tokens, request.cache, log)
    counts: dict[str, Any] = arrays.facts["parts"]
    length = window(settings.tokenizer, given, counts["train"]["tokens"], log)
    start = given.start_for(tokenizer) if rows.feeds_decoder else None
    sides = {
        name: rows(
            arrays[name], length, bytes=counts[name]["bytes"], vocab=tokenizer.size, tokenizer=tokenizer,
            marks=arrays[f"{name}_marks"], names=[document.name for document in part.documents], start=start,
        )
        for name, part in parts.items() if counts[name]["tokens"] >= 2
    }  # fmt: skip
    if "valid" in parts and "valid" not in sides:
        log("note     the validation part is too short for a single target: nothing validates")
    log(f"rows     {rows.noun} of {length} tokens: {len(sides['train']):,} a pass")
    preprocess = Preprocess(task=task, length=length, start=start)
    facts = {
        "unit": unit, "documents": len(documents), "sources": sources(parts, unit),
        "skipped": {reason: len(names) for reason, names in skipped.items()}, "parts": counts,
        "tokenizer": {"kind": arrays.facts["kind"], "size": tokenizer.size, "sha256": tokenizer.sha256},
        "length": length, "disk": arrays.bytes, "fingerprint": arrays.facts["fingerprint"],
        "sizes": sizes(preprocess, tokenizer),
    }  # fmt: skip
    return Prepared(
        task, sides["train"], sides.get("valid"), sides.get("test"), preprocess, tokenizer,
        facts=facts, notes=notes,
    )  # fmt: skip


def sources(parts: dict[str, CorpusPart], unit: str) -> list[dict[str, Any]]:
    """The files that were read, for the record, or all texts as one."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts.values():
        for d in part.documents if unit == "file" else part.documents[:1]:
            counts = {"bytes": d.size, "characters": d.characters, "sha256": d.sha256, "notes": list(d.notes)}
            found[d.sha256 + d.name] = {"name": d.name} | (counts if unit == "file" else {})
    return list(found.values())[:1000]


# ---------------------------------------------------------------- the split


def split(
    documents: list[Document], settings: Data, unit: str, own: Mapping[str, list[Document]], task: str, log: Log
) -> dict[str, CorpusPart]:
    """Training, validation and test parts; by default the last fraction of the text is for validation."""
    chosen = settings.split
    count, size = len(documents), sum(d.size for d in documents)
    characters = sum(d.characters for d in documents)
    how = sorted({note for d in documents for note in d.notes})
    named = documents[0].name if (count, unit) == (1, "file") else f"{count:,} {unit}{'s' * (count > 1)}"
    packed_as = f" ({', '.join(how)})" if how else ""
    log(f"file     {named}: {size:,} bytes, {characters:,} characters{packed_as}")
    log(f"task     {task}: running text")
    parts = {"train": CorpusPart(documents)}
    for name, files in (("valid", chosen.valid_file), ("test", chosen.test_file)):
        if name in own or files is not None:
            other = (
                own[name] if name in own else read_documents([Path(file) for file in files or ()], settings.format)[0]
            )
            parts[name] = CorpusPart(other)
            what = ", ".join(files) if files else f"{len(other):,} {unit}{'s' * (len(other) != 1)}"
            log(f"split    {name}: {what}, {parts[name].characters:,} characters")
            seen = {d.sha256 for d in documents if d.sha256}
            both = [d.name for d in other if d.sha256 in seen]
            if both:
                more = f" and {len(both) - 1:,} more" if len(both) > 1 else ""
                log(f"warning  {both[0]}{more} to {name} on: the same text is trained on too")
    if "valid" not in parts and chosen.valid > 0:
        at = boundary(documents, 1 - chosen.valid)
        if 0 < at < characters:
            parts["train"], parts["valid"] = CorpusPart(documents, 0, at), CorpusPart(documents, at)
            log(
                f"split    the first {at:,} characters train, the last {characters - at:,} "
                f"({(characters - at) / characters:.1%}) validate"
            )
    return {name: parts[name] for name in ("train", "valid", "test") if name in parts}


def boundary(documents: list[Document], share: float) -> int:
    """The character to cut at: exact in a single text, else between two texts, or at the end of a line."""
    total = sum(d.characters for d in documents)
    wanted = int(share * total)
    if len(documents) == 1:
        return wanted
    ends = np.cumsum([d.characters for d in documents])
    nearest = int(ends[:-1][np.argmin(np.abs(ends[:-1] - wanted))])
    if 0.5 * (total - wanted) <= total - nearest <= 2 * (total - wanted):
        return nearest
    number = int(np.searchsorted(ends, wanted, side="right"))
    before = int(ends[number]) - documents[number].characters
    at = wanted
    for piece in documents[number].pieces(wanted - before):
        if "\n" in piece:
            at += piece.index("\n") + 1
            return at if at < total else wanted
        at += len(piece)
    return wanted


# ---------------------------------------------------------------- the windows


def window(words: TokenizerSettings, given: StartModelConstraints, tokens: int, log: Log) -> int:
    """Tokens of a window: as requested, or 256; at most what the model has positions for or the text has."""
    enough(tokens, "tokens")
    asked = words.max_length or LENGTH
    if given.length is not None and asked > given.length:
        if words.max_length is not None:
            log(f"note     windows of {asked} tokens do not fit the model: cut to {given.length}")
        asked = given.length
    length = asked
    # Only a default is shortened to get more windows; a requested length just has to fit.
    while words.max_length is None and length > 8 and (tokens - 1) // length < WINDOWS:
        length //= 2
    length = min(length, tokens - 1)
    if length < asked:
        log(
            f"note     the text is short ({tokens:,} tokens to train on): windows of {length} tokens instead of {asked}"
        )
    return length
