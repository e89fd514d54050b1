"""New rows for a trained model: each cell by itself into the kind its column was fitted as, or an error that names it.

The command line, Python, the estimators and the server all read their rows here, so that one row has one answer
wherever it is asked for. Nothing of a row depends on the rows beside it.
"""

from __future__ import annotations

import datetime
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.columns.cells import is_list, texts, worded
from anyformer.data.columns.convert import MISSING, NUMBER, days, is_words, numbers
from anyformer.data.columns.fitted import Category, Column, Date, Image, Number, Sentence, Sound, Text
from anyformer.data.frame import Frame, Source
from anyformer.data.images.decoding import pillow
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

KINDS: dict[type[Column], str] = {
    Number: "a number", Category: "a text", Date: "a date", Text: "a text", Sentence: "a list of words",
    Image: "an image", Sound: "a recording",
}  # fmt: skip
DATES = {
    "iso": "2026-01-31", "y/m/d": "2026/01/31", "d.m.y": "31.01.2026", "d/m/y": "31/01/2026", "m/d/y": "01/31/2026",
}  # fmt: skip
SAMPLES = "give the path or the bytes of a WAV file: samples alone do not say how many there are a second"
WRITTEN_NUMBER = re.compile(NUMBER, re.ASCII)


@dataclass
class NewRows:
    """Rows in the kinds their columns were fitted as; a bad row has empty cells, and an error that names a column."""

    frame: Frame
    bad: dict[int, UserError] = field(default_factory=dict)


def kind_of(column: Column) -> str:
    """What a cell of a column is, in words."""
    return next(said for kind, said in KINDS.items() if isinstance(column, kind))


def listed(columns: Iterable[Column], most: int = 8) -> str:
    """The columns a row has, with what each of them is."""
    said = [f"{column.name} ({kind_of(column)})" for column in columns]
    return ", ".join(said[:most]) + (f" and {len(said) - most} more" if len(said) > most else "")


# ---------------------------------------------------------------- rows


def parse_table(frame: Frame, preprocess: Preprocess) -> NewRows:
    """The rows of a table that has all columns of the model, those to predict too where they are there."""
    import pyarrow as pa

    made, bad = {}, dict[int, UserError]()
    for column in preprocess.columns or ():
        cells = frame.column(column.name)
        made[column.name], wrong = parse_cells(cells, column, known=preprocess.unknown == "error")
        bad = wrong | bad  # the first column's error is told
    refuse_nothing(made, preprocess, bad)
    targets = preprocess.target.names if preprocess.target else ()
    made |= {name: frame.column(name) for name in targets if name in frame.names and name not in made}
    return NewRows(replace(frame, table=pa.table(made)), bad)


def parse_rows(rows: Sequence[Any], preprocess: Preprocess, *, extra: bool = True) -> NewRows:
    """Rows as Python and JSON have them: objects by column, lists in the order of the columns, or one cell alone.

    `extra` allows entries that the model does not know.
    """
    import pyarrow as pa

    columns = preprocess.columns or ()
    found: list[Mapping[str, Any]] = []
    bad: dict[int, UserError] = {}
    for at, row in enumerate(rows):
        try:
            found.append(named_cells(row, preprocess, extra=extra))
        except UserError as error:
            bad[at] = error
            found.append({})
    made = {}
    for column in columns:
        cells = [row.get(column.name) for row in found]
        made[column.name], wrong = parse_values(cells, column, known=preprocess.unknown == "error")
        bad = wrong | bad
    refuse_nothing(made, preprocess, bad)
    return NewRows(Frame(pa.table(made), (Source("rows", rows=len(rows)),)), bad)


def named_cells(row: Any, preprocess: Preprocess, *, extra: bool = True) -> Mapping[str, Any]:
    """The cells of one row by column; a model of one column takes its cell bare too."""
    columns = {column.name: column for column in preprocess.columns or ()}
    lone = next(iter(columns)) if len(columns) == 1 else None
    if isinstance(row, list | tuple | np.ndarray) and lone is None and len(row) == len(columns):
        row = dict(zip(columns, row, strict=True))
    if not isinstance(row, Mapping):
        if lone is None:
            raise UserError(f"a row is {shown(row)}", fix=f"give an object with {listed(columns.values())}")
        row = {lone: row}
    answers = preprocess.target.names if preprocess.target else ()
    for name in row if not extra else ():
        # The column that is predicted may stand in a row as it does in a file; it is not looked at.
        if name not in columns and name not in answers:
            raise UserError(f"there is no column {str(name)[:40]!r}", fix=did_you_mean(str(name)[:40], columns))
    lost = [name for name in columns if name not in row]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        near = did_you_mean(lost[0], [str(name) for name in row if name not in columns] or columns)
        none = f"give {kind_of(columns[lost[0]])}" if lone is not None else "give null (None) where it is not known"
        raise UserError(f"the column {lost[0]!r}{more} is missing", fix=near if "did you mean" in near else none)
    return row


def refuse_nothing(made: Mapping[str, Any], preprocess: Preprocess, bad: dict[int, UserError]) -> None:
    """Where a row is one image, recording or sentence, nothing is left to look at without it."""
    if len(made) != 1 or not preprocess.of(Image, Sound, Sentence):
        return
    ((name, cells),) = made.items()
    for row in np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False)).tolist():
        kind = kind_of((preprocess.columns or ())[0])
        bad.setdefault(row, UserError("the row is empty", where=name, fix=f"give {kind}"))


def placed(error: UserError, frame: Frame, row: int) -> UserError:
    """The error of a row with the place of the row: `rows[3].size`, or `cars.csv row 7, size` of a file."""
    if frame.sources and frame.sources[0].path:
        where = frame.place(row) + (f", {error.where}" if error.where else "")
        return UserError(error.what, where=where, fix=error.fix)
    return error.inside(f"rows[{row}]")


# ---------------------------------------------------------------- the cells of a column

Parsed = tuple[Any, dict[int, UserError]]  # an Arrow array, and the rows whose cell cannot be read


def parse_cells(cells: pa.ChunkedArray, column: Column, *, known: bool = False) -> Parsed:
    """A column of a table. What has a type of its own is read all at once; the cells are still read one by one."""
    import pyarrow as pa

    kind = cells.type
    if pa.types.is_dictionary(kind):
        cells, kind = cells.cast(kind.value_type), kind.value_type
    scalar = is_words(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if isinstance(column, Number) and scalar:
        values = numbers(cells)
        if pa.types.is_floating(kind):
            infinite = np.isinf(cells.to_numpy())
        else:
            infinite = np.isnan(values) & ~absent(cells)
        return pa.array(values, from_pandas=True), wrong_cells(cells, np.flatnonzero(infinite), column)
    if isinstance(column, Category) and scalar:
        words = worded(cells).combine_chunks()
        strange = unknown_words(words, column) if known else ()
        return words, {row: unknown(words[row].as_py(), column) for row in strange}
    if isinstance(column, Date) and (is_words(kind) or pa.types.is_temporal(kind)):
        moments = days(cells, column.form or "iso")
        odd = np.isnat(moments) & ~absent(cells)
        return pa.array(moments), wrong_cells(cells, np.flatnonzero(odd), column)
    if isinstance(column, Text) and (scalar or (is_list(kind) and is_words(kind.value_type))):
        return pa.array(texts(cells), pa.string()), {}
    if isinstance(column, Image | Sound) and (is_words(kind) or pa.types.is_binary(kind)):
        empty = pa.array(absent(cells))
        return pa.compute.if_else(empty, pa.scalar(None, kind), cells.combine_chunks()), {}
    return parse_values(cells.to_pylist(), column, known=known)


def absent(cells: pa.ChunkedArray) -> np.ndarray:
    """Which cells of a typed column hold nothing."""
    if is_words(cells.type):
        return worded(cells).is_null().to_numpy()
    return cells.is_null(nan_is_null=True).to_numpy()


def wrong_cells(cells: Any, rows: np.ndarray, column: Column) -> dict[int, UserError]:
    return {row: wrong(cells[row].as_py(), column) for row in rows.tolist()}


def unknown_words(words: Any, column: Category) -> list[int]:
    """The rows whose word training did not have."""
    import pyarrow as pa

    ids = column.encode(pa.chunked_array([words]))
    return [int(row) for row in np.flatnonzero(ids == column.count - 1)]


def parse_values(values: Sequence[Any], column: Column, *, known: bool = False) -> Parsed:
    """Values of any type, each read by itself."""
    import pyarrow as pa

    if isinstance(column, Date):
        return parse_dates(values, column)
    parse = PARSERS[type(column)]
    made: list[Any] = []
    bad: dict[int, UserError] = {}
    for row, value in enumerate(values):
        value = own_value(value)
        try:
            made.append(None if is_missing(value, column) else parse(value, column))
        except UserError as error:
            bad[row] = error
            made.append(None)
    if isinstance(column, Category) and known:
        words = pa.array(made, pa.string())
        bad |= {row: unknown(made[row], column) for row in unknown_words(words, column)}
    if isinstance(column, Image | Sound):
        return files_array(made, column, bad), bad
    types = {Number: pa.float64(), Sentence: pa.list_(pa.string())}
    return pa.array(made, types.get(type(column), pa.string())), bad


def own_value(value: Any) -> Any:
    """A value as Python's own; what numpy and pandas have for a missing one is None."""
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else value.astype("datetime64[us]").item()
    if isinstance(value, np.generic):
        return value.item()
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def is_missing(value: Any, column: Column) -> bool:
    """Whether a cell holds nothing, as training takes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    if isinstance(column, Sentence):
        return isinstance(value, str | list | tuple | np.ndarray) and not len(value)
    if isinstance(column, Image | Sound):
        return isinstance(value, str | bytes) and not value
    return isinstance(value, str) and value.strip() in MISSING


def wrong(value: Any, column: Column) -> UserError:
    """The error of a cell that cannot be read."""
    kind = kind_of(column)
    if isinstance(column, Date):
        return UserError(f"{shown(value)} is not a date as the model was trained on", where=column.name,
                         fix=f"write it as {DATES.get(column.form, DATES['iso'])}")  # fmt: skip
    return UserError(f"{shown(value)} is not {kind}", where=column.name, fix=f"give {kind}")


def unknown(word: str, column: Category) -> UserError:
    """The error of a value that training did not have, where that was asked for."""
    what = f"{word[:40]!r} is not among the {column.count - 1} values of the training rows"
    return UserError(what, where=column.name, fix=did_you_mean(word[:40], column.values or ()))


def shown(value: Any) -> str:
    """A value in a message, short."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, np.ndarray):
        return f"an array {value.shape}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return "null" if value is None else repr(value)[:40]


# ---------------------------------------------------------------- one cell


def parse_number(value: Any, column: Column) -> float:
    if isinstance(value, str):
        text = value.strip()
        if not WRITTEN_NUMBER.fullmatch(text):
            raise wrong(value, column)
        value = float(text)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise wrong(value, column)
    try:
        found = float(value)
    except OverflowError:
        raise wrong(value, column) from None
    if not math.isfinite(found):
        raise wrong(value, column)
    return found


def parse_word(value: Any, column: Column) -> str:
    """A text; a number or truth as training wrote it."""
    import pyarrow as pa

    if isinstance(value, str):
        return spelled(value, column.name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, bool | float | Decimal) or not math.isfinite(value):
        raise wrong(value, column)
    return str(worded(pa.chunked_array([pa.array([value])]))[0].as_py())


def parse_text(value: Any, column: Column) -> str:
    """A text, or a list of its words."""
    if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        return spelled(" ".join(value), column.name)
    return parse_word(value, column)


def parse_sentence(value: Any, column: Column) -> list[str]:
    """A list of words; a text is cut at its spaces."""
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple | np.ndarray) or not all(isinstance(word, str) for word in words):
        raise wrong(value, column)
    if not len(words):
        raise wrong(value, column)
    return [spelled(str(word), column.name) for word in words]


def spelled(text: str, where: str = "") -> str:
    """A text that can be written down: half a pair of surrogates, which JSON can say, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"character {error.start + 1} is half of a pair", where=where, fix="give whole text") from None
    return text


def parse_image(value: Any, column: Column) -> str | bytes:
    """A path or the bytes of an image file; pixels in memory become such bytes, none of them changed."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    try:
        return image_bytes(value)
    except (TypeError, ValueError, OSError):
        fix = "give a path, the bytes of a file, or uint8 pixels (height, width[, 3])"
        raise UserError(f"{shown(value)} is not an image", where=column.name, fix=fix) from None


def image_bytes(value: Any) -> bytes:
    """Pixels of pillow or numpy as the bytes of a file that loses none; ValueError or TypeError where they are none."""
    module = pillow()
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in (1, 3, 4)):
            raise ValueError("no uint8 pixels")
        value = module.fromarray(value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value)
    if not isinstance(value, module.Image):
        raise TypeError("no pixels")
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(value)  # the note of a camera does not go into every kind of file
    sink = io.BytesIO()
    upright.save(sink, "TIFF" if upright.mode in ("CMYK", "F", "YCbCr", "LAB") else "PNG")
    return sink.getvalue()


def parse_recording(value: Any, column: Column) -> str | bytes:
    """A path, or the bytes of a file of sound."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise UserError(f"{shown(value)} is not a recording", where=column.name, fix=SAMPLES)


PARSERS: dict[type[Column], Callable[[Any, Column], Any]] = {
    Number: parse_number, Category: parse_word, Text: parse_text, Sentence: parse_sentence, Image: parse_image,
    Sound: parse_recording,
}  # fmt: skip


def parse_dates(values: Sequence[Any], column: Date) -> Parsed:
    """Texts in the form that training had, and days and moments of Python."""
    import pyarrow as pa

    values = [own_value(value) for value in values]
    written = [value if isinstance(value, str) and not is_missing(value, column) else None for value in values]
    moments = days(pa.chunked_array([pa.array(written, pa.string())]), column.form or "iso").copy()
    bad: dict[int, UserError] = {}
    for row, value in enumerate(values):
        if isinstance(value, datetime.datetime):
            if value.tzinfo is not None:
                value = value.astimezone(datetime.UTC).replace(tzinfo=None)
            moments[row] = np.datetime64(value, "s")
        elif isinstance(value, datetime.date):
            moments[row] = np.datetime64(value, "s")
        elif not is_missing(value, column) and np.isnat(moments[row]):
            bad[row] = wrong(value, column)
    return pa.array(moments), bad


def files_array(values: list[Any], column: Column, bad: dict[int, UserError]) -> pa.Array:
    """Paths as they are; where the bytes of some files are given, those of all."""
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
                bad[row] = UserError(what, where=column.name, fix="check the path")
                values[row] = None
    return pa.array(values, pa.binary())
