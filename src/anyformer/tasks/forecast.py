"""Forecasting: the next steps of a time series from the previous ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from anyformer.core.model import Model
from anyformer.data.columns.convert import days, numbers
from anyformer.data.columns.values import shown
from anyformer.data.datasets.arrays import MemoryArrays
from anyformer.data.datasets.linear_forecast import fit_linear, latest
from anyformer.data.datasets.panel import gather_again
from anyformer.data.datasets.prepare_series import order_by_time, prepare_gathered, prepare_series, scale_channels
from anyformer.data.datasets.series import RawSeries, SeriesExamples, StepRows, after, window
from anyformer.data.datasets.time_axis import counted_moments, joined_moments
from anyformer.data.examples import Examples
from anyformer.data.files.tables import frame_of
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered
from anyformer.data.given_rows import OnBadRows, is_files, report_bad, room_for, take_rows
from anyformer.data.new_rows import parse_table, with_place
from anyformer.data.prepared import DataRequest, Prepared
from anyformer.data.preprocess import Preprocess
from anyformer.data.recognise import shows_series
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.targets import Future
from anyformer.data.unused import refuse_both, refuse_columns
from anyformer.embeds import Series as SeriesEmbed
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.bootstrap import RowSums
from anyformer.evaluation.forecasts import linear_or_seasonal, repeat_last
from anyformer.heads import Forecast as ForecastHead
from anyformer.log import Log, silence
from anyformer.objectives import Forecasting
from anyformer.positions import Learned
from anyformer.safe_files import scratch_folder
from anyformer.slots import Network
from anyformer.tasks.habits import FINE_TUNE, TrainingDefaults
from anyformer.tasks.network import require_model, unfit
from anyformer.tasks.prepare import frame_of_model, read_new_rows
from anyformer.tasks.regress import NumberAnswers
from anyformer.tasks.trained_model import TrainedModel, preprocess_of

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

logger = logging.getLogger("anyformer")
MOST_CHANNELS_A_STEP = 2048  # channels of all windows in one training step on a CPU
MOST_STEPS = 65_536  # longest look-back
DAY = 24  # period of the synthetic history used if none is given
LINEAR_WEIGHT = "head.linear.weight"  # of a network with `Forecast.window`


class ForecastTask(NumberAnswers):
    """The next steps of every channel, in the units of the file."""

    name = "forecast"
    title = "forecast"
    verb = "forecasts series"
    objective = Forecasting
    scales_numbers = True

    # ------------------------------------------------------------ data

    def recognise_rows(self, frame: Frame, settings: Data) -> str:
        return shows_series(frame, settings)

    def prepare(self, request: DataRequest) -> Prepared:
        used = ("--target", "--inputs", "--types", "--time", "--split-column")
        refuse_both(request.settings, "a time series")
        refuse_columns(request.settings, "a time series", used=used)
        return prepare_series(request, task=self.name)

    def prepare_gathered(self, gathered: Gathered, request: DataRequest) -> Prepared:
        return prepare_gathered(gathered, request, task=self.name)

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return "forecaster-small"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(spec, name, self, sizes)
        if not isinstance(made.embed, SeriesEmbed):
            raise unfit(name, "does not read time series", "forecaster-small")
        return fit_series(made, made.embed, sizes)

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start:
            return FINE_TUNE
        # Tiny networks are no faster in bf16, which also lacks the digits for values near a large level.
        rows = max(4, min(64, MOST_CHANNELS_A_STEP // max(1, sizes.numbers)))  # each channel of a window is a row
        return TrainingDefaults(epochs=20, batch_size=rows, lr=3e-4, weight_decay=0.0, gpu_batch_size=2 * rows,
                                gpu_lr=3e-4, patience=6, settings={"precision": "fp32", "ema": 0.99})  # fmt: skip

    def fit_weights(self, spec: Network, data: Prepared, log: Log) -> dict[str, torch.Tensor]:
        """The head's linear map of the window, if it has one, by least squares."""
        assert isinstance(data.train, SeriesExamples) and isinstance(spec, Model)
        if not isinstance(spec.head, ForecastHead) or spec.head.window is None:
            return {}
        train = scaled_series(data.train)
        after = scaled_series(data.valid) if isinstance(data.valid, SeriesExamples) else None
        found = fit_linear(train, latest(train, after))
        log(f"linear   window to forecast by least squares, penalty {found.shrink:g} by the end of the training rows "
            "and the validation rows; the Transformer learns what is left")  # fmt: skip
        return {LINEAR_WEIGHT: torch.from_numpy(found.weights.T.astype(np.float32).copy())}

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """Every forecast step as a row, one number per channel; the loss is of scaled values."""
        assert isinstance(examples, SeriesExamples)
        target = examples.target
        found, truth, order = [], [], []
        for batch, out in evaluator.passes(model, examples, rows):
            found.append(out.logits.float().cpu().unflatten(1, tuple(batch.targets.shape[1:])))  # (B,horizon,V)
            truth.append(batch.targets.float().cpu())
            order.append(batch.rows.numpy())
        back = np.argsort(np.concatenate(order), kind="stable")
        said, wanted = (torch.cat(part)[back].flatten(0, 1).numpy() for part in (found, truth))  # (N * horizon, V)
        losses = np.nanmean(np.where(np.isnan(wanted).all(1, keepdims=True), 0.0, (said - wanted) ** 2), 1)
        one = len(target.names) == 1
        said, wanted = (part[:, 0] if one else part for part in (said, wanted))
        return Answers(self.name, target.undo(wanted), target.undo(said), labels=list(target.names), losses=losses,
                       examples=examples.steps(rows))  # fmt: skip

    def selection_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """The loss of scaled values: in the units of the file, the channel with the largest numbers would dominate."""
        return "loss"

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        """The bootstrap resamples blocks of windows that forecast a step in common: overlaps are not independent."""
        found = super().row_sums(answers, metric)
        if found is None or not isinstance(answers.examples, StepRows):
            return found
        return replace(found, block=answers.examples.windows.target.horizon**2)

    # ------------------------------------------------------------ baselines

    def truth(self, examples: Examples) -> Any:
        assert isinstance(examples, SeriesExamples)
        known = np.asarray(examples.values[: examples.stop])
        return examples.target.undo(known if known.shape[1] > 1 else known[:, 0])

    def raw_rows(self, examples: Examples) -> RawRows:
        if isinstance(examples, StepRows):
            return RawRows(series=raw_series(examples.windows, examples.rows))
        assert isinstance(examples, SeriesExamples)
        return RawRows(series=raw_series(examples, np.arange(len(examples))))

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The last value repeated."""
        return self.score_baseline(repeat_last, answers, train, test)

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A linear map of the window, or the last season repeated."""
        return self.score_baseline(linear_or_seasonal, answers, train, test)

    def score_baseline(
        self, learn: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """Name and metrics of a baseline: every forecast step of every window is a row of `answers`."""
        if train.series is None or test.series is None or not len(train.series) or not len(test.series):
            return "no window to learn from", {}
        name, said = learn(train.series, test.series)
        return name, self.metrics_of(answers, said.reshape(np.shape(answers.truth)))

    # ------------------------------------------------------------ new rows

    def predict(
        self, predictor: TrainedModel, source: Any, *, batch_size: int, on_bad_rows: OnBadRows
    ) -> list[Any] | None:
        return forecasts(predictor, source, on_bad_rows=on_bad_rows)

    def examples_of(self, frame: Frame, preprocess: Preprocess, log: Log) -> Examples | None:
        return windows_of(frame, preprocess, log)

    def prediction_table(
        self,
        predictor: TrainedModel,
        files: Sequence[Path],
        settings: Data,
        *,
        batch_size: int,
        on_bad_rows: OnBadRows,
        log: Log,
    ) -> Any | None:
        """The steps after the last row of a series."""
        with scratch_folder() as cache:
            return foreseen(predictor, list(files), settings=settings, cache=cache, log=log, on_bad_rows=on_bad_rows)

    # ------------------------------------------------------------ serving

    def parse_request(self, row: Any, preprocess: Preprocess) -> Any | None:
        return history(row, preprocess)

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch_size: int) -> list[Any] | None:
        target = preprocess_of(predictor).target
        assert target is not None
        return [{"forecast": by_channel(steps, target.names)} for steps in ahead(predictor, rows)]

    def network_inputs(self, predictor: TrainedModel, source: Any) -> tuple[torch.Tensor, ...] | None:
        preprocess = preprocess_of(predictor)
        known = [usual_history(preprocess)] if source is None else read_histories(source, preprocess, "error")
        return (windows_to(predictor, [past for past in known if past is not None]),)

    def describe_request(self, preprocess: Preprocess) -> str:
        names = ", ".join(column.name for column in preprocess.columns or ())
        return f"an object with a list of numbers, oldest first, for each of {names}"

    def example_request(self, preprocess: Preprocess) -> Any | None:
        return {column.name: [1.0, 2.0, 3.0] for column in preprocess.columns or ()}


def fit_series(spec: Model, embed: SeriesEmbed, sizes: Sizes) -> Model:
    """The preset fitted to this look-back, these channels and this horizon; short windows have short patches."""
    learned = isinstance(embed.position, Learned)
    length = sizes.length or embed.length
    patch = embed.patch if embed.patch <= length // 2 else max(1, length // 4)
    stride = embed.stride if patch == embed.patch else max(1, patch // 2)
    embed = embed.replace(
        length=length, channels=embed.channels and sizes.numbers, patch=patch, stride=stride, position=None
    )
    if learned:
        embed = embed.replace(position=Learned(embed.patches))
    own = spec.head if isinstance(spec.head, ForecastHead) else ForecastHead(horizon=1, patches=1)
    head = own.replace(horizon=sizes.outputs, patches=embed.patches, window=own.window and length)
    return spec.replace(embed=embed, head=head)


def scaled_series(examples: SeriesExamples) -> RawSeries:
    """The windows as the network sees them."""
    starts = examples.first + np.arange(len(examples))
    return RawSeries(np.asarray(examples.values), starts, examples.length, examples.target.horizon)


def raw_series(examples: SeriesExamples, rows: np.ndarray) -> RawSeries:
    """The given windows of a series, in the units of the file."""
    values = np.asarray(examples.values)
    raw = examples.target.undo(values if values.shape[1] > 1 else values[:, 0]).reshape(values.shape)
    return RawSeries(raw, examples.first + np.asarray(rows), examples.length, examples.target.horizon)


def in_time(
    frame: Frame, preprocess: Preprocess, log: Log, on_bad_rows: OnBadRows = "error"
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a new file sorted by time, and their scaled values (T, V); a skipped cell is missing."""
    target = preprocess.target
    assert isinstance(target, Future)
    new = parse_table(frame, preprocess)
    report_bad({row: with_place(error, frame, row) for row, error in new.bad.items()}, on_bad_rows, log)
    time, lost = target.time_columns, [name for name in target.time_columns if name not in frame.names]
    if lost:
        log(f"note     no column {lost[0]}: the rows count as they stand")
    timeline = order_by_time(frame, () if lost else time, None, log)
    raw = np.stack([numbers(new.frame.column(name)) for name in target.names], 1)
    raw[~np.isfinite(raw)] = np.nan
    return timeline.order, scale_channels(timeline.put(raw), preprocess)


def windows_of(frame: Frame, preprocess: Preprocess, log: Log) -> SeriesExamples:
    """Every window of a new file whose future values are known."""
    target, length = preprocess.target, preprocess.length
    assert isinstance(target, Future) and length is not None
    order, values = in_time(frame, preprocess, log, "skip")
    if len(order) < length + target.horizon:
        raise UserError(f"{len(order):,} rows are fewer than {length} back and {target.horizon} ahead",
                        where=frame.sources[0].name if frame.sources else "data", fix="give more rows")  # fmt: skip
    arrays = MemoryArrays()
    arrays.put("values", values)
    arrays.put("order", order)
    return SeriesExamples(arrays, frame, target, length, length, len(order))


def windows_to(predictor: TrainedModel, histories: Sequence[np.ndarray]) -> torch.Tensor:
    """The end of each scaled history (T, V) as the network's look-back window: (B, length, V)."""
    length, model = preprocess_of(predictor).length, predictor.model
    assert length is not None
    given = np.concatenate([window(past, np.array([len(past)]), length) for past in histories])
    return torch.from_numpy(given).to(predictor.device, next(model.parameters()).dtype)


def usual_history(preprocess: Preprocess) -> np.ndarray:
    """A daily cycle around the mean of each channel: an example if no series is given."""
    target, length = preprocess.target, preprocess.length
    assert isinstance(target, Future) and length is not None
    hours = np.sin(np.arange(length) * 2 * np.pi / DAY)
    return np.repeat(hours[:, None], len(target.names), 1)


@torch.no_grad()
def ahead(predictor: TrainedModel, histories: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The steps after the end of each scaled history (T, V), in the units of the file: (horizon, V) each."""
    preprocess = preprocess_of(predictor)
    assert isinstance(preprocess.target, Future)
    target, model = preprocess.target, predictor.model.eval()
    said = model(windows_to(predictor, histories)).logits.float().cpu()
    steps = said.view(-1, len(target.names)).numpy()  # (B * horizon, V)
    found = target.undo(steps if len(target.names) > 1 else steps[:, 0])
    return list(found.reshape(len(histories), target.horizon, -1))


def forecasts(
    predictor: TrainedModel, source: Any, *, on_bad_rows: OnBadRows = "error", log: Log = logger.warning
) -> list[dict[str, list[float]] | None]:
    """The steps after each history by channel, as `read_histories` reads them; None for a history that is skipped."""
    preprocess = preprocess_of(predictor)
    assert isinstance(preprocess.target, Future)
    found = read_histories(source, preprocess, on_bad_rows, log)
    known = [past for past in found if past is not None]
    steps = iter(ahead(predictor, known) if known else ())
    return [None if past is None else by_channel(next(steps), preprocess.target.names) for past in found]


def read_histories(
    source: Any, preprocess: Preprocess, on_bad_rows: OnBadRows, log: Log = logger.warning
) -> list[np.ndarray | None]:
    """Scaled histories (T, V), None for one that is skipped. A table or file is one history, sorted by time; a list has
    one history per entry: numbers by channel, oldest first."""
    assert isinstance(preprocess.target, Future)
    names = preprocess.target.names
    rows = take_rows(source)
    if isinstance(rows, np.ndarray):
        rows = of_array(rows, names)
    if isinstance(rows, list) and rows and all(is_step(row) for row in rows):
        rows = frame_of(rows)
    if isinstance(rows, Frame | Mapping) or is_files(rows):
        with room_for(is_files(rows)) as cache:
            if is_files(rows):
                assert cache is not None
                frame, _ = read_new_rows(rows, preprocess, Data(bad=on_bad_rows), cache)
            else:
                frame, _ = frame_of_model(frame_of(rows), preprocess)
            _, values = in_time(frame, preprocess, silence, on_bad_rows)
        return [values]
    if not rows:
        raise UserError("no rows given", where="rows", fix="give at least one")
    found: list[np.ndarray | None] = []
    bad: dict[int, UserError] = {}
    for at, row in enumerate(rows):
        try:
            found.append(history(row, preprocess))
        except UserError as error:
            bad[at] = error.inside(f"rows[{at}]")
            found.append(None)
    report_bad(bad, on_bad_rows, log)
    return found


def is_step(row: Any) -> bool:
    """Whether an object is one step of a series, rather than a whole series."""
    return isinstance(row, Mapping) and not any(isinstance(cell, list | tuple | np.ndarray) for cell in row.values())


def of_array(values: np.ndarray, names: Sequence[str]) -> Any:
    """One series (T,) or (T, V), or several (N, T, V), as lists by channel."""
    if values.ndim == 1 and len(names) == 1:
        values = values[:, None]
    if values.ndim == 2 and values.shape[1] == len(names):
        return {name: values[:, at] for at, name in enumerate(names)}
    if values.ndim == 3 and values.shape[2] == len(names):
        return [{name: one[:, at] for at, name in enumerate(names)} for one in values]
    raise UserError(f"an array {values.shape} is not a series of {len(names)} channels", where="rows",
                    fix=f"give (T, {len(names)}) or (N, T, {len(names)}) numbers, oldest first")  # fmt: skip


def history(row: Any, preprocess: Preprocess) -> np.ndarray:
    """A scaled look-back series (T, V): a list of numbers for each channel, or a bare list if there is only one."""
    columns = {column.name: column for column in preprocess.columns or ()}
    names = list(columns)
    if len(names) == 1 and isinstance(row, list | tuple | np.ndarray):
        row = {names[0]: row}
    fix = f"give a list of numbers, oldest first, for each of {', '.join(names)}"[:200]
    if not isinstance(row, Mapping):
        raise UserError(f"a row is {shown(row)}", fix=fix)
    for name in row:
        if name not in columns:
            raise UserError(f"unknown column {str(name)[:40]!r}", fix=did_you_mean(str(name)[:40], names))
    lost = [name for name in names if name not in row]
    if lost:
        raise UserError(f"the column {lost[0]!r} is missing", fix=fix)
    channels = []
    for name, column in columns.items():
        values = row[name]
        if not isinstance(values, list | tuple | np.ndarray) or not 1 <= len(values) <= MOST_STEPS:
            raise UserError(f"{shown(values)} is not a series", where=name,
                            fix=f"give 1 to {MOST_STEPS:,} numbers, oldest first, null for none")  # fmt: skip
        if len(values) != len(row[names[0]]):
            raise UserError(f"is {len(values):,} steps long, {names[0]} is {len(row[names[0]]):,}", where=name,
                            fix="make them equally long")  # fmt: skip
        cells, bad = column.parse_values(list(values))
        for at, error in bad.items():
            raise UserError(error.what, where=f"{name}[{at}]", fix=error.fix)
        channels.append(numbers(cells))
    return scale_channels(np.stack(channels, 1), preprocess)


def by_channel(steps: np.ndarray, names: Sequence[str]) -> dict[str, list[float]]:
    """Steps (horizon, V) as a list for each channel."""
    return {name: steps[:, at].tolist() for at, name in enumerate(names)}


@torch.no_grad()
def foreseen(
    predictor: TrainedModel, source: Any, *, settings: Data, cache: Path, log: Log, on_bad_rows: OnBadRows = "error"
) -> Any:
    """The steps after the last row of a file, as a table: the time if there is one, and every channel."""
    import pyarrow as pa

    preprocess = preprocess_of(predictor)
    assert isinstance(preprocess.target, Future) and preprocess.length is not None
    target = preprocess.target
    frame, notes = read_new_rows(source, preprocess, settings.replace(bad=on_bad_rows), cache)
    for line in notes:
        if line != f"ignored {', '.join(target.time_columns)}: not among the columns trained on":
            log(line)
    order, values = in_time(frame, preprocess, log, on_bad_rows)
    if len(order) < preprocess.length:
        log(f"note     {len(order):,} rows, and the model looks back on {preprocess.length}: the rest is missing to it")
    (found,) = ahead(predictor, [values])
    columns: dict[str, Any] = {}
    if target.time is not None and set(target.time_columns) <= set(frame.names):
        columns[" ".join(target.time_columns)] = next_times(frame, target.time_columns, order, target.horizon)
    columns |= {name: pa.array(found[:, at]) for at, name in enumerate(target.names)}
    return pa.table(columns) if target.panel is None else gather_again(pa.table(columns), target.panel)


def next_times(frame: Frame, time: Sequence[str], order: np.ndarray, count: int) -> Any:
    """The times of the next steps, as numbers or dates like those of the column."""
    import pyarrow as pa

    if len(time) > 1:
        joined = joined_moments(frame, time)[order].astype(np.int64).astype("datetime64[s]")
        return pa.array([str(moment).replace("T", " ") for moment in after(np.unique(joined), count)])
    column = frame.column(time[0])
    counted = counted_moments(column)
    if counted is not None:
        values = counted[order]
        step = float(np.median(np.diff(values[-100:]))) if len(values) > 1 else 1.0
        coming = values[-1] + step * np.arange(1, count + 1)
        return pa.array(
            coming.astype(np.int64) if (values == np.round(values)).all() and step == round(step) else coming
        )
    moments = np.unique(days(column, None)[order])  # steps without a row are at the time of the step before them
    return pa.array([str(moment).replace("T", " ") for moment in after(moments, count)])
