"""Event files, read back by a decoder that shares nothing with the writer."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from anyformer.errors import UserError
from anyformer.training.display.tensorboard import crc32c, export, varint


def bitwise_crc32c(data: bytes) -> int:
    """The checksum by its definition: the remainder of a division of polynomials, bit by bit."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ 0x82F63B78 if remainder & 1 else remainder >> 1
    return remainder ^ 0xFFFFFFFF


def unmasked(stored: int) -> int:
    turned = (stored - 0xA282EAD8) % 2**32
    return (turned >> 17 | turned << 15) % 2**32


def records(data: bytes) -> list[bytes]:
    out, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (check,) = struct.unpack_from("<I", data, at + 8)
        assert unmasked(check) == bitwise_crc32c(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        (check,) = struct.unpack_from("<I", data, at + 12 + length)
        assert unmasked(check) == bitwise_crc32c(body)
        out.append(body)
        at += 16 + length
    assert at == len(data)
    return out


def fields(data: bytes) -> list[tuple[int, object]]:
    """The fields of a protobuf message: numbers, raw bytes of fixed width, or the bytes of a part."""
    out: list[tuple[int, object]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            out.append((key >> 3, number()))
            continue
        length = {1: 8, 5: 4}.get(key & 7) or number()
        out.append((key >> 3, data[at : at + length]))
        at += length
    return out


def decoded(path: Path) -> list[tuple[float, int, dict[str, float]]]:
    """Wall time, step and scalars of each event after the first."""
    first, *rest = map(dict, map(fields, records(path.read_bytes())))
    assert first[3] == b"brain.Event:2"
    out = []
    for event in rest:
        values = {}
        for number, value in fields(event[5]):
            assert number == 1
            parts = dict(fields(value))
            values[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
        out.append((struct.unpack("<d", event[1])[0], event[2], values))
    return out


def run_folder(path: Path, lines: list[dict], **facts) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"status": "done", "started": 1000.0, **facts}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


LINES = [
    {"step": 10, "loss": 2.5, "lr": 0.001, "seconds": 0.15, "tokens_per_s": 12345},
    {"step": 20, "loss": 2.25, "lr": 0.002, "seconds": 0.05, "tokens_per_s": 12345},
    {"step": 20, "eval": {"split": "valid", "loss": 2.0, "accuracy": 0.5, "labels": ["a"]}},
    {"step": 300, "loss": math.nan, "lr": 1e300, "seconds": 0.025},
]


@pytest.mark.quick
def test_a_run_reads_back_as_it_was_logged(tmp_path):
    path = export(run_folder(tmp_path / "run-a", LINES), tmp_path / "logs")
    assert path.parent == tmp_path / "logs" and "tfevents" in path.name
    events = decoded(path)
    assert [(wall, step) for wall, step, _ in events] == [(1001.5, 10), (1002.0, 20), (1002.0, 20), (1009.0, 300)]
    assert events[0][2] == pytest.approx(
        {"training/loss": 2.5, "training/lr": 0.001, "training/tokens_per_s": 12345, "training/seconds": 0.15}
    )
    assert events[2][2] == {"valid/loss": 2.0, "valid/accuracy": 0.5}
    assert math.isnan(events[3][2]["training/loss"]) and math.isinf(events[3][2]["training/lr"])


def test_the_same_run_gives_the_same_bytes(tmp_path):
    folder = run_folder(tmp_path / "run-a", LINES)
    first, second = (export(folder, tmp_path / name).read_bytes() for name in "ab")
    assert first == second
    assert [p.name for p in (tmp_path / "a").iterdir()] == [
        export(folder, tmp_path / "a").name
    ]  # replaced, not doubled


def test_speeds_from_their_own_file_are_there_too(tmp_path):
    folder = run_folder(tmp_path / "r", [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0}])
    (folder / "speed.jsonl").write_text('{"step": 2, "seconds": 2.0, "rows_per_s": 8.0}\n')
    assert decoded(export(folder, tmp_path / "logs")) == [
        (1002.0, 1, {"training/loss": 1.0}),
        (1004.0, 2, {"training/seconds": 2.0, "training/rows_per_s": 8.0, "training/loss": 1.0}),
    ]


def test_control_one_wrong_bit_is_seen(tmp_path):
    path = export(run_folder(tmp_path / "r", LINES), tmp_path / "logs")
    whole = path.read_bytes()
    for at in (3, 9, 20, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((AssertionError, struct.error)):
            decoded(path)


def test_checksums_and_numbers():
    for data in (b"", b"a", bytes(range(256)) * 3, b"123456789"):
        assert crc32c(data) == bitwise_crc32c(data)
    assert varint(300) == b"\xac\x02" and varint(0) == b"\0" and len(varint(-1)) == 10


def test_nothing_to_write_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no metrics yet"):
        export(run_folder(tmp_path / "r", []), tmp_path / "logs")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        export(run_folder(tmp_path / "q", LINES), tmp_path / "file" / "logs")
