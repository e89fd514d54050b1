"""A table's columns: where the class token looks, how columns look at each other, and what a shuffled column costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from anyformer.embeds.table import TableModule
from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.importance import (
    RANKS_ONLY,
    Importance,
    column_tokens,
    feature_attention,
    permutation_importance,
    rank_correlation,
)

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Columns"
READ = (
    "Each column of the table is a token. The bars show how much the class token reads of each, over heads and layers; "
    "the map shows which columns read each other."
)
TOUR = (6, "The table. Which columns the answer looks at, beside what happens without them.")
NOTES = {
    "length": "How long each column's vector is as it enters the first layer: a number times its weights plus "
    "a bias, or the vector of its category plus a bias.",
}
REPEATS = 3
MOST_ROWS = 1_000  # of a shuffled column: enough for ranks
MOST_CELLS = 200_000  # rows times columns times repeats that are answered while a page waits
EXPORTED_ROWS = 4
FOUND: WeakKeyDictionary[Capture, Importance | str] = WeakKeyDictionary()  # each takes seconds


def applies(capture: Capture) -> str | None:
    lead, columns = column_tokens(capture) if capture.axes else (None, [])
    if not columns:
        return "This model does not read a table, one token a column."
    if lead is None:
        return "This model has no class token whose attention could order the columns."
    if not any(site.kind == "self" for site in capture.sites):
        return "This model's layers have no attention between columns."
    return None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    found = feature_attention(capture)
    count = found.from_class.shape[0]
    row = query.integer("row", 0, 0, count)  # 0 is all of them, as people count from 1
    chosen = (0 if count == 1 else None) if row == 0 else row - 1
    shown = found.from_class if chosen is None else found.from_class[chosen : chosen + 1]
    itself = float(found.itself.mean() if chosen is None else found.itself[chosen])
    facts: dict[str, Any] = {
        "names": list(found.names), "layers": list(found.layers), "rows": count, "row": row, "note": RANKS_ONLY,
        "groups": group_names(capture, len(found.names)), "values": values_of(capture, chosen),
        "itself": itself, "others": max(0.0, float(1 - found.mean(chosen).sum()) - itself),
    }  # fmt: skip
    arrays = {
        "from_class": shown.mean(0).astype(np.float32), "pairs": found.between(chosen).astype(np.float32),
        "tokens": token_lengths(capture, chosen).astype(np.float32),
    }  # fmt: skip
    lost = permutation_of(capture)
    if isinstance(lost, str):
        facts["why_no_permutation"] = lost
    else:
        order = [lost.names.index(name) if name in lost.names else -1 for name in found.names]
        arrays["drops"] = np.array([lost.mean[i] if i >= 0 else np.nan for i in order], np.float32)
        arrays["spread"] = np.array([lost.spread[i] if i >= 0 else np.nan for i in order], np.float32)
        both = [(a, lost.mean[i]) for a, i in zip(found.mean(chosen), order, strict=True) if i >= 0]
        facts["permutation"] = {
            "metric": lost.metric, "whole": lost.whole, "rows": lost.rows, "repeats": lost.drops.shape[1],
            "correlation": rank_correlation([a for a, _ in both], [b for _, b in both]) if len(both) > 1 else None,
        }  # fmt: skip
    return ViewAnswer(facts, arrays)


def exported(capture: Capture) -> Iterable[Query]:
    """All rows together, and the first few alone."""
    rows = len(capture.found.mixers[0].given[0])
    return [Query(), *(Query(options={"row": str(i + 1)}) for i in range(min(rows, EXPORTED_ROWS)) if rows > 1)]


def table_module(capture: Capture) -> TableModule | None:
    """What makes tokens of columns, also where it stands beside text or an image."""
    return next((module for module in capture.model.modules() if isinstance(module, TableModule)), None)


def group_names(capture: Capture, count: int) -> list[str]:
    """Whether each column holds numbers or categories."""
    module = table_module(capture)
    numbers = count if module is None else module.spec.numbers
    return ["number"] * numbers + ["category"] * (count - numbers)


def values_of(capture: Capture, row: int | None) -> list[str]:
    """What stands in the columns of one row, as the given row says it, else as the model sees it."""
    _, columns = column_tokens(capture)
    tokens = next(iter(capture.axes.values())).tokens
    if row is None:
        return [""] * len(columns)
    given = capture.inputs
    rows = [given] if isinstance(given, Mapping) else given if isinstance(given, list) else []
    known = rows[row] if row < len(rows) and isinstance(rows[row], Mapping) else {}
    return [str(known.get(tokens[i].text, tokens[i].note if row == 0 else "")) for i in columns]


def token_lengths(capture: Capture, row: int | None) -> np.ndarray:
    """(F,): the length of each column's token x_j W_j + b_j, of one row or the mean of all."""
    _, columns = column_tokens(capture)
    lengths = capture.residuals(capture.stacks[0])[0][:, columns].float().norm(dim=-1)  # (R,F)
    return np.asarray((lengths.mean(0) if row is None else lengths[row]).cpu().numpy())


def permutation_of(capture: Capture) -> Importance | str:
    """Permutation importance over the rows that were given, or a sentence on why there is none."""
    if capture not in FOUND:
        FOUND[capture] = try_permutation(capture)
    return FOUND[capture]


def try_permutation(capture: Capture) -> Importance | str:
    predictor, given = capture.predictor, capture.inputs
    if predictor is None or predictor.preprocess is None or not predictor.preprocess.columns:
        return "A network by itself has no columns to shuffle: look at what anyformer.load gives."
    if isinstance(given, Mapping) or (isinstance(given, list) and len(given) < 2):
        return "One row cannot be shuffled: look at a file or a list of rows that has the target column."
    columns = len(predictor.preprocess.columns)
    most = min(MOST_ROWS, MOST_CELLS // (columns * REPEATS))
    if most < 2:
        return f"{columns:,} columns are too many to shuffle while a page waits: call permutation_importance."
    try:
        data = Path(given) if isinstance(given, str) else given
        return permutation_importance(predictor, data, repeats=REPEATS, most=most)
    except UserError as error:
        return error.line
