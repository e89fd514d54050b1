"""The kind of data at a path, by its name and contents."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import BinaryIO, cast

from anyformer.data.files.csv_dialect import LABELLED, are_blank_rows, best_delimiter, is_labelled
from anyformer.data.files.encoding import encoding_of_mark
from anyformer.data.files.open_text import looks_like, packing, present, read_up_to, refuse, show_path, unpack_stream
from anyformer.errors import UserError

SAMPLE = 2**18
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather", ".ipc", ".arff")
CONLL = (".conll", ".conllu", ".conll03", ".conll2003", ".conllx", ".iob", ".iob2", ".bio")
IMAGES = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
    ".ico", ".avif", ".jp2", ".tga",
)  # fmt: skip
SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
FASTA = (".fasta", ".fa", ".faa", ".fna", ".ffn", ".frn")
TEXTS = (".txt", ".md", ".rst", ".text", ".py", ".tex", ".html", ".htm", ".xml")
PACKINGS = (".gz", ".xz", ".bz2", ".zst")
TAG = re.compile(r"^(?:O|[BIESLU]-\S+)$")


def kind_of_path(path: Path) -> str:
    """One of table, text, conll, image, images, idx, wav, fasta, folder-of-text, folder-of-tables, folder-of-conll.

    The suffix decides if it is specific; else the beginning of the file.
    """
    path = Path(path)
    if path.is_dir():
        return kind_of_folder(path)
    path = present(path)
    by_name = kind_of_name(path.name)
    if by_name and by_name != "text":
        return by_name
    head, raw = beginning(path)
    if raw.startswith((b"PAR1", b"ARROW1", b"FEA1")):
        return "table"
    guess = "" if encoding_of_mark(head) else looks_like(head)
    if guess.endswith("image"):
        return "image"
    if guess.endswith("IDX file"):
        return "idx"
    if guess.endswith("WAV recording"):
        return "wav"
    refuse(head, path.name)
    if path.stat().st_size == 0:
        raise UserError("the file is empty", where=path.name, fix="give a file with something in it")
    return kind_of_text(head, named_text=by_name == "text")


def kind_of_name(name: str) -> str:
    """The kind given by a name's suffix, or ""."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    while suffixes and suffixes[-1] in PACKINGS:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    for endings, kind in ((TABLES, "table"), (CONLL, "conll"), (IMAGES, "image"), (SOUNDS, "wav"), (FASTA, "fasta"),
                          (TEXTS, "text")):  # fmt: skip
        if last in endings:
            return kind
    return "idx" if re.search(r"idx[1-4]-u?byte", name) else ""


def beginning(path: Path) -> tuple[bytes, bytes]:
    """The first bytes of a file, decompressed and as stored."""
    with path.open("rb") as file:
        raw = file.read(16)
        file.seek(0)
        with unpack_stream(cast(BinaryIO, file), packing(raw), path.name, path.stat().st_size) as stream:
            return read_up_to(stream, SAMPLE), raw


def kind_of_text(head: bytes, *, named_text: bool) -> str:
    """Whether text is a table, tagged words, or just text."""
    encoding = encoding_of_mark(head) or "utf-8"
    text = head.decode(encoding, "ignore" if encoding != "utf-8" else "surrogateescape")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if len(head) >= SAMPLE and len(lines) > 1:
        lines.pop()
    if looks_like_conll(lines):
        return "conll"
    full = [line for line in lines if line.strip()]
    if not full:
        return "text"
    if all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in full[:20]):
        return "table" if '"' in full[0] else "text"
    if text.lstrip()[:2].replace(" ", "").startswith(("[{", "[\n")) and '{"' in text[:4096]:
        return "table"
    if are_blank_rows(full[:1000]):
        return "table"
    delimiter, share, width = best_delimiter(lines)
    if len(full) > 1 and share >= 0.98 and not (named_text and delimiter == "," and not tidy(full, delimiter)):
        if width > 2 or delimiter != "," or not named_text or tidy(full, delimiter):
            return "table"
    return "table" if len(full) >= LABELLED and is_labelled(full[:1000]) else "text"


def tidy(lines: list[str], delimiter: str) -> bool:
    """Whether lines are rows of short values rather than sentences with equally many commas."""
    fields = [field.strip() for line in lines[:200] for field in line.split(delimiter)]
    long = sum(len(field.split()) > 4 for field in fields)
    return (
        len(lines) >= 3
        and long <= 0.6 * len(fields)
        and not any(line.rstrip().endswith((".", "!")) for line in lines[:50])
    )


def looks_like_conll(lines: list[str]) -> bool:
    """Whether lines are words with tags, and blank ones separate sentences."""
    if any(line.startswith("-DOCSTART-") for line in lines[:5]):
        return True
    rows = [line for line in lines if line.strip() and not line.startswith("# ")]
    if len(rows) < 4:
        return False
    if all(line.count("\t") == 9 and re.match(r"\d+([-.]\d+)?\t", line) for line in rows[:200]):
        return True
    widths = Counter(len(line.split()) for line in rows)
    width, count = widths.most_common(1)[0]
    if not 2 <= width <= 10 or count < 0.99 * len(rows):
        return False
    tags = Counter(line.split()[-1] for line in rows)
    if all(TAG.match(tag) for tag in tags) and any(tag != "O" for tag in tags):
        return True
    groups = sum(not line.strip() for line in lines[1:-1])
    short = all(len(line) < 200 for line in rows)
    return 0 < groups < len(rows) / 2 and len(tags) <= min(100, len(rows) / 5) and short and numbers_are_few(rows)


def numbers_are_few(rows: list[str]) -> bool:
    """Whether first fields are words: a table of numbers with blank lines is not tagged text."""
    return sum(row.split()[0].replace(".", "").lstrip("-").isdigit() for row in rows) < 0.5 * len(rows)


def kind_of_folder(folder: Path) -> str:
    """The kind of most files in a folder, including its sub-folders."""
    counts: Counter[str] = Counter()
    seen = 0
    for place, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                counts[kind_of_name(name) or "other"] += 1
                seen += 1
        if "anyformer.json" in names or {"config.json", "model.safetensors"} <= set(names):
            what = "a folder of a model, not of data"
            raise UserError(what, where=show_path(Path(place)), fix="give a folder with images, texts or tables")
        if seen > 50_000:
            break
    if not seen:
        raise UserError(
            "the folder is empty", where=show_path(folder), fix="give a folder with images, texts or tables"
        )
    for kind, answer in (("image", "images"), ("idx", "idx"), ("wav", "wav"), ("fasta", "fasta")):
        if counts[kind] and counts[kind] >= 0.5 * (seen - counts["other"] - counts["text"] - counts["table"]):
            if counts[kind] >= counts["text"] + counts["table"] or kind == "idx":
                return answer
    kind, count = max((("text", counts["text"]), ("table", counts["table"]), ("conll", counts["conll"])), key=second)
    if not count and not counts["other"]:
        raise UserError("nothing in it can be read", where=show_path(folder), fix="give images, texts or tables")
    return {"text": "folder-of-text", "table": "folder-of-tables", "conll": "folder-of-conll"}[kind]


def second(pair: tuple[str, int]) -> int:
    return pair[1]
