"""A damaged Arrow, Feather or Parquet file is read or refused; `tests.attack.arrow_fuzz` tries thousands."""

from __future__ import annotations

from pathlib import Path

from tests.attack.arrow_fuzz import fuzz

COUNT = 320


def believing(path: Path) -> str:
    """The control: what the file says is believed, as pyarrow does unless it is asked to look."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
        else:
            opening = pa.ipc.open_stream if "stream" in path.name else pa.ipc.open_file
            table = opening(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError, KeyError, ValueError, OverflowError):
        return "refused"
    table.to_pylist()
    return "read"


def test_damaged_files_are_refused() -> None:
    rows = fuzz(COUNT, seed=1)
    assert sum(row.tries for row in rows) == COUNT
    assert not [line for row in rows for line in row.bad]
    refused = sum(row.endings["refused"] for row in rows)
    assert refused > COUNT / 2 and refused < COUNT  # the damage is felt, and some of it does no harm


def test_control_believing_a_damaged_file_goes_wrong() -> None:
    assert [line for row in fuzz(COUNT, seed=1, read=believing) for line in row.bad]
