"""Arrays on disk: written once, then memory-mapped, so that data larger than memory trains as fast."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anyformer.errors import UserError
from anyformer.safe_files import BLOCK, digest, replace_file, writing

INDEX = "arrays.json"


class Arrays(Mapping[str, np.ndarray]):
    """Named .npy files in one folder, memory-mapped. `close` seals them with sizes and hashes.

    A folder without a seal, or with a file that does not match it, is not opened: it is prepared again from the data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = {}
        self.seal: dict[str, dict[str, Any]] = {}
        self.open: dict[str, np.ndarray] = {}

    @classmethod
    def new(cls, folder: Path) -> Arrays:
        """An empty folder to write into; leftovers of an interrupted attempt are removed."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.is_file():
                path.unlink()
        return cls(folder)

    @classmethod
    def of(cls, folder: Path) -> Arrays | None:
        """The sealed arrays of a folder, or None if they are missing or damaged."""
        index = folder / INDEX
        if not index.is_file():
            return None
        arrays = cls(folder)
        try:
            read = json.loads(index.read_text(encoding="utf-8"))
            arrays.facts, arrays.seal = dict(read["facts"]), dict(read["files"])
            whole = all(
                name == Path(name).name
                and (folder / name).is_file()
                and (folder / name).stat().st_size == entry["bytes"]
                and digest(folder / name) == entry["sha256"]
                for name, entry in arrays.seal.items()
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return arrays if whole else None

    def put(self, name: str, array: np.ndarray) -> np.ndarray:
        """Save one array and map it."""
        save_array(self.folder / f"{name}.npy", array)
        return self[name]

    def room(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array on disk to be filled in place, if it does not fit into memory."""
        if 0 in shape:
            return self.put(name, np.zeros(shape, dtype))
        return new_map(self.folder / f"{name}.npy", shape, np.dtype(dtype))

    def growing(self, name: str, dtype: Any) -> Growing:
        """A one-dimensional array of unknown length, to append to."""
        return GrowingFile(self, name, dtype)

    def drop(self, name: str) -> None:
        """Remove an intermediate array."""
        self.open.pop(name, None)
        (self.folder / f"{name}.npy").unlink()

    def close(self, facts: Mapping[str, Any] | None = None) -> Arrays:
        """Seal the folder with the size and hash of every file, and further facts."""
        self.open.clear()
        self.facts = dict(facts or {})
        self.seal = {
            path.name: {"bytes": path.stat().st_size, "sha256": digest(path)}
            for path in sorted(self.folder.iterdir())
            if path.is_file() and path.name != INDEX
        }
        replace_file(self.folder / INDEX, json.dumps({"facts": self.facts, "files": self.seal}, indent=1) + "\n")
        return self

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.open:
            path = self.folder / f"{name}.npy"
            if not path.is_file():
                raise UserError(f"the array {name} is not there", where=self.folder.name, fix="train again")
            shape_only = np.load(path, mmap_mode=None, allow_pickle=False) if path.stat().st_size < 4096 else None
            self.open[name] = np.load(path, mmap_mode="r", allow_pickle=False) if shape_only is None else shape_only
        return self.open[name]

    def __contains__(self, name: object) -> bool:
        return (self.folder / f"{name}.npy").is_file()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("*.npy")))

    def __len__(self) -> int:
        return len(list(self.folder.glob("*.npy")))


class MemoryArrays(Arrays):
    """The same interface in memory, for new rows: nothing is written to disk."""

    def __init__(self) -> None:
        super().__init__(Path())

    def put(self, name: str, array: np.ndarray) -> np.ndarray:
        """Keep one array."""
        self.open[name] = array
        return array

    def room(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array to be filled in place."""
        return self.put(name, np.zeros(shape, dtype))

    def growing(self, name: str, dtype: Any) -> Growing:
        """A one-dimensional array of unknown length."""
        return GrowingList(self, name, dtype)

    def drop(self, name: str) -> None:
        """Remove an intermediate array."""
        del self.open[name]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.open[name]

    def __contains__(self, name: object) -> bool:
        return name in self.open

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.open))

    def __len__(self) -> int:
        return len(self.open)


class Growing(Protocol):
    """An array under construction, piece by piece; `close` completes it."""

    def add(self, values: np.ndarray) -> None:
        """Append values."""
        ...

    def close(self) -> None:
        """Store all values as one array."""
        ...


class GrowingFile:
    """An array on disk under construction."""

    def __init__(self, arrays: Arrays, name: str, dtype: Any) -> None:
        self.arrays, self.name, self.dtype, self.count = arrays, name, dtype, 0
        self.path = arrays.folder / f"{name}.part"
        with writing(self.path):
            self.file = self.path.open("wb")

    def add(self, values: np.ndarray) -> None:
        with writing(self.path):
            self.file.write(values.astype(self.dtype, copy=False).tobytes())
        self.count += len(values)

    def close(self) -> None:
        with writing(self.path):
            self.file.close()
        room = self.arrays.room(self.name, (self.count,), self.dtype)
        if self.count:
            room[:] = np.memmap(self.path, dtype=self.dtype, mode="r")
        del room
        self.path.unlink()


class GrowingList:
    """An array in memory under construction."""

    def __init__(self, arrays: Arrays, name: str, dtype: Any) -> None:
        self.arrays, self.name, self.parts = arrays, name, [np.zeros(0, dtype)]

    def add(self, values: np.ndarray) -> None:
        self.parts.append(values.astype(self.parts[0].dtype, copy=False))

    def close(self) -> None:
        self.arrays.put(self.name, np.concatenate(self.parts))


# ---------------------------------------------------------------- files of one array


def save_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file like `np.save`, which hides the reason of a failed write."""
    plain = np.ascontiguousarray(array)
    data = plain.reshape(-1).view(np.uint8)
    with writing(path, data.nbytes), path.open("wb") as file:
        file.write(header(array.shape, plain.dtype))
        file.write(data.data)


def new_map(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new .npy file, memory-mapped to be filled in place.

    Its space is reserved first: writing a page of a sparse file to a full disk kills the process (SIGBUS).
    """
    head = header(shape, dtype)
    size = len(head) + int(np.prod(shape)) * dtype.itemsize
    with writing(path, size), path.open("wb") as file:
        file.write(head)
        file.flush()
        reserve(file.fileno(), len(head), size)
    return np.lib.format.open_memmap(path, mode="r+")


def header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """The header of a .npy file; values are in C order."""
    made = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(made, described)
    return made.getvalue()


def reserve(handle: int, start: int, stop: int) -> None:
    """Allocate bytes `start` to `stop` of an open file on disk; they read as zeros."""
    try:
        os.posix_fallocate(handle, start, stop - start)
    except AttributeError:  # not available on macOS
        write_zeros(handle, start, stop)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        write_zeros(handle, start, stop)  # a file system without preallocation


def write_zeros(handle: int, start: int, stop: int) -> None:
    """Allocate by writing zeros, a block at a time."""
    os.lseek(handle, start, os.SEEK_SET)
    while start < stop:
        start += os.write(handle, bytes(min(BLOCK, stop - start)))
