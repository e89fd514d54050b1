"""IDX files, the format of MNIST: a header of four bytes, the sizes, then plain bytes."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from anyformer.data.files.open_text import packing, present, read_up_to, unpack_stream
from anyformer.errors import UserError

BYTES = 8  # element type uint8; images do not use the others
MOST = 2**33  # bytes of one file, uncompressed
AGAIN = "download it again"


@dataclass(frozen=True)
class IdxHeader:
    """The header of an IDX file."""

    shape: tuple[int, ...]
    packed: str

    @property
    def size(self) -> int:
        return 4 + 4 * len(self.shape)


def idx_head(path: Path) -> IdxHeader | None:
    """The header of an IDX file of bytes, or None for any other file."""
    with path.open("rb") as file:
        packed = packing(file.read(8))
    with path.open("rb") as file, unpack_stream(cast(BinaryIO, file), packed, path.name, path.stat().st_size) as raw:
        first = read_up_to(raw, 4)
        if len(first) < 4 or first[:2] != b"\0\0" or first[2] != BYTES or not 1 <= first[3] <= 4:
            return None
        sizes = read_up_to(raw, 4 * first[3])
        if len(sizes) < 4 * first[3]:
            return None
        return IdxHeader(struct.unpack(f">{first[3]}I", sizes), packed)


def read_idx(path: Path) -> np.ndarray:
    """The array of an IDX file; a plain file is memory-mapped, a compressed one read into memory."""
    there = present(path).stat()
    return read_once(path, there.st_size, there.st_mtime_ns)


@lru_cache(maxsize=4)  # the four files of the usual set: decompressing is the slowest part
def read_once(path: Path, size: int, changed: int) -> np.ndarray:
    head = idx_head(path)
    if head is None:
        raise UserError("not an IDX file of bytes", where=path.name, fix=AGAIN)
    wanted = math.prod(head.shape)
    if wanted > MOST:
        raise UserError(f"its head speaks of {wanted:,} bytes", where=path.name, fix=AGAIN)
    if not head.packed:
        there = path.stat().st_size - head.size
        if there == wanted:
            return np.memmap(path, np.uint8, "r", head.size, head.shape) if wanted else np.zeros(head.shape, np.uint8)
    else:
        with (
            path.open("rb") as file,
            unpack_stream(cast(BinaryIO, file), head.packed, path.name, path.stat().st_size) as raw,
        ):
            data = read_up_to(raw, head.size + wanted + 1)
        there = len(data) - head.size
        if there == wanted:
            return np.frombuffer(data, np.uint8, offset=head.size).reshape(head.shape)
    more = "more than " if there > wanted else ""
    there = min(there, wanted)
    raise UserError(f"its head speaks of {wanted:,} bytes, there are {more}{there:,}", where=path.name, fix=AGAIN)
