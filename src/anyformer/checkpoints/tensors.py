"""Reading and writing safetensors files, and nothing but safetensors files.

The library checks a file's header (sizes, no holes, no overlaps); bytes are then read straight into the tensor that
will hold them, so that opening a model takes its own size of memory and no more.
"""

from __future__ import annotations

import json
import math
import struct
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anyformer.errors import UserError
from anyformer.files import inside, read_json

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies."""

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def read(self) -> Tensor:
        """The tensor, in storage of its own."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(tensor)
        return tensor

    def read_into(self, tensor: Tensor) -> None:
        """Fill a contiguous tensor of the same shape and type with the bytes of the file."""
        assert tensor.is_contiguous() and tensor.shape == self.shape and tensor.dtype == self.dtype
        if not tensor.numel():
            return
        room = memoryview(typing.cast(Any, tensor.view(-1).view(torch.uint8).numpy()))
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start)
            while room:  # one read may give less than asked for
                count = file.readinto(room)
                if not count:
                    raise UserError(f"{self.name} is cut off", where=self.file.name, fix="copy the file again")
                room = room[count:]


def read_header(path: Path) -> dict[str, Entry]:
    """Every tensor of one file by name; a broken or hostile file is refused before any weight is read."""
    try:
        with safe_open(str(path), framework="pt"):
            pass  # the library's own checks: header size, JSON, dtypes, offsets without holes or overlap, file length
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError, struct.error, RecursionError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"not a whole safetensors file ({reason})", where=path.name, fix="copy the file again"
        ) from None
    found = {}
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
        found[name] = Entry(path, name, dtype, shape, start, stop)
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
    """One safetensors file; the metadata is what other readers expect to find."""
    save_file(
        {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, str(path), {"format": "pt"}
    )


def write_shards(folder: Path, tensors: dict[str, Tensor], *, shard_bytes: int, stem: str = "model") -> list[Path]:
    """One file, or several of at most `shard_bytes` with an index, as other libraries write and read them."""
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
