"""Blocks of rows collected into one table: in memory if small, else in a memory-mapped file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.data.columns.arrow import as_type, common_type

if TYPE_CHECKING:
    import pyarrow as pa

LARGE = 64 * 2**20  # bytes of cells from which on a file is used


class Spool:
    """Collects blocks of rows into one table; blocks with different columns get their common schema."""

    def __init__(self, cache: Path | None, name: str) -> None:
        self.path = None if cache is None else cache / f"{name}.arrow"
        self.schema: pa.Schema | None = None
        self.held: list[pa.RecordBatch] = []
        self.bytes = 0
        self.writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add one block of rows."""
        if self.schema is None:
            self.schema = batch.schema
        elif batch.schema != self.schema:
            joint = common(self.schema, batch.schema)
            if joint != self.schema:
                self.change(joint)
            batch = fit_to_schema(batch, joint)
        if self.writer is not None:
            self.writer.write_batch(batch)
            return
        self.held.append(batch)
        self.bytes += batch.nbytes
        if self.path is not None and self.bytes > LARGE:
            self.to_disk(iter(self.held))
            self.held = []

    def to_disk(self, batches: Iterator[pa.RecordBatch]) -> None:
        import pyarrow as pa

        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.writer = pa.ipc.new_file(str(self.part), self.schema)
        for batch in batches:
            self.writer.write_batch(batch)

    @property
    def part(self) -> Path:
        assert self.path is not None
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")

    def change(self, schema: pa.Schema) -> None:
        """Convert all earlier blocks to another schema."""
        import pyarrow as pa

        self.schema = schema
        if self.writer is None:
            self.held = [fit_to_schema(batch, schema) for batch in self.held]
            return
        self.writer.close()
        earlier = self.part.with_suffix(".old")
        os.replace(self.part, earlier)
        with pa.memory_map(str(earlier)) as file:
            reader = pa.ipc.open_file(file)
            self.to_disk(fit_to_schema(reader.get_batch(i), schema) for i in range(reader.num_record_batches))
        earlier.unlink()

    def table(self) -> pa.Table:
        """All rows."""
        import pyarrow as pa

        assert self.schema is not None, "a spool without any block"
        if self.writer is None:
            return pa.Table.from_batches(self.held, schema=self.schema)
        assert self.path is not None
        self.writer.close()
        os.replace(self.part, self.path)
        return pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()

    def drop(self) -> None:
        """Remove everything after an error."""
        if self.writer is not None:
            self.writer.close()
            self.part.unlink(missing_ok=True)


def common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of both, the first one's in front, in types that hold the values of both."""
    import pyarrow as pa

    types = {field.name: field.type for field in one}
    for field in other:
        types[field.name] = common_type(types[field.name], field.type) if field.name in types else field.type
    return pa.schema([pa.field(name, kind) for name, kind in types.items()])


def fit_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with the columns and types of a schema."""
    import pyarrow as pa

    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        columns.append(pa.nulls(batch.num_rows, field.type) if at < 0 else as_type(batch.column(at), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
