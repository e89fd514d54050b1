"""The interface of a kind of column; all kind-specific behaviour of the library is here.

A kind is a subclass of `Column` in one file, registered when that file is imported. It defines how a column of its kind
is recognised, what is fitted on the training rows and saved in preprocess.json, how cells become arrays, which values a
cell of a new row may have, and which `Modality` brings it into the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from anyformer.data.columns.cells import as_words, factorize, is_list, texts
from anyformer.data.columns.convert import MISSING, clean_words, is_words, pieces, stands_for_none
from anyformer.data.columns.modality import Encoding, Modality
from anyformer.data.columns.values import is_none, own_value, shown
from anyformer.errors import UserError
from anyformer.log import Log
from anyformer.spec import Spec

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.columns.parsed import Parsed
    from anyformer.data.datasets.arrays import Arrays
    from anyformer.data.frame import Frame
    from anyformer.data.images.preprocessing import ImageSteps
    from anyformer.data.prepared import StartModelConstraints
    from anyformer.data.settings import Columns, Data

ColumnValues = Any  # parsed cells of a kind: an array (N, ...), or the Arrow column itself
ParsedCells = tuple[Any, dict[int, UserError]]  # an Arrow array, and the rows whose cell cannot be read


class Column(Spec, slot=True):
    """One input column as it was found in the training rows; its class is its kind, its fields are what was fitted."""

    kind: ClassVar[str] = ""  # name on the command line: --types age=number
    noun: ClassVar[str] = "a value"  # one cell, in messages
    modality: ClassVar[type[Modality]] = Modality
    rank: ClassVar[int] = 0  # order in which kinds try to recognise a column; external kinds come first
    by_name: ClassVar[bool] = True  # whether it can be chosen by --types
    is_text: ClassVar[bool] = False  # whether a tokenizer reads it
    is_image: ClassVar[bool] = False  # whether its cells are images
    is_time: ClassVar[bool] = False  # whether its cells are dates or times
    is_number: ClassVar[bool] = False  # whether its cells are numbers
    in_table: ClassVar[bool] = False  # whether its cells are tabular features: numbers and categories
    can_be_typed: ClassVar[bool] = True  # whether a cell can be entered in a web form
    needed: ClassVar[bool] = False  # whether a row that consists of it alone cannot do without it
    file_unit: ClassVar[str | None] = None  # noun for a row of a folder of files, if cells are file names

    name: str

    # ------------------------------------------------------------ recognised by looking

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        """The facts of a column of this kind, or None; the reason for a near miss goes into `seen.hint`."""
        return None

    @classmethod
    def beside(cls, seen: Scan, facts: Facts, others: Sequence[Facts]) -> Facts:
        """The facts of a column of this kind, revised once those of all columns are known."""
        return facts

    @classmethod
    def fitting_cells(cls, column: pa.ChunkedArray, facts: Facts) -> tuple[int, str]:
        """How many cells of a column with a user-given kind fit it, and their format."""
        return facts.rows - facts.missing, ""

    @classmethod
    def describe(cls, facts: Facts) -> str:
        """A short description for the list of columns."""
        return facts.reason

    # ------------------------------------------------------------ training rows

    @classmethod
    def read(cls, cells: pa.ChunkedArray, form: str = "") -> ColumnValues:
        """The cells as input of `fit` and `encode`; an array is cached on disk. None if nothing is fitted on them."""
        return None

    @classmethod
    def marks(cls, parsed: Parsed, name: str, form: str) -> np.ndarray | None:
        """Integers (N,), equal for equal cells; None if this can only be decided from the files they name."""
        return factorize(parsed.frame.column(name))[0]

    @classmethod
    def fit(cls, name: str, values: ColumnValues, settings: Columns, *, seed: int = 0, form: str = "") -> Self:
        """Fit the column to the training rows."""
        return cls(name=name)

    def started_from(self, given: StartModelConstraints) -> Self:
        """The column as the model to fine-tune reads it."""
        return self

    def read_from(self, parsed: Parsed) -> ColumnValues:
        """The cells of all rows as input of `encode`."""
        return parsed.values(type(self), self.name)

    def as_texts(self, cells: pa.ChunkedArray) -> list[str]:
        """The cells as texts that a tokenizer is trained on."""
        return texts(cells)

    def encode(self, values: ColumnValues) -> np.ndarray:
        """The rows as an array (N,) or (N, ...)."""
        raise NotImplementedError

    def lost(self, encoded: np.ndarray) -> np.ndarray:
        """Mask (N,) of encoded rows whose cell is missing."""
        return np.isnan(encoded.reshape(len(encoded), -1)[:, 0])

    def note_unknown(self, work: Encoding, encoded: np.ndarray, *, refused: bool) -> None:
        """Count cells with a value unseen in training and report the first; reject them if requested."""

    # ------------------------------------------------------------ new rows

    def parse_cells(self, cells: pa.ChunkedArray, *, known: bool = False) -> ParsedCells:
        """Parse a column of a table. Typed cells may be parsed in bulk, but still independently of each other.

        `known` rejects values unseen in training.
        """
        return self.parse_values(cells.to_pylist(), known=known)

    def parse_values(self, values: Sequence[Any], *, known: bool = False) -> ParsedCells:
        """Parse values of any type, each independently."""
        made: list[Any] = []
        bad: dict[int, UserError] = {}
        for row, value in enumerate(values):
            value = own_value(value)
            try:
                made.append(None if self.is_missing(value) else self.parse_value(value))
            except UserError as error:
                bad[row] = error
                made.append(None)
        return self.arrow(made, bad), bad

    def parse_value(self, value: Any) -> Any:
        """Parse one non-missing value; raises a `UserError` if it is invalid."""
        raise NotImplementedError

    def arrow(self, values: list[Any], bad: dict[int, UserError]) -> pa.Array:
        """Convert parsed values to an Arrow array."""
        import pyarrow as pa

        return pa.array(values, pa.string())

    def is_missing(self, value: Any) -> bool:
        """Whether training treats a cell as missing."""
        return is_none(value) or (isinstance(value, str) and value.strip() in MISSING)

    def wrong(self, value: Any) -> UserError:
        """The error of a cell that cannot be read."""
        return UserError(f"{shown(value)} is not {self.noun}", where=self.name, fix=f"give {self.noun}")

    @classmethod
    def files_in(cls, paths: Sequence[Path]) -> list[str] | None:
        """The cells for files and folders without labels, if this column is the only input of a model."""
        return None

    # ------------------------------------------------------------ requests and reports

    @property
    def request_noun(self) -> str:
        """Noun for one cell of a request, in messages."""
        return self.noun

    def from_request(self, value: Any) -> Any:
        """Validate and decode a cell sent by a client, for `parse_value`; never opens a file."""
        return value

    def example(self) -> Any:
        """An example value for requests."""
        raise NotImplementedError

    def worth_looking_at(self) -> Any:
        """An example cell for inspection: not the shortest, but one that shows something."""
        return self.example()

    def show(self, value: Any) -> str:
        """A cell in a report."""
        return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


class FileColumn(Column, slot=True):
    """Cells that are file names or file contents, decoded into arrays once, before rows are split."""

    unreadable: ClassVar[str]  # why a row is left out whose file cannot be read
    plural: ClassVar[str]
    needed: ClassVar[bool] = True

    @classmethod
    def marks(cls, parsed: Parsed, name: str, form: str) -> np.ndarray | None:
        return None

    @classmethod
    def describe(cls, facts: Facts) -> str:
        return ""

    @classmethod
    def decode(
        cls, frame: Frame, name: str, settings: Data, arrays: Arrays, *, given: StartModelConstraints, log: Log
    ) -> Decoded:
        """Decode each row's file into the arrays."""
        raise NotImplementedError

    def settle(self, decoded: Decoded, arrays: Arrays, kept: np.ndarray, train: np.ndarray) -> FileColumn:
        """Record which decoded rows were `kept`; returns the column fitted to those in `train`."""
        raise NotImplementedError

    def parse_cells(self, cells: pa.ChunkedArray, *, known: bool = False) -> ParsedCells:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = cells.type
        if not (is_words(kind) or pa.types.is_binary(kind)):
            return super().parse_cells(cells, known=known)
        return pc.if_else(pa.array(absent(cells)), pa.scalar(None, kind), cells.combine_chunks()), {}

    def is_missing(self, value: Any) -> bool:
        return is_none(value) or (isinstance(value, str | bytes) and not value)

    def arrow(self, values: list[Any], bad: dict[int, UserError]) -> pa.Array:
        """Paths unchanged; if the contents of some files are given, the contents of all."""
        import pyarrow as pa

        if not any(isinstance(value, bytes) for value in values):
            return pa.array(values, pa.string())
        for row, value in enumerate(values):
            if isinstance(value, str):
                try:
                    with open(value, "rb") as file:
                        values[row] = file.read()
                except OSError as error:
                    what = f"{value[-120:]!r} cannot be read ({error.strerror or error})"
                    bad[row] = UserError(what, where=self.name, fix="check the path")
                    values[row] = None
        return pa.array(values, pa.binary())


@dataclass
class Decoded:
    """The result of decoding a column of files."""

    column: FileColumn  # updated from the files, for example their size
    there: np.ndarray  # (N,): decoded
    broken: np.ndarray  # (N,): given, but unreadable
    same: np.ndarray  # (N,): equal numbers for equal contents
    first: str = ""  # the first that cannot be read, and why, where its row does not say it
    steps: ImageSteps | None = None  # how a new image is prepared


# ---------------------------------------------------------------- typed cells of new rows


def is_scalar(kind: pa.DataType) -> bool:
    """Whether an Arrow type is text, numeric or boolean."""
    from pyarrow import types

    return bool(is_words(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def absent(cells: pa.ChunkedArray, *, nones: bool = False) -> np.ndarray:
    """Mask of missing cells in a typed column; `nones` includes words for a missing number or date."""
    if is_words(cells.type):
        words = as_words(cells)
        said = [stands_for_none(clean_words(piece)).fill_null(True) for piece in pieces(words)] if nones else []
        lost: np.ndarray = words.is_null().to_numpy()
        return np.concatenate([part.to_numpy(zero_copy_only=False) for part in said]) | lost if said else lost
    return cells.is_null(nan_is_null=True).to_numpy()


def empty(frame: Frame, name: str) -> np.ndarray:
    """Mask of missing cells in a frame's column."""
    import pyarrow.compute as pc

    column = frame.column(name)
    if is_list(column.type):
        return pc.fill_null(pc.equal(pc.list_value_length(column), 0), True).to_numpy()
    if str(column.type) in ("binary", "large_binary"):
        return column.is_null().to_numpy()
    return as_words(column).is_null().to_numpy()
