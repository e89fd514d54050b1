"""A table's columns: attention of the class token, attention between columns, permutation importance, and the effect
of empty cells. The last two need no attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.importance import (
    RANKS_ONLY,
    FeatureAttention,
    Importance,
    column_tokens,
    empty_cells,
    feature_attention,
    permutation_importance,
    rank_correlation,
    table_columns,
    table_module,
)

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Columns"
READ = (
    "Which columns count. Where each column is a token, bars show how much the class token reads of each, and a map "
    "which columns read each other; leaving a cell empty or shuffling a column shows what the answer depends on."
)
TOUR = (6, "The table. Which columns the answer looks at, beside what happens without them.")
NOTES = {
    "length": "How long each column's vector is as it enters the first layer: a number times its weights plus "
    "a bias, or the vector of its category plus a bias.",
}
REPEATS = 3
MOST_ROWS = 1_000  # rows for permutation importance: enough for ranks
MOST_CELLS = 200_000  # most rows times columns times repeats computed while a page waits
EXPORTED_ROWS = 4
FOUND: WeakKeyDictionary[Capture, Importance | str] = WeakKeyDictionary()  # each takes seconds


def applies(capture: Capture) -> str | None:
    return why_no_attention(capture) if not table_columns(capture) else None


def why_no_attention(capture: Capture) -> str | None:
    """Why there is no attention that could rank the columns, or None."""
    lead, columns = column_tokens(capture) if capture.axes else (None, [])
    if not columns:
        return "This model does not read a table, one token a column."
    if lead is None:
        return "This model has no class token whose attention could order the columns."
    if not any(site.kind == "self" for site in capture.sites):
        return "This model's layers have no attention between columns."
    return None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    found = feature_attention(capture) if why_no_attention(capture) is None else None
    names = table_columns(capture) if found is None else found.names
    count = rows_of(capture)
    row = query.integer("row", 0, 0, count)  # counted from 1; 0 is all of them
    chosen = (0 if count == 1 else None) if row == 0 else row - 1
    given = given_row(capture, chosen)
    facts: dict[str, Any] = {
        "names": list(names), "rows": count, "row": row, "groups": group_names(capture, names),
        "values": values_of(capture, names, chosen), "found": "", "agreement": "",
        "who": "In this row" if count == 1 else f"In row {row}" if row else f"Over {count:,} rows",
    }  # fmt: skip
    arrays: dict[str, np.ndarray] = {}
    if found is not None:
        add_attention(capture, found, chosen, facts, arrays)
    if given and table_columns(capture):
        empty = empty_cells(capture, given)
        facts["empty"] = {"what": empty.what, "whole": empty.whole}
        most = int(np.abs(empty.change).argmax())
        facts["found"] = f"Without “{empty.names[most]}” the {empty.what} changes most, by {empty.change[most]:+.3g}."
        arrays["empty"] = ordered_by(names, empty.names, empty.change)
    lost = permutation_of(capture)
    if isinstance(lost, str):
        facts["why_no_permutation"] = lost
    else:
        arrays["drops"] = ordered_by(names, lost.names, lost.mean)
        arrays["spread"] = ordered_by(names, lost.names, lost.spread)
        facts["permutation"] = {
            "metric": lost.metric,
            "whole": lost.whole,
            "rows": lost.rows,
            "repeats": lost.drops.shape[1],
        }
        if found is not None:
            facts["agreement"] = agreement(found.mean(chosen), arrays["drops"])
    return ViewAnswer(facts, arrays)


def add_attention(
    capture: Capture, found: FeatureAttention, chosen: int | None, facts: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """Add the attention of class token and columns, for one row or the mean of all."""
    shown = found.from_class if chosen is None else found.from_class[chosen : chosen + 1]
    itself = float(found.itself.mean() if chosen is None else found.itself[chosen])
    facts |= {"layers": list(found.layers), "note": RANKS_ONLY, "itself": itself,
              "others": max(0.0, float(1 - found.mean(chosen).sum()) - itself)}  # fmt: skip
    arrays |= {
        "from_class": shown.mean(0).astype(np.float32), "pairs": found.between(chosen).astype(np.float32),
        "tokens": token_lengths(capture, chosen).astype(np.float32),
    }  # fmt: skip


def ordered_by(names: Sequence[str], known: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Values in the order of the names, nan for missing columns."""
    by_name = dict(zip(known, values.tolist(), strict=True))
    return np.array([by_name.get(name, np.nan) for name in names], np.float32)


def agreement(attention: np.ndarray, drops: np.ndarray) -> str:
    """The rank correlation of the two orders of columns, as a sentence."""
    both = np.isfinite(drops)
    found = rank_correlation(attention[both], drops[both]) if int(both.sum()) > 1 else None
    if found is None:
        return "Shuffling gives the columns no order to compare with."
    how = "alike" if found > 0.7 else "partly alike" if found > 0.3 else "differently"
    return f"Attention and shuffling order the columns {how} (Spearman {found:.2f})."


def rows_of(capture: Capture) -> int:
    """The number of input rows."""
    given = capture.inputs
    if capture.found.mixers:
        return len(capture.found.mixers[0].given[0])
    return len(given) if isinstance(given, list) else 1 if isinstance(given, Mapping) else len(capture.output.logits)


def given_row(capture: Capture, row: int | None) -> Mapping[str, Any]:
    """One row's cells, if the input is rows; those of a file are not kept."""
    given = capture.inputs
    rows = [given] if isinstance(given, Mapping) else given if isinstance(given, list) else []
    found = rows[row] if row is not None and row < len(rows) else {}
    return found if isinstance(found, Mapping) else {}


def exported(capture: Capture) -> Iterable[Query]:
    """All rows together, and the first few alone."""
    rows = rows_of(capture)
    return [Query(), *(Query(options={"row": str(i + 1)}) for i in range(min(rows, EXPORTED_ROWS)) if rows > 1)]


def group_names(capture: Capture, names: Sequence[str]) -> list[str]:
    """Whether each column is numeric or categorical: from the trained model, else by token position."""
    kept = None if capture.predictor is None else capture.predictor.preprocess
    known = {} if kept is None else {column.name: column.is_number for column in kept.columns or ()}
    module = table_module(capture)
    numbers = len(names) if module is None else module.spec.numbers
    return ["number" if known.get(name, i < numbers) else "category" for i, name in enumerate(names)]


def values_of(capture: Capture, names: Sequence[str], row: int | None) -> list[str]:
    """The cell values of one row: from the given row, else as the model sees them."""
    if row is None:
        return [""] * len(names)
    known = given_row(capture, row)
    axis = next(iter(capture.axes.values()), None)
    notes = {token.text: token.note for token in axis.tokens} if axis is not None and row == 0 else {}
    return [str(known.get(name, notes.get(name, ""))) for name in names]


def token_lengths(capture: Capture, row: int | None) -> np.ndarray:
    """The norm (F,) of each column's token x_j W_j + b_j, for one row or the mean of all."""
    _, columns = column_tokens(capture)
    lengths = capture.residuals(capture.stacks[0])[0][:, columns].float().norm(dim=-1)  # (R,F)
    return np.asarray((lengths.mean(0) if row is None else lengths[row]).cpu().numpy())


def permutation_of(capture: Capture) -> Importance | str:
    """Permutation importance over the input rows, cached, or a sentence on why there is none."""
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
