"""The table of a row: all its numbers and categories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from anyformer.data.columns.base import Column
from anyformer.data.columns.modality import Encoding, Modality, ModalityInputs
from anyformer.data.habit import TrainingDefaults
from anyformer.embeds.numbers import PiecewiseCurve
from anyformer.embeds.table import Table
from anyformer.slots import Embed

if TYPE_CHECKING:
    from anyformer.data.datasets.rows import RowExamples
    from anyformer.data.examples import Draw
    from anyformer.data.frame import Frame
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.sizes import Sizes

FEW_ROWS = 4_000  # up to here a table trains for MOST_EPOCHS, beyond for fewer
MOST_EPOCHS, LEAST_EPOCHS = 60, 20
# From here on periodic embeddings pay off: on California they lose with 1,600 rows, win with 13,000.
MANY_ROWS = 8_000
BESIDE = PiecewiseCurve(bins=32)  # embedding of numbers beside texts or images, whose presets have none


class TableModality(Modality):
    """Numbers (N, F) and categories (N, K), each column a token of its own."""

    name: ClassVar[str] = "table"
    rank: ClassVar[int] = 20
    embeds: ClassVar[tuple[type[Embed], ...]] = (Table,)
    presets: ClassVar[tuple[str, ...]] = ("table-mini", "table-small")
    plural: ClassVar[str] = "tables"
    habit: ClassVar[TrainingDefaults | None] = TrainingDefaults(
        epochs=MOST_EPOCHS, batch_size=256, lr=3e-3, weight_decay=0.01, gpu_batch_size=256, gpu_lr=2e-3
    )
    settings: ClassVar[str] = "data.columns"
    in_double: ClassVar[bool] = True

    columns: tuple[TableColumn, ...]

    def encode(self, work: Encoding, preprocess: Preprocess) -> Preprocess:
        rows = len(work.frame)
        if self.numbers:
            room = work.arrays.room("numbers", (rows, self.numbers), np.float32)
            at = 0
            for column in self.of_numbers:
                made = column.encode(column.read_from(work.parsed)).reshape(rows, -1)
                room[:, at : at + made.shape[1]] = made
                at += made.shape[1]
                work.counts.lost(work.frame, column.name, column.lost(made))
            del room
        if self.of_ids:
            table = work.arrays.room("categories", (rows, len(self.of_ids)), np.int32)
            for at, column in enumerate(self.of_ids):
                made = column.encode(column.read_from(work.parsed))
                table[:, at] = made
                work.counts.lost(work.frame, column.name, column.lost(made))
                column.note_unknown(work, made, refused=preprocess.unknown == "error")
            del table
        return preprocess

    @property
    def of_numbers(self) -> list[TableColumn]:
        """The columns encoded to numbers, in the order of the file."""
        return [column for column in self.columns if column.ids is None]

    @property
    def of_ids(self) -> list[TableColumn]:
        """The columns encoded to ids, in the order of the file."""
        return [column for column in self.columns if column.ids is not None]

    @property
    def numbers(self) -> int:
        """Number of numeric features, the parts of dates included."""
        return sum(column.width for column in self.of_numbers)

    def inputs(self, examples: RowExamples, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> ModalityInputs:
        """Numbers (B, F) and categories (B, K), None without such columns."""
        arrays = examples.arrays
        numbers = torch.from_numpy(arrays["numbers"][at]) if "numbers" in arrays else None
        ids = torch.from_numpy(arrays["categories"][at].astype(np.int64)) if "categories" in arrays else None
        return ModalityInputs((numbers, ids))

    def sizes(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "categories": [column.ids for column in self.of_ids]}

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        table = own if isinstance(own, Table) else Table(numbers=1, curve=BESIDE)
        categories = tuple(sizes.categories or ()) or None
        return table.replace(numbers=sizes.numbers, categories=categories, missing=True)

    @classmethod
    def preset_for(cls, rows: int | None, *, gpu: bool) -> str:
        """Number embeddings by the number of rows: piecewise linear for few, periodic for many."""
        size = "small" if gpu else "mini"
        return f"table-{size}" if rows is None or rows < MANY_ROWS else f"table-periodic-{size}"

    @classmethod
    def habit_for(cls, rows: int | None) -> TrainingDefaults | None:
        """Fewer epochs for more rows, which make more steps; but ensemble members learn slowly at first."""
        if cls.habit is None or rows is None or rows <= FEW_ROWS:
            return cls.habit
        return replace(cls.habit, epochs=max(LEAST_EPOCHS, round(MOST_EPOCHS * (FEW_ROWS / rows) ** 0.5)))

    def features(self, examples: RowExamples, frame: Frame) -> dict[str, Any]:
        found: dict[str, Any] = {}
        # By kind: dates after numbers, whatever their order in the file.
        raw = [column.features(frame) for column in sorted(self.of_numbers, key=lambda column: column.rank)]
        if raw:
            found["numbers"] = np.concatenate([values.reshape(len(frame), -1) for values in raw], 1).astype(np.float64)
        if self.of_ids:
            found["categories"] = np.asarray(examples.arrays["categories"][examples.rows])
        return found


class TableColumn(Column, slot=True):
    """A column of the table: it encodes to numbers (N,) or (N, width), or to ids (N,) where it says how many."""

    modality: ClassVar[type[Modality]] = TableModality
    in_table: ClassVar[bool] = True

    @property
    def width(self) -> int:
        """Number of features per cell."""
        return 1

    @property
    def ids(self) -> int | None:
        """Number of distinct ids, if cells are encoded to ids."""
        return None

    def features(self, frame: Frame) -> np.ndarray:
        """The cells as unscaled numbers for baselines, nan if missing."""
        return np.asarray(self.read(frame.column(self.name)), np.float64)
