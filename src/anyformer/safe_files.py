"""Safe file access: bounded reads of untrusted files, never as code, and atomic writes.

A run folder may be untrusted: a link in place of its log would make us append to any file of the user. So files are
opened without following links, and only regular files with a single hard link are appended to. If the disk is full,
the old file stays.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from anyformer.errors import NoRoom, UserError

LIMIT = 128 * 2**20  # bytes of any file except weights; the largest public tokenizers are near 35 MB
MOST_VALUES = (
    4_000_000  # of a JSON file; each takes some hundred bytes of memory. The largest tokenizers have two million
)
AGAIN = "copy the file again"
BLOCK = 2**22  # bytes hashed at a time


def inside(folder: Path, name: str, *, where: str = "") -> Path:
    """The path of a file whose name comes from data; it must be a plain name and stay in the folder, links resolved."""
    if not name or name != Path(name).name or name in (".", "..") or "\\" in name or "\0" in name:
        raise UserError(f"{name[:80]!r} is not a plain file name", where=where or folder.name, fix="repair the file")
    path = folder / name
    if path.is_symlink() and not stays(folder, path):
        raise UserError(f"{name} is a link out of the folder", where=folder.name, fix="copy the file itself")
    return path


def stays(folder: Path, link: Path) -> bool:
    """Whether a link points into the folder, or into the `blobs` of a Hugging Face hub cache."""
    try:
        target, home = link.resolve(), folder.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return False
    return target.is_relative_to(home) or target.is_relative_to(home.parent.parent / "blobs")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; an `OSError` for a folder, a device or a pipe, which could block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "not a plain file", str(path))


def read_bytes(path: Path) -> bytes:
    """The whole file, if it exists and is not larger than `LIMIT`."""
    try:
        if not path.is_file():
            raise UserError("the file is not there", where=path.name, fix="copy the whole folder")
        with open_regular(path) as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path.name, fix="check its permissions") from None
    if len(data) > LIMIT:
        raise UserError(f"more than {LIMIT} bytes", where=path.name, fix="that is not a file of a model folder")
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
                f"more than {MOST_VALUES:,} values", where=path.name, fix="that is not a file of a model folder"
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
    """Each complete line of a growing file that is a JSON object, as text and as object; all others are skipped."""
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
    """The start of another library's error message, on one line."""
    return " ".join(str(error).split())[:120]


def digest(path: Path) -> str:
    """SHA-256 of a file, a block at a time."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def digest_of_all(paths: Sequence[Path]) -> str:
    """The digest of one file, or of the digests of several in order."""
    if len(paths) == 1:
        return digest(paths[0])
    return hashlib.sha256("".join(map(digest, paths)).encode()).hexdigest()


LONGEST_NAME = 255  # bytes of a file name, on all common file systems
LONGEST_PATH = 3840  # bytes of a path: Linux allows 4,096, the rest is for names within a run
PART = ".part"
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)
PART_MARK = 16  # most bytes added to a file's name while it is written


def open_plain(path: Path, flags: int) -> int:
    """Open a regular file with a single hard link; raise an error for links, folders and pipes."""
    try:
        # Without O_NONBLOCK opening a pipe would block until its other end is opened.
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        kind = {errno.ELOOP: "a symbolic link", errno.EMLINK: "a symbolic link", errno.EISDIR: "a folder",
                errno.ENXIO: "not a plain file"}.get(error.errno or 0)  # fmt: skip
        if kind is None:
            raise
        raise not_plain(path, kind) from None
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return handle
    os.close(handle)
    raise not_plain(path, "a hard link" if stat.S_ISREG(found.st_mode) else "not a plain file")


def not_plain(path: Path, kind: str) -> UserError:
    return UserError(f"is {kind}, nothing is written there", where=str(path), fix="remove it, or copy the folder again")


def append_text(path: Path, text: str) -> None:
    """Append text to a regular file, which is created if missing."""
    with os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(encode_utf8(text))


def encode_utf8(text: str) -> bytes:
    """UTF-8; lone surrogates, as in a file name that is not UTF-8, become escapes, which JSON can read."""
    return text.encode("utf-8", "backslashreplace")


def replace_file(path: Path, data: str | bytes) -> None:
    """Write a file atomically, replacing an existing one."""
    with replacing(path) as part:
        part.write_bytes(encode_utf8(data) if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to, renamed to it on success and removed on failure."""
    if path.is_dir() and not path.is_symlink():
        raise not_plain(path, "a folder")
    remove_unfinished(path)
    part, handle = claim_file(path)
    try:
        yield part
        flush(part)
        os.replace(part, path)
        flush(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def claim_file(path: Path) -> tuple[Path, int]:
    """Create `.name.1234abcd.part` and lock it, so that other processes see that it is in use."""
    name = cut_to(path.name, LONGEST_NAME - PART_MARK)
    while True:
        part = path.with_name(f".{name}.{secrets.token_hex(4)}{PART}")
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        if hold_lock(handle) and is_at(handle, part):
            return part, handle
        os.close(handle)  # another process removed it as a leftover before it was locked


def remove_unfinished(path: Path) -> None:
    """Remove temporary files of this path left by killed processes; a living one holds the lock."""
    name = glob.escape(cut_to(path.name, LONGEST_NAME - PART_MARK))
    for part in path.parent.glob(f".{name}.{'[0-9a-f]' * 8}{PART}"):
        with suppress(OSError, UserError):
            handle = open_plain(part, os.O_RDWR)
            try:
                if hold_lock(handle) and is_at(handle, part):
                    part.unlink()
            finally:
                os.close(handle)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise an error before writing if the disk has too little space."""
    if needed and shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def hold_lock(handle: int) -> bool:
    """Try to lock an open file; the lock is released with the descriptor, at the latest with the process."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_at(handle: int, path: Path) -> bool:
    """Whether the open file is still at this path: a lock on a removed file protects nothing."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(handle))


def make_folder(path: Path) -> None:
    """Create a folder inside one of ours if missing; raise an error for a file or a link of that name."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise not_plain(path, "not a folder") from None
    if path.is_symlink():  # files would be written elsewhere
        raise not_plain(path, "a symbolic link")


def flush(path: Path) -> None:
    """Flush a file or folder to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cut_to(name: str, limit: int) -> str:
    """A name truncated to `limit` bytes."""
    return os.fsdecode(os.fsencode(name)[:limit])


def check_output_name(path: Path, option: str) -> None:
    """Raise an error for an output path that is too long or not UTF-8, before any work is done."""
    if len(os.fsencode(path.absolute())) > LONGEST_PATH:
        raise UserError(f"the path has more than {LONGEST_PATH} bytes", where=option, fix="give a shorter one")
    for part in path.parts:
        length = len(os.fsencode(part))
        if length > LONGEST_NAME:
            raise UserError(f"the name {part[:20]}... has {length} bytes, at most {LONGEST_NAME} are possible",
                            where=option, fix="give a shorter name")  # fmt: skip
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"the name {str(path)!a} is not UTF-8", where=option, fix="give another name") from None
    if "\0" in str(path):
        raise UserError("the name holds a zero byte", where=option, fix="give another name")


# ---------------------------------------------------------------- full disks


@contextmanager
def writing(
    place: Path, needed: int = 0, *, noticed: tuple[int, ...] = UNWRITABLE, fix: str = "make room and try again"
) -> Iterator[None]:
    """Turn errors of a full, read-only or failing disk into a one-line NoRoom."""
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
    """Free space on the disk of a path, which need not exist yet."""
    try:
        free = shutil.disk_usage(next(p for p in (place, *place.absolute().parents) if p.is_dir())).free
    except (OSError, StopIteration):
        return "free space unknown"
    return f"{free:,} bytes free"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder, removed at the end."""
    try:
        parent = Path(tempfile.gettempdir())
    except FileNotFoundError:  # tempfile tried all candidate folders
        raise NoRoom(
            "no folder for temporary files can be written", where="TMPDIR", fix="make room, or set TMPDIR"
        ) from None
    with writing(parent, noticed=FULL), tempfile.TemporaryDirectory(prefix="anyformer-", dir=parent) as folder:
        yield Path(folder)
