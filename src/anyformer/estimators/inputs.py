"""Convert X to a frame: arrays without names, tables with names, texts, images; files are left as they are."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.files.tables import frame_of
from anyformer.data.frame import Frame
from anyformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("pandas", "polars", "pyarrow")
SERIES = ("Series", "ChunkedArray", "StringArray", "Array")


def files_of(given: Any) -> list[Path] | None:
    """The files that X names, or None where X is data."""
    if isinstance(given, str | Path):
        return [Path(given)]
    if isinstance(given, list | tuple) and given and all(isinstance(item, Path) for item in given):
        return list(given)
    return None


def is_table(given: Any) -> bool:
    """Whether X has columns with names."""
    owner = type(given).__module__.partition(".")[0]
    if isinstance(given, Frame | Mapping):
        return owner != "scipy"  # scipy's DOK matrix is a dictionary
    if owner in TABLES:
        return type(given).__name__ not in SERIES
    return isinstance(given, list | tuple) and len(given) > 0 and isinstance(given[0], Mapping)


def holds_words(given: Any) -> bool:
    """Whether an array or list of rows has text cells."""
    if isinstance(given, np.ndarray):
        if given.dtype.kind in "US":
            return True
        return given.dtype == object and any(isinstance(cell, str) for cell in given.flat)
    if isinstance(given, list | tuple):
        return any(isinstance(row, list | tuple) and any(isinstance(cell, str) for cell in row) for row in given)
    return False


def of_numbers(array: np.ndarray, names: Sequence[str]) -> Frame:
    """A matrix as a frame."""
    return frame_of({name: array[:, at] for at, name in enumerate(names)})


def of_cells(given: Any) -> Frame:
    """Unnamed rows with text cells, as columns x0, x1, ..."""
    array = np.asarray(given, dtype=object)
    if array.ndim != 2:
        raise UserError(f"X has {array.ndim} axes", where="X", fix="give rows and columns: two axes")
    return frame_of({f"x{at}": array[:, at] for at in range(array.shape[1])})


def of_list(given: Any, name: str) -> Frame:
    """A plain list (of texts, of sentences) as a frame of one column."""
    if isinstance(given, np.ndarray):
        if given.ndim == 2 and given.shape[1] == 1:
            given = given[:, 0]
        if given.ndim != 1:
            raise UserError(f"X has {given.ndim} axes", where="X", fix=f"give a list, one {name} a row")
    cells = list_values(given)
    if not cells:
        raise UserError("0 sample(s), where at least 1 is needed", where="X", fix="give at least one row")
    return frame_of({name: cells})


def of_pictures(given: Any) -> Frame:
    """Paths, or arrays (rows, height, width[, channels]) of bytes, as a frame of one column."""
    cells = list_values(given)
    if not cells:
        raise UserError("0 sample(s), where at least 1 is needed", where="X", fix="give at least one image")
    if isinstance(cells[0], str | Path):
        return frame_of({"image": [str(path) for path in cells]})
    import pyarrow as pa

    return frame_of(
        pa.table({"image": pa.array([pack_image(cell, row) for row, cell in enumerate(cells)], pa.binary())})
    )


def pack_image(cell: Any, row: int) -> bytes:
    """An image array encoded as a file's bytes."""
    if isinstance(cell, bytes):
        return cell
    from anyformer.data.files.open_text import import_pyarrow

    import_pyarrow("X")
    from PIL import Image

    pixels = np.asarray(cell)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3)):
        raise UserError(
            f"an array of {pixels.dtype} {pixels.shape} is not a picture", where=f"X row {row}",
            fix="give uint8 arrays of (height, width) or (height, width, 3), or paths",
        )  # fmt: skip
    sink = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels).save(sink, "PNG")
    return sink.getvalue()


def list_values(given: Any) -> list[Any]:
    """The values of a list, array or series."""
    if isinstance(given, np.ndarray):
        return list(given) if given.ndim > 1 else given.tolist()
    if type(given).__module__.partition(".")[0] == "pyarrow":
        return given.to_pylist()
    if isinstance(given, str | bytes) or given is None:
        raise UserError(f"X is {type(given).__name__}, not a list", where="X", fix="write [text]")
    return list(given)


def with_column(frame: Frame, name: str, column: pa.Array) -> Frame:
    """The frame with one more column of the same length."""
    if len(column) != len(frame):
        raise UserError(
            f"Found input variables with inconsistent numbers of samples: [{len(frame)}, {len(column)}]",
            where="y", fix="give one target a row",
        )  # fmt: skip
    return replace(frame, table=frame.table.append_column(name, column))


def free_name(names: Sequence[str], wanted: str = "target") -> str:
    """An unused column name."""
    while wanted in names:
        wanted += "_"
    return wanted


def only(frame: Frame, read: Sequence[str], known: Sequence[str], targets: Sequence[str]) -> Frame:
    """The columns of a table that a fitted model reads; unknown and missing columns are errors."""
    lost = [name for name in read if name not in frame.names]
    strange = [name for name in frame.names if name not in known and name not in targets]
    if lost or strange:
        said = [f"seen at fit time, yet now missing: {name}" for name in lost[:5]]
        said = [f"unseen at fit time: {name}" for name in strange[:5]] + said
        raise UserError(
            f"The feature names should match those that were passed during fit. Feature names {said[0]}", where="X",
            fix=did_you_mean((strange or lost)[0], [name for name in known if name not in frame.names] or known),
            details=said,
        )  # fmt: skip
    return frame
