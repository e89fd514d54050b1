"""Files and folders: reading what somebody else made, bounded, never as code; writing to a disk that may be full."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from anyformer.errors import UserError

LIMIT = 128 * 2**20  # bytes of any one file but weights; the largest public tokenizers are near 35 MB
MOST_VALUES = (
    4_000_000  # of a JSON file; each takes some hundred bytes of memory. The largest tokenizers have two million
)
AGAIN = "copy the file again"
BLOCK = 2**22  # bytes hashed at a time


def inside(folder: Path, name: str, *, where: str = "") -> Path:
    """The path of a file named by data; only a plain name that stays in the folder, also through links, is accepted."""
    if not name or name != Path(name).name or name in (".", "..") or "\\" in name or "\0" in name:
        raise UserError(f"{name[:80]!r} is not a plain file name", where=where or folder.name, fix="repair the file")
    path = folder / name
    if path.is_symlink() and not stays(folder, path):
        raise UserError(f"{name} is a link out of the folder", where=folder.name, fix="copy the file itself")
    return path


def stays(folder: Path, link: Path) -> bool:
    """Whether a link ends in the folder, or in a hub's own store of files beside it."""
    try:
        target, home = link.resolve(), folder.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return False
    return target.is_relative_to(home) or target.is_relative_to(home.parent.parent / "blobs")


def open_regular(path: Path) -> BinaryIO:
    """A plain file to read from; an `OSError` where it is a folder, a device or a pipe, which could be waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "not a plain file", str(path))


def read_bytes(path: Path) -> bytes:
    """The whole file, if it is there and not larger than `LIMIT`."""
    try:
        if not path.is_file():
            raise UserError("the file is not there", where=path.name, fix="copy the whole folder")
        with open_regular(path) as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path.name, fix="check its permissions") from None
    if len(data) > LIMIT:
        raise UserError(f"more than {LIMIT} bytes", where=path.name, fix="that is no file of a model folder")
    return data


def read_text(path: Path) -> str:
    """The file as UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 (byte {error.start})", where=path.name, fix=AGAIN) from None


def read_json(path: Path) -> dict[str, Any]:
    """The file as one JSON object."""
    try:
        text = read_text(path)
        if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
            raise UserError(
                f"more than {MOST_VALUES:,} values", where=path.name, fix="that is no file of a model folder"
            )
        data = json.loads(text)
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON ({short(error)})", where=path.name, fix=AGAIN) from None
    if not isinstance(data, dict):
        raise UserError("not a JSON object", where=path.name, fix=AGAIN)
    return data


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each whole line of a growing file that holds a JSON object, as text and as object; all else is passed over."""
    try:
        with open_regular(path) as file:
            for raw in file:
                try:
                    line = raw.decode("utf-8")
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(entry, dict):
                    yield line.rstrip("\n"), entry
    except OSError:
        return


def short(error: BaseException) -> str:
    """An error of another library on part of one line."""
    return " ".join(str(error).split())[:120]


def digest(path: Path) -> str:
    """SHA-256 of a file, a block at a time."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()
