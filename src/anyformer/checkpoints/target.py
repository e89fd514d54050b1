"""A new folder that is there whole or not at all, and refused before any work where it cannot be written.

It is written under a hidden name beside its place and takes its own name last. What a killed process leaves is a folder
called `.anyformer-part-...`: the next one that writes to the same place removes it, and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anyformer import faults
from anyformer.errors import UserError
from anyformer.safe_files import FULL, check_disk_space, flush, hold_lock, is_at, writing

TRIES = 100  # names for a hidden folder; in some places, such as /proc, no folder can be made under any
PART = ".anyformer-part-"  # begins the names of folders that are being written
FAILING = (
    *FULL,
    errno.EFBIG,
    errno.EIO,
)  # a disk that is full or breaks; where nothing may be written is another matter


def check_target(target: str | Path) -> Path:
    """The place of a new folder; what is there already, or a name that no folder can have, is refused."""
    target, shown = Path(target), ascii(str(target))[1:-1]
    try:
        if "\0" in str(target).encode("utf-8").decode():
            raise ValueError
        if target.is_symlink():
            raise UserError("a link stands there", where=shown, fix="give a new folder")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UserError("the folder is there and not empty", where=shown, fix="give a new folder")
    except (UnicodeEncodeError, ValueError, OSError) as error:
        if isinstance(error, UserError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "its name is not plain UTF-8"
        raise UserError(f"no folder can be written there ({reason})", where=shown, fix="give another folder") from None
    return target


@contextmanager
def new_folder(target: str | Path, *, needed: int = 0) -> Iterator[Path]:
    """A folder to write into, which takes the target's place when all is written; of `needed` bytes or so."""
    target = check_target(target)
    made = make_parents(target.parent)
    try:
        part, lock = claim_folder(target)
        try:
            remove_leftovers(target, part)
            with written_whole(target, needed):
                check_disk_space(target.parent, needed)
                yield part
                for path in part.iterdir():
                    flush(path)
                faults.point("before-rename")
                part.rename(target)  # an empty folder there is replaced, any other not
                flush(target.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            os.close(lock)
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty: somebody else uses it by now
                folder.rmdir()
        raise


def make_parents(parent: Path) -> list[Path]:
    """Make a folder and those above it; the ones that were not there, the innermost first."""
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(parent, error) from None
    return missing


def claim_folder(target: Path) -> tuple[Path, int]:
    """The hidden folder and its lock, held for as long as this process lives.

    Between its making and its lock another process may take it for a leftover: then the next name is tried.
    """
    for last in [False] * TRIES + [True]:
        part = target.parent / f"{PART}{mark_of(target)}-{secrets.token_hex(4)}"
        try:
            part.mkdir()
            lock = os.open(part, os.O_RDONLY)
        except OSError as error:
            if last or not isinstance(error, FileNotFoundError):
                raise unwritable(target, error) from None
            continue
        # A file system without locks has the last try unlocked: what a killed process leaves then stays.
        if (hold_lock(lock) or last) and is_at(lock, part):
            return part, lock
        os.close(lock)
    raise UserError("another process removes what is written there", where=str(target), fix="give another folder")


def mark_of(target: Path) -> str:
    """A short name for a target: the longest names have no room for more."""
    return hashlib.sha256(target.name.encode()).hexdigest()[:8]


def remove_leftovers(target: Path, own: Path) -> None:
    """Delete what processes that died while writing to the same place have left; one that lives holds its lock."""
    for path in target.parent.glob(f"{PART}{mark_of(target)}-????????"):
        if path == own or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY)
            try:
                if hold_lock(lock) and is_at(lock, path):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def written_whole(target: Path, needed: int) -> Iterator[None]:
    """One line for a full disk, for a place where nothing may be written, and for one that was taken meanwhile."""
    try:
        with writing(target, needed, noticed=FAILING, fix="make room, or give a folder on another disk"):
            yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise UserError("the folder is there and not empty", where=str(target), fix="give a new folder") from None
        raise unwritable(target, error) from None


def unwritable(target: Path, error: OSError) -> UserError:
    return UserError(f"no folder can be written there ({error.strerror})", where=str(target), fix="give another folder")
