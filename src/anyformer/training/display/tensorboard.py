"""A run's metrics as a TensorBoard event file, written byte by byte.

torch.utils.tensorboard needs a package that none of our extras installs, and timestamps its files with the time of
writing.

The file is a sequence of records: length, checksum of the length, data, checksum of the data. The data is one protobuf
message `Event`: wall_time = 1 (double), step = 2 (int64), file_version = 3 (text), summary = 5; a summary holds
value = 1, and that tag = 1 (text) and simple_value = 2 (float).
"""

from __future__ import annotations

import struct
from pathlib import Path

from anyformer.errors import UserError
from anyformer.safe_files import replace_file
from anyformer.training.run.history import figures_of, history, numeric, open_run

VERSION = "brain.Event:2"
POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed
BYTES, FLOAT, DOUBLE, NUMBER = 2, 5, 1, 0  # wire types of protobuf


def _table() -> tuple[int, ...]:
    out = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
        out.append(byte)
    return tuple(out)


TABLE = _table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def mask_checksum(data: bytes) -> bytes:
    """The masked checksum of the TFRecord format: rotated and offset, so that data containing checksums is safe."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """One framed record."""
    length = struct.pack("<Q", len(data))
    return length + mask_checksum(length) + data + mask_checksum(data)


def varint(value: int) -> bytes:
    """A protobuf varint; a negative number as its 64-bit two's complement."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def part(number: int, kind: int, data: bytes) -> bytes:
    """One encoded field of a message."""
    return varint(number << 3 | kind) + (varint(len(data)) if kind == BYTES else b"") + data


def scalars(wall: float, step: int, values: dict[str, float]) -> bytes:
    """An event with these scalars."""
    summary = b"".join(
        part(1, BYTES, part(1, BYTES, tag.encode()) + part(2, FLOAT, as_float(value))) for tag, value in values.items()
    )
    return part(1, DOUBLE, struct.pack("<d", wall)) + part(2, NUMBER, varint(step)) + part(5, BYTES, summary)


def as_float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # beyond float32
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def export(run_folder: Path | str, log_dir: Path | str) -> Path:
    """Write the metrics of a run as one event file into `log_dir`; the same run gives the same bytes."""
    folder, target = Path(run_folder), Path(log_dir)
    found, lines = open_run(folder), history(folder)
    if not lines.steps and not lines.evals:
        raise UserError("no metrics yet", where=str(folder), fix="wait for its first steps, or name another run")
    start = found.started.timestamp() if found.started else 0.0
    events = [part(1, DOUBLE, struct.pack("<d", start)) + part(3, BYTES, VERSION.encode())]
    clock, before = start, 0
    evals = list(lines.evals)
    for line in lines.steps:
        while evals and evals[0]["step"] < line["step"]:
            events.append(evaluation_event(evals.pop(0), clock))
        values = figures_of(lines.speed.get(line["step"], {})) | figures_of(line)
        step = int(values.pop("step"))
        seconds = values.get("seconds", numeric(lines.speed_of(step).get("seconds")) or 0.0)
        clock, before = clock + max(0.0, seconds * (step - before)), step
        events.append(scalars(clock, step, {f"training/{name}": value for name, value in values.items()}))
    events += [evaluation_event(line, clock) for line in evals]
    file = target / f"events.out.tfevents.{int(start):010d}.{found.id}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        replace_file(file, b"".join(map(record, events)))
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror})", where=str(target), fix="give another folder") from None
    return file


def evaluation_event(line: dict, clock: float) -> bytes:
    """An evaluation as an event."""
    split = str(line["eval"].get("split") or "validation")
    return scalars(clock, int(line["step"]), {f"{split}/{k}": v for k, v in figures_of(line["eval"]).items()})
