"""Reopening prepared data from its folder: rows, or running text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.blocks import Blocks, SourceBlocks
from anyformer.data.datasets.windows import Windows
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import Preprocess
from anyformer.data.store import read_prepared
from anyformer.data.tokenizers.tokenizer import open_tokenizer
from anyformer.errors import UserError

TEXT_FILE = "text.json"
SIDES = ("train", "valid", "test")


def keep(prepared: Prepared, folder: Path) -> None:
    """Save what the arrays of a text lack, beside them."""
    if not isinstance(prepared.train, Windows):
        return
    sides = {name: list(side.names) for name in SIDES if isinstance(side := getattr(prepared, name), Windows)}
    kept = {
        "task": prepared.task,
        "rows": type(prepared.train).__name__,
        "length": prepared.preprocess.length,
        "start": prepared.preprocess.start,
        "names": sides,
        "facts": prepared.facts,
        "notes": prepared.notes,
    }
    (folder / TEXT_FILE).write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def reopen(folder: Path) -> Prepared | None:
    """Everything prepared in a folder, bit for bit; None if it is missing or damaged."""
    return open_text(folder) if (folder / TEXT_FILE).is_file() else open_prepared(folder)


def open_prepared(cache: Path) -> Prepared | None:
    """The rows prepared in a folder; None if they are missing, damaged or of another kind."""
    arrays = Arrays.of(cache)
    return None if arrays is None else read_prepared(arrays)


def open_text(folder: Path) -> Prepared | None:
    """The windows of a tokenized text."""
    arrays = Arrays.of(folder)
    try:
        kept: dict[str, Any] = json.loads((folder / TEXT_FILE).read_text(encoding="utf-8"))
        tokenizer = open_tokenizer(folder / "tokenizer")
        if arrays is None or tokenizer is None:
            return None
        counts = arrays.facts["parts"]
        cuts = {cut.__name__: cut for cut in (Windows, Blocks, SourceBlocks)}
        sides = {
            name: cuts[kept.get("rows", "Windows")](
                arrays[name], kept["length"], bytes=counts[name]["bytes"], vocab=tokenizer.size, tokenizer=tokenizer,
                marks=arrays[f"{name}_marks"], names=names, start=kept.get("start"),
            )
            for name, names in kept["names"].items()
        }  # fmt: skip
        return Prepared(
            kept["task"], sides["train"], sides.get("valid"), sides.get("test"),
            Preprocess(task=kept["task"], length=kept["length"], start=kept.get("start")), tokenizer,
            facts=kept["facts"], notes=kept["notes"],
        )  # fmt: skip
    except (UserError, KeyError, TypeError, ValueError, OSError):
        return None
