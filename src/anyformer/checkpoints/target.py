"""Atomic creation of a new folder, checked before any work for whether it can be written.

It is written under a hidden name beside its target and renamed last. A killed process leaves a folder called
`.anyformer-part-...`: the next process that writes to the same target removes it.
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

TRIES = 100  # names to try for a hidden folder; in some places, such as /proc, none can be created
PART = ".anyformer-part-"  # begins the names of folders that are being written
FAILING = (
    *FULL,
    errno.EFBIG,
    errno.EIO,
)  # a full or broken disk, as opposed to missing permission


def check_target(target: str | Path) -> Path:
    """Validate the path of a new folder; existing content and invalid names are rejected."""
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
    """Yield a folder to write about `needed` bytes into, which is renamed to the target at the end."""
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
                part.rename(target)  # replaces only an empty folder
                flush(target.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            os.close(lock)
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty: in use by another process
                folder.rmdir()
        raise


def make_parents(parent: Path) -> list[Path]:
    """Create a folder and its parents; returns the created ones, the innermost first."""
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(parent, error) from None
    return missing


def claim_folder(target: Path) -> tuple[Path, int]:
    """Create and lock the hidden folder; the lock is held as long as this process lives.

    Between creation and lock another process may remove it as a leftover: then the next name is tried.
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
        # On a file system without locks the last try goes unlocked: leftovers of killed processes then stay.
        if (hold_lock(lock) or last) and is_at(lock, part):
            return part, lock
        os.close(lock)
    raise UserError("another process removes what is written there", where=str(target), fix="give another folder")


def mark_of(target: Path) -> str:
    """A short hash for a target's name, since long names leave no room for a suffix."""
    return hashlib.sha256(target.name.encode()).hexdigest()[:8]


def remove_leftovers(target: Path, own: Path) -> None:
    """Delete leftovers of dead processes for the same target; a live process holds its lock."""
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
    """Turn a full disk, missing permission, or a target created meanwhile into one-line errors."""
    try:
        with writing(target, needed, noticed=FAILING, fix="make room, or give a folder on another disk"):
            yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise UserError("the folder is there and not empty", where=str(target), fix="give a new folder") from None
        raise unwritable(target, error) from None


def unwritable(target: Path, error: OSError) -> UserError:
    return UserError(f"no folder can be written there ({error.strerror})", where=str(target), fix="give another folder")
