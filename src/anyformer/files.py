"""Files and folders: reading what somebody else made, bounded, never as code; writing to a disk that may be full."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyformer.errors import NoRoom, UserError

LIMIT = 128 * 2**20  # bytes of any one file but weights; the largest public tokenizers are near 35 MB
AGAIN = "copy the file again"
BLOCK = 2**22  # bytes hashed at a time
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


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


def read_bytes(path: Path) -> bytes:
    """The whole file, if it is there and not larger than `LIMIT`."""
    try:
        if not path.is_file():
            raise UserError("the file is not there", where=path.name, fix="copy the whole folder")
        with path.open("rb") as file:
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
        data = json.loads(read_text(path))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON ({short(error)})", where=path.name, fix=AGAIN) from None
    if not isinstance(data, dict):
        raise UserError("not a JSON object", where=path.name, fix=AGAIN)
    return data


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


# ---------------------------------------------------------------- writing


@contextlib.contextmanager
def writing(
    place: Path, needed: int = 0, *, noticed: tuple[int, ...] = UNWRITABLE, fix: str = "make room and try again"
) -> Iterator[None]:
    """Say in one line what a disk that is full, read-only or failing did to what is written inside."""
    try:
        yield
    except OSError as error:
        if error.errno not in noticed:
            raise
        wanted = f"about {needed:,} bytes needed, " if needed else ""
        raise NoRoom(
            f"could not be written ({error.strerror}): {wanted}{free_space(place)}", where=str(place), fix=fix
        ) from None


def free_space(place: Path) -> str:
    """What the disk of a file or folder, which need not be there yet, has left."""
    try:
        free = shutil.disk_usage(next(p for p in (place, *place.absolute().parents) if p.is_dir())).free
    except (OSError, StopIteration):
        return "free space unknown"
    return f"{free:,} bytes free"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for what is thrown away at the end."""
    try:
        parent = Path(tempfile.gettempdir())
    except FileNotFoundError:  # it tries to write into each place that the system names
        raise NoRoom(
            "no folder for temporary files can be written", where="TMPDIR", fix="make room, or set TMPDIR"
        ) from None
    with writing(parent, noticed=FULL), tempfile.TemporaryDirectory(prefix="anyformer-", dir=parent) as folder:
        yield Path(folder)
