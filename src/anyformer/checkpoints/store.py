"""Folders that are there whole or not at all: how checkpoints are committed, verified, found and rotated.

A commit writes into a hidden folder, flushes every file to the disk, writes the manifest (sizes and SHA-256) last,
renames, and flushes the parent. A process may die at any moment: what has the final name is whole. "Latest" is the
greatest step whose manifest verifies; names and times of files decide nothing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer import faults
from anyformer.errors import NoRoom, UserError

MANIFEST = "manifest.json"
PART, GONE = ".tmp-", ".del-"  # names of folders being written and being deleted
BLOCK = 2**22
Writer = tuple[str, Callable[[Path], object]]  # a fault point, and what writes one or more files into a folder


def commit(parent: Path, name: str, writers: Sequence[Writer], facts: Mapping[str, Any], *, needed: int = 0) -> Path:
    """Write a folder `parent/name` by the writers, in order; it appears whole or not at all."""
    parent.mkdir(parents=True, exist_ok=True)
    final, part = parent / name, parent / f"{PART}{name}-{secrets.token_hex(4)}"
    try:
        check_room(parent, needed)
        part.mkdir()
        for place, write in writers:
            write(part)
            faults.point(place)
        files = {path.name: sealed(path) for path in sorted(part.iterdir())}
        faults.point("before-manifest")
        manifest = part / MANIFEST
        manifest.write_text(json.dumps({**facts, "files": files}, indent=1) + "\n", encoding="utf-8")
        flush(manifest)
        flush(part)
        faults.point("manifest")
        if final.exists():  # only a folder that does not verify may stand in the way
            if verified(final) is not None:
                raise UserError("the checkpoint is there already", where=str(final), fix="give a new folder")
            discard(final)
        faults.point("before-rename")
        part.rename(final)
        flush(parent)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES):
            raise no_room(parent, error, needed) from None
        raise
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    faults.point("renamed")
    return final


def check_room(parent: Path, needed: int) -> None:
    """Refuse before writing what cannot fit."""
    if needed and shutil.disk_usage(parent).free < needed:
        raise OSError(errno.ENOSPC, "No space left on device")


def no_room(parent: Path, error: OSError, needed: int) -> NoRoom:
    free = shutil.disk_usage(parent).free
    return NoRoom(
        f"the checkpoint could not be written ({error.strerror}): about {needed:,} bytes needed, {free:,} free",
        where=str(parent), fix="make room and resume; the checkpoint before it is whole",
    )  # fmt: skip


def sealed(path: Path) -> dict[str, Any]:
    """Flush one file to the disk; its size and hash."""
    flush(path)
    return {"bytes": path.stat().st_size, "sha256": digest(path)}


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def verified(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder whose every file is as it was written, else None."""
    return None if problem(folder) else json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def problem(folder: Path) -> str:
    """What is wrong with a committed folder: the first file that is missing, cut or changed; empty if nothing."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        if not isinstance(manifest["step"], int) or not files:
            return f"{MANIFEST} is not whole"
        for name, entry in files.items():
            if name != Path(name).name:
                return f"{MANIFEST} names {name[:60]!r}"
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["bytes"]:
                return f"{name} has {path.stat().st_size:,} bytes, not {entry['bytes']:,}"
            if digest(path) != entry["sha256"]:
                return f"{name} has changed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    return ""


def committed(parent: Path) -> Iterator[tuple[int, Path]]:
    """Step and folder of everything that has a manifest, the greatest step first; not verified yet."""
    found = []
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name.startswith(".") or not path.is_dir() or path.is_symlink():
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            step = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["step"]
            if isinstance(step, int):
                found.append((step, path))
    yield from sorted(found, key=lambda pair: (-pair[0], pair[1].name))


def latest(parent: Path) -> tuple[int, Path] | None:
    """The newest whole checkpoint."""
    return next(((step, path) for step, path in committed(parent) if not problem(path)), None)


def rotate(parent: Path, keep: int, protected: Sequence[int] = ()) -> list[int]:
    """Delete all but the newest `keep` checkpoints and the protected steps; the steps deleted."""
    gone = [(step, path) for step, path in list(committed(parent))[keep:] if step not in protected]
    for _, path in gone:
        discard(path)
    return [step for step, _ in gone]


def discard(folder: Path) -> None:
    """Delete a folder of ours so that no half of it is ever taken for a checkpoint."""
    faults.point("before-delete")
    doomed = folder.with_name(f"{GONE}{folder.name}-{secrets.token_hex(4)}")
    folder.rename(doomed)
    faults.point("deleted")
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove what a process that died left half written or half deleted; only names of ours."""
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name.startswith((PART, GONE)) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
