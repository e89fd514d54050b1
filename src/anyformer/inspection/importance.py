"""Feature importance for tables: attention of the class token, permutation importance, and the effect of an empty
cell on one row's prediction.

Attention of an FT-Transformer ranks the columns (2106.11959, 5.3); its magnitudes are not comparable, only ranks are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anyformer.core.model import Output
from anyformer.embeds.table import TableModule
from anyformer.errors import UserError, did_you_mean
from anyformer.inspection.maps import weighed
from anyformer.log import silence

if TYPE_CHECKING:
    from anyformer.data.frame import Frame
    from anyformer.inference.predictor import Predictor
    from anyformer.inspection.capture import Capture

RANKS_ONLY = (
    "Only the order of columns is meaningful: attention says where was read, not how much it changed the answer."
)


# ---------------------------------------------------------------- attention


@dataclass(frozen=True)
class FeatureAttention:
    """Attention between the columns of a table: names (F,), from the class token (R,L,H,F), between columns (R,F,F)."""

    names: tuple[str, ...]
    layers: tuple[str, ...]
    from_class: np.ndarray  # (R,L,H,F)
    pairs: np.ndarray  # (R,F,F), mean over layers and heads
    itself: np.ndarray  # (R,): weight of the class token on itself, mean over layers and heads

    def mean(self, row: int | None = None) -> np.ndarray:
        """Weight (F,) of the class token on each column, mean over heads and layers, for one row or all."""
        chosen = self.from_class if row is None else self.from_class[row : row + 1]
        return np.asarray(chosen.mean((0, 1, 2)))

    def between(self, row: int | None = None) -> np.ndarray:
        """Attention between columns (F,F), for one row or all."""
        return np.asarray(self.pairs.mean(0) if row is None else self.pairs[row])


def column_tokens(capture: Capture) -> tuple[int | None, list[int]]:
    """The index of the class token, and those of the columns."""
    axis = next(iter(capture.axes.values()))
    lead = next((i for i, token in enumerate(axis.tokens) if token.kind == "special"), None)
    return lead, [i for i, token in enumerate(axis.tokens) if token.kind == "column"]


@torch.no_grad()
def feature_attention(capture: Capture) -> FeatureAttention:
    """Attention of the class token and of the columns to the columns, for every row of the capture."""
    lead, columns = column_tokens(capture)
    sites = [site for site in capture.sites if site.kind == "self"]
    if lead is None or not columns or not sites:
        raise UserError("there is no class token that looks at columns", where="look", fix="use an FT-Transformer")
    axis, looks = next(iter(capture.axes.values())), []
    pairs: list[Tensor] = []
    itself: list[Tensor] = []
    for site in sites:
        call = capture.found.mixers[site.index]
        weights = weighed(call.module, call.given, slice(None)).float().cpu()  # (R,H,T,T)
        looks.append(weights[:, :, lead, columns])  # (R,H,F)
        itself.append(weights[:, :, lead, lead].mean(1))  # (R,)
        pairs.append(weights[:, :, columns][..., columns].mean(1))  # (R,F,F)
    if len({look.shape[1] for look in looks}) > 1:  # with different numbers of heads: only means are comparable
        looks = [look.mean(1, keepdim=True) for look in looks]
    return FeatureAttention(
        tuple(axis.tokens[i].text for i in columns), tuple(site.label for site in sites),
        torch.stack(looks, 1).numpy(), torch.stack(pairs).mean(0).numpy(), torch.stack(itself).mean(0).numpy(),
    )  # fmt: skip


# ---------------------------------------------------------------- empty cells


@dataclass(frozen=True)
class EmptyCells:
    """Change of the prediction for one row when a cell is left empty, for any model with a table."""

    what: str  # the predicted quantity: a number, or the log-probability of the predicted class
    whole: float  # with all cells: the number, or the log-probability
    names: tuple[str, ...]
    change: np.ndarray  # (F,), of numbers in the target's units


@torch.no_grad()
def empty_cells(capture: Capture, row: Mapping[str, Any]) -> EmptyCells:
    """Predict with each cell left empty: a missing number is the training mean, a category unknown, as in `predict`."""
    from anyformer.inspection.given import by_columns
    from anyformer.inspection.prediction import answer_logits, name_of, number_name

    predictor, names = capture.predictor, table_columns(capture)
    if predictor is None or not names:
        raise UserError("there is no cell to leave empty", where="look", fix="look at a trained model of a table")
    given = by_columns(predictor, [dict(row), *({**row, name: None} for name in names)])
    logits = predictor.model.eval()(*given.args, **given.options).logits
    found = [answer_logits(capture, Output(logits, logits[i : i + 1])) for i in range(len(logits))]
    is_number = found[0][1] == "value"
    values = torch.stack([own if is_number else own.log_softmax(-1) for own, _ in found if own is not None])  # (1+F,C)
    chosen = 0 if is_number else int(values[0].argmax())
    name = number_name(capture, 0) if is_number else f"log-probability of {name_of(capture, chosen)}"
    change = (values[1:, chosen] - values[0, chosen]).numpy()
    return EmptyCells(name, float(values[0, chosen]), names, change)


def table_columns(capture: Capture) -> tuple[str, ...]:
    """The numeric and categorical columns of a trained model; empty for other models."""
    kept = None if capture.predictor is None or table_module(capture) is None else capture.predictor.preprocess
    columns = () if kept is None else kept.columns or ()
    return tuple(column.name for column in columns if column.in_table)


def table_module(capture: Capture) -> TableModule | None:
    """The embedding of the columns, also in a joint model with text or images."""
    return next((module for module in capture.model.modules() if isinstance(module, TableModule)), None)


# ---------------------------------------------------------------- permutation


@dataclass(frozen=True)
class Importance:
    """Permutation importance: the loss of a metric per shuffled column; as text, a table, most important first."""

    metric: str
    whole: float  # without shuffling
    names: tuple[str, ...]
    drops: np.ndarray  # (F, repeats): how much worse the metric became; negative if better
    rows: int

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.drops.mean(1))

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation over the repeats."""
        return np.asarray(self.drops.std(1))

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        order = np.argsort(-self.mean, kind="stable")
        head = f"{self.metric} {self.whole:.4g} on {self.rows:,} rows; lost when a column is shuffled:"
        return "\n".join(
            [head, *(f"{self.names[i]:<{width}}  {self.mean[i]:.4f} ± {self.spread[i]:.4f}" for i in order)]
        )


def permutation_importance(
    predictor: Predictor, data: Any, *, metric: str | None = None, columns: Sequence[str] | None = None,
    repeats: int = 5, seed: int = 0, most: int | None = None, batch_size: int = 256,
) -> Importance:  # fmt: skip
    """Permutation importance of a trained model: how much worse its metric is with one column's cells shuffled.

    `data` includes the target column: a path, a table, or rows. `metric` is by default the task's main one, `columns`
    all that the model reads; `most` limits the number of rows, drawn at random. A column that is redundant with another
    loses little, though the model may use it.
    """
    from anyformer.evaluation.metric_directions import gain

    if repeats < 1:
        raise UserError(f"repeats {repeats} is below 1", where="permutation_importance", fix="use 5")
    frame = frame_with_truth(predictor, data)
    generator = np.random.default_rng(seed)
    if most is not None and len(frame) > most:
        frame = frame.take(np.sort(generator.permutation(len(frame))[:most]))
    assert predictor.preprocess is not None
    known = tuple(column.name for column in predictor.preprocess.columns or ())
    names = known if columns is None else tuple(columns)
    for name in names:
        if name not in known:
            raise UserError(f"the model reads no column {name!r}", where="columns", fix=did_you_mean(name, known))
    metric, whole, rows = measured(predictor, frame, metric, batch_size)
    drops = np.zeros((len(names), repeats))
    for i, name in enumerate(names):
        for repeat in range(repeats):
            shuffled = with_shuffled(frame, name, generator.permutation(len(frame)))
            drops[i, repeat] = gain(metric, whole, measured(predictor, shuffled, metric, batch_size)[1])
    return Importance(metric, whole, names, drops, rows)


def frame_with_truth(predictor: Predictor, data: Any) -> Frame:
    """Rows with their targets, in memory."""
    from anyformer.data.files.tables import frame_of
    from anyformer.data.frame import Frame
    from anyformer.data.given_rows import given_rows, is_files
    from anyformer.data.settings import Data
    from anyformer.inference.predict import check_target
    from anyformer.safe_files import scratch_folder
    from anyformer.tasks.prepare import frame_of_model, read_new_rows

    preprocess = predictor.preprocess
    if preprocess is None or not preprocess.columns or preprocess.target is None:
        raise UserError("the model was not trained on columns with a target", where="permutation_importance",
                        fix="give a run of a table")  # fmt: skip
    rows: Any = given_rows(data, preprocess, with_truth=True)
    if is_files(rows):
        with scratch_folder() as cache:
            frame, _ = read_new_rows([Path(path) for path in rows], preprocess, Data(), cache)
            frame = replace(frame, table=frame.table.take(list(range(len(frame)))))  # the temporary folder is removed
    else:
        frame, _ = frame_of_model(rows if isinstance(rows, Frame) else frame_of(by_column(rows)), preprocess)
    check_target(frame, preprocess)
    return frame


def by_column(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Rows given as dicts, by column; None for missing cells."""
    if not all(isinstance(row, dict) for row in rows):
        raise UserError("rows without names have no target", where="data", fix="give rows as {column: value}")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def measured(predictor: Predictor, frame: Frame, metric: str | None, batch_size: int) -> tuple[str, float, int]:
    """A metric of the model on rows with known targets: its name, its value, and the number of rows."""
    from anyformer.inference.evaluate import only
    from anyformer.inference.predict import predict_rows
    from anyformer.tasks import find

    assert predictor.preprocess is not None
    task = find(predictor.preprocess.task)
    answers = predict_rows(
        predictor, frame, batch_size=batch_size, with_truth=True, log=silence, on_bad_rows="skip"
    ).answers
    known = None if answers is None else task.has_truth(answers)
    if answers is None or known is None or not known.any():
        raise UserError("no row has a known answer", where="data", fix="fill in the target column")
    found = task.all_metrics(only(answers, known))
    name = next(iter(found)) if metric is None else metric
    if name not in found:
        raise UserError(f"unknown metric {name!r}", where="metric", fix=did_you_mean(name, found))
    return name, float(found[name]), int(known.sum())


def with_shuffled(frame: Frame, name: str, order: np.ndarray) -> Frame:
    """The rows with one column permuted."""
    at = frame.names.index(name)
    field = frame.table.schema.field(at)
    return replace(frame, table=frame.table.set_column(at, field, frame.column(name).take(order)))


# ---------------------------------------------------------------- ranks


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, smallest first; ties get their mean rank.

    >>> ranks([10, 30, 30, 20]).tolist()
    [1.0, 3.5, 3.5, 2.0]
    """
    _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)])


def rank_correlation(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rank correlation; None if either is constant.

    >>> rank_correlation([1, 2, 3], [10, 200, 3000])
    1.0
    """
    a, b = ranks(first), ranks(second)
    if len(a) != len(b):
        raise UserError(f"{len(a)} values and {len(b)} have no common order", where="ranks", fix="give as many of both")
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return None if size == 0 else float(a @ b) / size
