"""The data of a run from data.json: known entries as tables, everything else verbatim."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from anyformer.evaluation.page import figures, fold, pairs, table, words
from anyformer.evaluation.run_files import is_number

MOST = 200  # rows per table
HIDDEN = {"name", "path", "unit", "first"}  # of a file: a report may be shared, so local paths are left out
OWN = {"sources", "columns", "split", "parts", "skipped", "dropped", "notes", "task", "target", "why"}


def data(facts: Mapping[str, Any]) -> str:
    """Files, split, columns, and rows left out with the reasons."""
    if not facts:
        return ""
    out = [f"<p>{words(facts['why'])}</p>"] if facts.get("why") else []
    out.append(records("files", "file", facts.get("sources")))
    out.append(records("split", "part", facts.get("split") if facts.get("split") else facts.get("parts")))
    out.append(records("columns", "column", facts.get("columns")))
    left = [("rows left out", "reason", facts.get("skipped")), ("columns left out", "column", facts.get("dropped"))]
    out += [records(caption, head, value) for caption, head, value in left]
    notes = facts.get("notes") or []
    if isinstance(notes, list) and notes:
        out.append(
            fold(
                "What was said about the data", "<ul>" + "".join(f"<li>{words(n)}</li>" for n in notes[:MOST]) + "</ul>"
            )
        )
    rest = {key: value for key, value in facts.items() if key not in OWN}
    return "".join(out) + fold("Everything else in data.json", pairs(rest))


def records(caption: str, head: str, value: Any) -> str:
    """A mapping of names to numbers or records, or a list of records, as a table; anything else as text."""
    if not value:
        return ""
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        value = {
            str(one.get("name", i + 1)): {k: v for k, v in one.items() if k not in HIDDEN}
            for i, one in enumerate(value)
        }
    if not isinstance(value, Mapping):
        return f"<p><b>{caption}</b> {words(value)}</p>"
    if not all(isinstance(one, Mapping) for one in value.values()):
        numeric = any(is_number(one) for one in value.values())
        rows = [[escape(str(name)), figures(one) if is_number(one) else words(one)] for name, one in value.items()]
        return table([head, "rows" if caption == "split" else "count" if numeric else "why"], rows[:MOST], caption)
    keys = [
        key
        for key in dict.fromkeys(key for one in value.values() for key in one)
        if any(one.get(key) for one in value.values())
    ]
    body = [
        [escape(str(name)), *(field(key, one.get(key)) for key in keys)] for name, one in list(value.items())[:MOST]
    ]
    cut = f'<p class="note">{MOST} of {len(value):,} shown.</p>' if len(value) > MOST else ""
    return table([head, *map(escape, keys)], body, caption) + cut


def field(key: str, value: Any) -> Any:
    """One cell: hashes are shortened, numbers are right-aligned."""
    if key == "sha256" and isinstance(value, str):
        return f"<code>{escape(value[:12])}</code>"
    return figures(value) if is_number(value) else words(value) if value else ""
