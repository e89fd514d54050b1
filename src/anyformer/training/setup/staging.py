"""Staging of a new run's folder: hidden and locked while it is filled, then renamed to its final name.

Bad input leaves nothing behind, and every existing run can be resumed.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anyformer.errors import NoRoom, UserError
from anyformer.safe_files import FULL, hold_lock, is_at, writing
from anyformer.training.run.folder import LOCK_FILE, RunFolder, check_new

NEW = ".new-"  # prefix of a staging folder
TRIES = 100  # names to try; in some places, such as /proc, no folder can be created at all


@contextmanager
def staged(path: Path) -> Iterator[RunFolder]:
    """Yield a new folder beside `path` to fill: renamed to `path` at the end, removed on failure."""
    made = [parent for parent in (path.parent, *path.parent.parents) if not parent.exists()]
    try:
        with full_disk_explained(path):
            folder = claim_new(path.parent)
    except OSError as error:
        raise UserError(
            f"no folder can be made there ({error.strerror})", where=f"--out {path}", fix="give another --out"
        ) from None
    try:
        with full_disk_explained(path):
            sweep_new(path.parent)
            yield folder
        try:
            if path.is_dir():
                path.rmdir()  # checked to be empty before
            folder.path.rename(path)
        except OSError:
            check_new(path)  # another process was quicker
            raise
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        with suppress(OSError):
            for parent in made:
                parent.rmdir()
        raise
    finally:
        folder.unlock()


def claim_new(parent: Path) -> RunFolder:
    """Create and lock a new folder in `parent` under an unused name.

    Between creation and lock another process may sweep it as a leftover, or remove an empty `parent`: then the next
    name is tried. Once locked it is safe.
    """
    for last in [False] * TRIES + [True]:
        parent.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(parent / f"{NEW}{secrets.token_hex(8)}")
        try:
            folder.path.mkdir()
            folder.lock()
            return folder
        except (FileNotFoundError, FileExistsError, UserError) as error:
            if last or isinstance(error, NoRoom) or not parent.is_dir():
                raise
    raise AssertionError("the last try raises")


@contextmanager
def full_disk_explained(path: Path) -> Iterator[None]:
    """Turn a full disk into one error that names `path`: there is no run yet that could be resumed."""
    again = "make room, or give --out on another disk, and train again"
    try:
        with writing(path, noticed=FULL, fix=again):
            yield
    except NoRoom as error:
        raise NoRoom(error.what, where=str(path), fix=again) from None


def sweep_new(parent: Path) -> None:
    """Remove staging folders of killed processes; a live process holds its lock."""
    for path in parent.glob(f"{NEW}*"):
        if path.is_symlink():
            continue
        with suppress(OSError):
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if hold_lock(lock) and is_at(lock, path / LOCK_FILE):  # it may have been renamed just now
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
