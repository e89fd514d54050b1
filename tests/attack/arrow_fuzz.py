"""Damaged Arrow, Feather and Parquet files: each is read as it is or refused in one line; no process dies of one.

`fuzz` makes one file of each kind, damages copies of it at random, and lets a forked process read each copy as the
library does and then look at every cell. A try is bad when the process dies, takes too long, or meets an error that is
not the user's.

    python -m tests.attack.arrow_fuzz --count 2000 --seed 0
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 60.0  # seconds for one file
TOGETHER = 50  # files read by one process, while none of them kills it


@dataclass
class Row:
    """What became of the copies of one file."""

    kind: str
    tries: int = 0
    endings: Counter[str] = field(default_factory=Counter)  # read, refused
    bad: list[str] = field(default_factory=list)


def fuzz(count: int, seed: int = 0, *, read: Callable[[Path], str] | None = None) -> list[Row]:
    """`count` damaged files in all, the kinds in turn; `read` stands for the library's way, for controls."""
    with tempfile.TemporaryDirectory(prefix="arrow-fuzz-") as name:
        folder = Path(name)
        whole = sorted(make_files(folder / "whole"))
        tries = []
        for number in range(count):
            path = whole[number % len(whole)]
            target = folder / f"{number}-{path.name}"
            target.write_bytes(damaged(path.read_bytes(), random.Random(f"{seed} {number}")))
            tries.append((path.name, target))
        endings = outcomes([path for _, path in tries], read or read_all)
    rows: dict[str, Row] = {}
    for (kind, path), ending in zip(tries, endings, strict=True):
        row = rows.setdefault(kind, Row(kind))
        row.tries += 1
        if ending in ("read", "refused"):
            row.endings[ending] += 1
        else:
            row.bad.append(f"seed {seed}, {path.name.partition('-')[0]}: {ending}")
    return list(rows.values())


# ---------------------------------------------------------------- damage


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A copy with one to four kinds of damage."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        chance.choice((flip, flip, overwrite, number, blank, move, cut))(made, chance)
    return bytes(made)


def spot(data: bytearray, chance: random.Random) -> int:
    """A place in the file; half of the time near one of its ends, where the description of the rest stands."""
    ends = chance.choice((None, None, "front", "back"))
    near = min(len(data), 2000)
    if ends is None:
        return chance.randrange(len(data))
    return chance.randrange(near) if ends == "front" else len(data) - 1 - chance.randrange(near)


def flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 8)):
        data[spot(data, chance)] ^= 1 << chance.randrange(8)


def overwrite(data: bytearray, chance: random.Random) -> None:
    at = spot(data, chance)
    stop = min(len(data), at + chance.randint(1, 64))
    data[at:stop] = chance.randbytes(stop - at)


def number(data: bytearray, chance: random.Random) -> None:
    """A length or an offset that says something else."""
    value = chance.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63), chance.getrandbits(62)))
    size = chance.choice((4, 8))
    at = max(0, min(len(data) - size, spot(data, chance) // 4 * 4))
    data[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")


def blank(data: bytearray, chance: random.Random) -> None:
    at = spot(data, chance)
    stop = min(len(data), at + chance.randint(1, 4096))
    data[at:stop] = bytes([chance.choice((0, 255))]) * (stop - at)


def move(data: bytearray, chance: random.Random) -> None:
    size = min(len(data) // 2, chance.randint(1, 1024))
    one, two = spot(data, chance), spot(data, chance)
    part = bytes(data[one : one + size])
    data[two : two + len(part)] = part


def cut(data: bytearray, chance: random.Random) -> None:
    at = spot(data, chance)
    del data[at : at + chance.choice((1, 8, 64, len(data)))]
    data += bytes(max(0, 16 - len(data)))


# ---------------------------------------------------------------- reading


def read_all(path: Path) -> str:
    """Read a file as `train` and `predict` do, and look at every cell."""
    from anyformer.data.columns.cells import texts
    from anyformer.data.columns.look import look
    from anyformer.data.files.tables import read
    from anyformer.data.settings import Format
    from anyformer.errors import UserError

    try:
        frame = read([path], Format(), cache=None)
        look(frame, {})
        for name in frame.names:
            texts(frame.column(name))
    except UserError as error:
        assert "\n" not in error.line and len(error.line) < 600, error.line
        return "refused"
    return "read"


def outcomes(paths: Sequence[Path], read: Callable[[Path], str]) -> list[str]:
    """How each reading ended; a process that dies takes only the file at fault with it."""
    found: list[str] = []
    while len(found) < len(paths):
        found += batch(paths[len(found) : len(found) + TOGETHER], read)
    return found


def batch(paths: Sequence[Path], read: Callable[[Path], str]) -> list[str]:
    """The endings of the files up to the one that killed the process, or of all of them."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        faulthandler.disable()  # a death is counted, not told at length
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)
        for path in paths:
            signal.alarm(int(PATIENCE))
            try:
                ending = read(path)
            except BaseException as error:
                ending = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            os.write(theirs, (ending + "\n").encode("utf-8", "replace"))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, encoding="utf-8") as pipe:
        found = pipe.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if len(found) < len(paths):
        found.append(f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}")
    return found


# ---------------------------------------------------------------- files


def make_files(folder: Path) -> list[Path]:
    """One file of each kind, some hundred rows each."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import feather

    folder.mkdir(parents=True)
    plain, nested = plain_rows(), nested_rows()
    both = pa.table(plain.columns + nested.columns, names=plain.column_names + nested.column_names)
    for name, table in (("plain", plain), ("nested", nested), ("both", both)):
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        stream = folder / f"{name}-stream.arrow"
        with pa.OSFile(str(stream), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        for packing in ("lz4", "zstd"):
            feather.write_feather(table, str(folder / f"{name}-{packing}.feather"), compression=packing)
    flat = pa.table({name: both[name] for name in both.column_names if name not in ("union", "view")})
    for packing in ("none", "snappy", "zstd"):
        pq.write_table(flat, str(folder / f"{packing}.parquet"), compression=packing, row_group_size=120)
    pq.write_table(plain, str(folder / "plain.parquet"), use_dictionary=False, data_page_version="2.0")
    return list(folder.iterdir())


def plain_rows() -> object:
    """Numbers, texts, truths, moments and categories, some missing."""
    import datetime

    import pyarrow as pa

    rows = range(300)
    day = datetime.datetime(2020, 1, 1)
    return pa.table({
        "whole": pa.array([None if at % 11 == 0 else at for at in rows], pa.int64()),
        "number": pa.array([at / 7 for at in rows], pa.float32()),
        "text": pa.array([None if at % 7 == 0 else "word " * (at % 5) for at in rows], pa.string()),
        "large": pa.array([f"größe {at}" for at in rows], pa.large_string()),
        "truth": pa.array([at % 3 == 0 for at in rows]),
        "when": pa.array([day + datetime.timedelta(hours=at) for at in rows], pa.timestamp("us")),
        "kind": pa.array([("red", "green", "blue")[at % 3] for at in rows]).dictionary_encode(),
        "price": pa.array([None if at % 5 == 0 else at for at in rows], pa.decimal128(12, 2)),
        "bytes": pa.array([bytes([at % 256]) * (at % 4) for at in rows], pa.binary()),
    })  # fmt: skip


def nested_rows() -> object:
    """Lists, structures, maps, a union, lists of structures and texts by reference."""
    import pyarrow as pa

    rows = range(300)
    union = pa.UnionArray.from_sparse(pa.array([at % 2 for at in rows], pa.int8()),
                                      [pa.array(list(rows)), pa.array([str(at) for at in rows])])  # fmt: skip
    return pa.table({
        "list": pa.array([None if at % 13 == 0 else list(range(at % 5)) for at in rows], pa.list_(pa.int32())),
        "struct": pa.array([{"a": at, "b": str(at)} for at in rows]),
        "map": pa.array([[("k", at)] for at in rows], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([[{"x": [at], "y": "z" * (at % 3)}] for at in rows]),
        "fixed": pa.array([[at, at + 1] for at in rows], pa.list_(pa.float32(), 2)),
        "union": union,
        "view": pa.array([f"a longer text, number {at}" for at in rows], pa.string_view()),
    })  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Print one line a kind of file; 1 where any try was bad."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    started = time.monotonic()
    rows = fuzz(given.count, given.seed)
    for row in rows:
        ended = ", ".join(f"{count} {name}" for name, count in sorted(row.endings.items()))
        os.write(1, f"{row.kind}: {row.tries} files, {ended}, {len(row.bad)} bad\n".encode())
        for line in row.bad[:10]:
            os.write(1, f"  {line}\n".encode())
    tries, bad = sum(row.tries for row in rows), sum(len(row.bad) for row in rows)
    os.write(1, f"all: {tries} files, {bad} bad, {time.monotonic() - started:.0f} s\n".encode())
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
