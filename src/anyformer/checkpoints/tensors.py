"""Reading and writing safetensors files, the only supported weight format.

The safetensors library validates a file's header (sizes, no holes, no overlaps); each tensor is then copied into its
own
storage and its pages released, so that opening a model takes no more memory than its weights.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anyformer.errors import UserError
from anyformer.safe_files import inside, read_json

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
WIDE_FIRST = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")  # the library's order in a file
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
Gather = Callable[[Tensor], Tensor]  # from a sharded tensor to the full one
# The largest public models have some 100,000 tensors; a parsed header takes about ten times its size in memory.
MOST_TENSORS, MOST_HEADER_BYTES = 250_000, 32 * 2**20


class Mapped:
    """A memory-mapped weight file; read pages are released, so that they do not count twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.map: mmap.mmap | None = None  # mapped on first use, after the file was validated

    def view(self, dtype: torch.dtype, start: int, stop: int) -> Tensor:
        """A flat tensor view of the mapped bytes; copy it before releasing them."""
        if self.map is None:
            with self.path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if start % dtype.itemsize:
            return torch.frombuffer(self.map, dtype=torch.uint8, count=stop - start, offset=start).clone().view(dtype)
        return torch.frombuffer(self.map, dtype=dtype, count=(stop - start) // dtype.itemsize, offset=start)

    def give_back(self, start: int, stop: int) -> None:
        """Release these pages from memory."""
        assert self.map is not None
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self.map.madvise(mmap.MADV_DONTNEED, page, stop - page)


@dataclass(frozen=True)
class Entry:
    """The location of one tensor in a file."""

    source: Mapped
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def view(self) -> Tensor:
        """A view of the tensor in the mapped file; call `done` after copying it."""
        if self.start == self.stop:
            return torch.empty(self.shape, dtype=self.dtype)
        return self.source.view(self.dtype, self.start, self.stop).view(self.shape)

    def done(self) -> None:
        """Release the tensor's pages."""
        if self.start != self.stop:
            self.source.give_back(self.start, self.stop)

    def read(self) -> Tensor:
        """A copy of the tensor."""
        tensor = self.view().clone()
        self.done()
        return tensor


def read_header(path: Path) -> dict[str, Entry]:
    """Every tensor of one file by name; a damaged or malicious file is rejected before any weight is read."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MOST_HEADER_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            with safe_open(str(path), framework="pt"):
                pass  # the library's own checks: JSON, dtypes, offsets without holes or overlap, file length
            header: dict[str, Any] = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError, struct.error, RecursionError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"not a whole safetensors file ({reason})", where=path.name, fix="copy the file again"
        ) from None
    found, source = {}, Mapped(path)
    for name, described in header.items():
        if name == "__metadata__":
            continue
        if described["dtype"] not in DTYPES:
            raise UserError(
                f"{name} has type {described['dtype']}", where=path.name, fix="convert it to F32, BF16 or F16"
            )
        dtype, shape = DTYPES[described["dtype"]], tuple(described["shape"])
        start, stop = (8 + length + offset for offset in described["data_offsets"])
        if stop - start != math.prod(shape) * dtype.itemsize:
            raise UserError(
                f"{name} has {stop - start} bytes for shape {shape}", where=path.name, fix="copy the file again"
            )
        found[name] = Entry(source, name, dtype, shape, start, stop)
    return found


def read_folder(folder: Path, *, stem: str = "model") -> dict[str, Entry]:
    """Every tensor of a model folder: one file, or shards with an index."""
    single, index = inside(folder, f"{stem}.safetensors"), inside(folder, f"{stem}.safetensors.index.json")
    if single.is_file():
        return read_header(single)
    if not index.is_file():
        raise no_weights(folder)
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(v, str) for v in placed.values()):
        raise UserError("no weight_map of names to files", where=index.name, fix="copy the file again")
    found: dict[str, Entry] = {}
    for name in sorted(set(placed.values())):
        shard = read_header(inside(folder, name, where=index.name))
        twice = sorted(set(shard) & set(found))
        if twice:
            raise UserError(f"{twice[0]} is in two shards", where=name, fix="copy the folder again")
        found |= shard
        if len(found) > MOST_TENSORS:
            raise UserError(f"more than {MOST_TENSORS:,} tensors", where=index.name, fix="that is not a model")
    lost = sorted(set(placed) - set(found))
    if lost:
        raise UserError(f"{len(lost)} tensors of the index are in no shard, first {lost[0]}", where=index.name,
                        fix="copy the folder again")  # fmt: skip
    return found


def no_weights(folder: Path) -> UserError:
    pickles = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
    if pickles:
        return UserError(
            f"{pickles[0]} is a pickle, which can run code when opened; anyformer opens safetensors only",
            where=folder.name, fix=f"convert it once with: python recipes/bin_to_safetensors.py {folder.name}",
        )  # fmt: skip
    return UserError(
        "no model.safetensors in the folder", where=folder.name, fix="give a folder with safetensors weights"
    )


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write one safetensors file, with the metadata that other readers expect."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        save_file(plain, str(path), {"format": "pt"})
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None


def write_one_by_one(path: Path, tensors: Mapping[str, Tensor], gather: Gather) -> None:
    """Write the identical file from sharded tensors, gathering one at a time."""
    names, at = file_order(tensors), 0
    header: dict[str, dict[str, Any]] = {"__metadata__": {"format": "pt"}}
    for name in names:
        size = tensors[name].numel() * tensors[name].element_size()
        header[name] = {"dtype": DTYPE_NAMES[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [at, at + size]}  # fmt: skip
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(gather(tensors[name]).contiguous().cpu().flatten().view(torch.uint8).numpy().data)


def file_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names in file order: wide dtypes first, so that every tensor is aligned."""
    return sorted(tensors, key=lambda name: (WIDE_FIRST.index(DTYPE_NAMES[tensors[name].dtype]), name))


def write_shards(
    folder: Path, tensors: dict[str, Tensor], *, shard_bytes: int, stem: str = "model",
    write: Callable[[Path, dict[str, Tensor]], None] = write,
) -> list[Path]:  # fmt: skip
    """Write one file, or several of at most `shard_bytes` with an index, in the format of other libraries."""
    shards = list(split(tensors.items(), shard_bytes))
    if len(shards) == 1:
        write(folder / f"{stem}.safetensors", shards[0])
        return [folder / f"{stem}.safetensors"]
    paths: list[Path] = []
    placed: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        name = f"{stem}-{i:05}-of-{len(shards):05}.safetensors"
        write(folder / name, shard)
        paths.append(folder / name)
        placed |= dict.fromkeys(shard, name)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return paths


def split(tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        bytes_ = tensor.numel() * tensor.element_size()
        if shard and size + bytes_ > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += bytes_
    yield shard
