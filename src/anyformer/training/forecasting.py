"""Forecasts of new files: every window judged, or the steps after the last row written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anyformer.data.arrays import Arrays
from anyformer.data.frame import Frame
from anyformer.data.kinds import days, numbers
from anyformer.data.prepare import frame_for
from anyformer.data.preprocess import Preprocess, fitting
from anyformer.data.series import SeriesExamples, after, window
from anyformer.data.series_prepare import ordered, scaled
from anyformer.data.series_target import Future
from anyformer.data.settings import Data
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.predictor import Predictor

Say = Callable[[str], None]


def in_time(frame: Frame, preprocess: Preprocess, say: Say) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a new file in the order of time, and their scaled values (T, V)."""
    target = preprocess.target
    assert isinstance(target, Future)
    needed, _ = fitting(frame, preprocess)
    time = target.time if target.time in frame.names else None
    if target.time is not None and time is None:
        say(f"note     there is no column {target.time}: the rows count as they stand")
    order = ordered(frame, time, None, say)
    raw = np.stack([numbers(needed.column(name)) for name in target.names], 1)[order]
    raw[~np.isfinite(raw)] = np.nan
    return order, scaled(raw, preprocess)


def windows_of(frame: Frame, preprocess: Preprocess, cache: Path, say: Say) -> SeriesExamples:
    """Every window of a new file that what comes after it is known of."""
    target, length = preprocess.target, preprocess.length
    assert isinstance(target, Future) and length is not None
    order, values = in_time(frame, preprocess, say)
    if len(order) < length + target.horizon:
        raise UserError(f"{len(order):,} rows are fewer than {length} back and {target.horizon} ahead",
                        where=frame.sources[0].name if frame.sources else "data", fix="give more rows")  # fmt: skip
    arrays = Arrays.new(cache)
    arrays.put("values", values)
    arrays.put("order", order)
    return SeriesExamples(arrays, frame, target, length, length, len(order))


def judged(model: nn.Module, examples: SeriesExamples, rows: np.ndarray, passes: Any) -> Answers:
    """Every foreseen step as a row, one number a channel, in the units of the file; the loss is of scaled values."""
    target = examples.target
    found, truth, order = [], [], []
    for batch, out in passes:
        found.append(out.logits.float().cpu().unflatten(1, tuple(batch.targets.shape[1:])))  # (B,horizon,V)
        truth.append(batch.targets.float().cpu())
        order.append(batch.rows.numpy())
    back = np.argsort(np.concatenate(order), kind="stable")
    said, wanted = (torch.cat(part)[back].flatten(0, 1).numpy() for part in (found, truth))  # (N * horizon, V)
    losses = np.nanmean(np.where(np.isnan(wanted).all(1, keepdims=True), 0.0, (said - wanted) ** 2), 1)
    one = len(target.names) == 1
    said, wanted = (part[:, 0] if one else part for part in (said, wanted))
    return Answers("regress", target.undo(wanted), target.undo(said), labels=list(target.names), losses=losses,
                   examples=examples.steps(rows))  # fmt: skip


@torch.no_grad()
def ahead(predictor: Predictor, histories: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The steps after the end of each history (T, V) of scaled values, in the units of the file: (horizon, V) each."""
    preprocess = predictor.preprocess
    assert preprocess is not None and isinstance(preprocess.target, Future) and preprocess.length is not None
    target, model = preprocess.target, predictor.model.eval()
    given = np.concatenate([window(past, np.array([len(past)]), preprocess.length) for past in histories])  # (B,T,V)
    said = model(torch.from_numpy(given).to(predictor.device, next(model.parameters()).dtype)).logits.float().cpu()
    steps = said.view(-1, len(target.names)).numpy()  # (B * horizon, V)
    found = target.undo(steps if len(target.names) > 1 else steps[:, 0])
    return list(found.reshape(len(histories), target.horizon, -1))


@torch.no_grad()
def foreseen(predictor: Predictor, source: Any, *, settings: Data, cache: Path, say: Say) -> Any:
    """The steps after the last row of a file, as a table: the time where there is one, and every channel."""
    import pyarrow as pa

    preprocess = predictor.preprocess
    assert preprocess is not None and isinstance(preprocess.target, Future) and preprocess.length is not None
    target = preprocess.target
    frame, notes = frame_for(source, preprocess, settings, cache)
    for line in notes:
        if line != f"ignored {target.time}: not among the columns trained on":
            say(line)
    order, values = in_time(frame, preprocess, say)
    if len(order) < preprocess.length:
        say(f"note     {len(order):,} rows, and the model looks back on {preprocess.length}: the rest is missing to it")
    (found,) = ahead(predictor, [values])
    columns: dict[str, Any] = {}
    if target.time is not None and target.time in frame.names:
        columns[target.time] = next_times(frame.column(target.time), order, target.horizon)
    columns |= {name: pa.array(found[:, at]) for at, name in enumerate(target.names)}
    return pa.table(columns)


def next_times(column: Any, order: np.ndarray, count: int) -> Any:
    """The times of the steps to come, numbers or moments as the column has them."""
    import pyarrow as pa

    values = numbers(column)[order]
    if np.isfinite(values).sum() >= 0.5 * len(values):
        step = float(np.median(np.diff(values[-100:]))) if len(values) > 1 else 1.0
        coming = values[-1] + step * np.arange(1, count + 1)
        return pa.array(
            coming.astype(np.int64) if (values == np.round(values)).all() and step == round(step) else coming
        )
    moments = days(column, None)[order]
    return pa.array([str(moment).replace("T", " ") for moment in after(moments, count)])
