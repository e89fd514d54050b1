"""Atomic folders: how checkpoints are committed, verified, found and rotated.

A commit writes into a hidden folder, fsyncs every file, writes the manifest (sizes and SHA-256) last, renames, and
fsyncs the parent. The process may die at any moment: a folder with its final name is complete. "Latest" is the greatest
step whose manifest verifies, regardless of file times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from anyformer import faults, safe_files
from anyformer.errors import UserError
from anyformer.log import Log, silence
from anyformer.safe_files import digest, flush, make_folder, read_bytes

MANIFEST = "manifest.json"
SEAL = "seal"  # the manifest's entry that holds the hash of the rest of it
PART, GONE = ".tmp-", ".del-"  # names of folders being written and being deleted
NAME = re.compile(r"step-\d{6,}")  # only folders with such names are considered and deleted
RESUME = "make room and resume; what was saved before is whole"
Writer = tuple[str, Callable[[Path], object]]  # a fault point, and what writes one or more files into a folder


def checkpoint_name(step: int) -> str:
    """The folder name of a step; only such names are rotated.

    >>> checkpoint_name(500)
    'step-000500'
    """
    return f"step-{step:06}"


def commit(parent: Path, name: str, writers: Sequence[Writer], facts: Mapping[str, Any], *, needed: int = 0) -> Path:
    """Write a folder `parent/name` atomically by the writers, in order."""
    final, part = parent / name, parent / f"{PART}{name}-{secrets.token_hex(4)}"
    with writing(parent, needed):
        try:
            make_folder(parent)
            safe_files.check_disk_space(parent, needed)
            part.mkdir()
            for place, write in writers:
                write(part)
                faults.point(place)
            files = {path.name: sealed(path) for path in sorted(part.iterdir())}
            faults.point("before-manifest")
            manifest = part / MANIFEST
            manifest.write_text(render_manifest({**facts, "files": files}), encoding="utf-8")
            flush(manifest)
            flush(part)
            faults.point("manifest")
            if final.exists():  # only a damaged folder may be replaced
                if not problem(final):
                    raise UserError("the checkpoint is there already", where=str(final), fix="give a new folder")
                discard(final)
            faults.point("before-rename")
            part.rename(final)
            flush(parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    faults.point("renamed")
    return final


def writing(place: Path, needed: int = 0) -> AbstractContextManager[None]:
    """As `safe_files.writing`, for a run that can be resumed."""
    return safe_files.writing(place, needed, fix=RESUME)


def render_manifest(manifest: Mapping[str, Any]) -> str:
    """A manifest's file content, including the hash of its own body."""
    body = {name: value for name, value in manifest.items() if name != SEAL}
    seal = hashlib.sha256(json.dumps(body, indent=1).encode()).hexdigest()
    return json.dumps({**body, SEAL: seal}, indent=1) + "\n"


def sealed(path: Path) -> dict[str, Any]:
    """Fsync a file; returns its size and hash."""
    flush(path)
    return {"bytes": path.stat().st_size, "sha256": digest(path)}


def verified(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder if all its files verify, else None."""
    return None if problem(folder) else json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def problem(folder: Path) -> str:
    """The first problem of a committed folder: a missing, truncated or changed file; empty if none."""
    try:
        text = read_bytes(folder / MANIFEST)
        manifest = json.loads(text)
        if render_manifest(manifest).encode() != text:
            return f"{MANIFEST} has changed"
        if type(manifest["step"]) is not int or not manifest["files"]:
            return f"{MANIFEST} is not whole"
        for name, entry in manifest["files"].items():
            if name != Path(name).name:
                return f"{MANIFEST} names {name[:60]!r}"
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["bytes"]:
                return f"{name} has {path.stat().st_size:,} bytes, not {entry['bytes']:,}"
            if digest(path) != entry["sha256"]:
                return f"{name} has changed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    return ""


def committed(parent: Path) -> Iterator[tuple[int, Path]]:
    """Step and folder of every checkpoint with a manifest, the greatest step first; not verified."""
    found = []
    for path in parent.iterdir() if parent.is_dir() else ():
        if not NAME.fullmatch(path.name) or not path.is_dir() or path.is_symlink():
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            step = json.loads(read_bytes(path / MANIFEST))["step"]
            if type(step) is int:
                found.append((step, path))
    yield from sorted(found, key=lambda pair: (-pair[0], pair[1].name))


def latest(parent: Path, log: Log = silence) -> tuple[int, Path] | None:
    """The newest intact checkpoint; damaged newer ones are reported."""
    for step, path in committed(parent):
        trouble = problem(path)
        if not trouble:
            return step, path
        log(f"damaged  {path.name}: {trouble}; the one before it is taken")
    return None


def rotate(
    parent: Path, keep: int, protected: Sequence[int] = (), *, newest: int | None = None,
    counts: Callable[[int], bool] = lambda step: True,
) -> list[int]:  # fmt: skip
    """Delete all but the newest checkpoint, the newest `keep` that count, and the protected steps; returns those
    deleted.

    Checkpoints beyond `newest` were found damaged: they neither count nor are deleted, and will be overwritten.
    """
    known = [(step, path) for step, path in committed(parent) if newest is None or step <= newest]
    kept = {step for step, _ in known[:1]} | set([step for step, _ in known if counts(step)][:keep]) | set(protected)
    gone = [(step, path) for step, path in known if step not in kept]
    for _, path in gone:
        discard(path)
    return [step for step, _ in gone]


def discard(folder: Path) -> None:
    """Delete a folder, renaming it first so that a partial deletion is never taken for a checkpoint."""
    faults.point("before-delete")
    doomed = folder.with_name(f"{GONE}{folder.name}-{secrets.token_hex(4)}")
    folder.rename(doomed)
    faults.point("deleted")
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove folders that a dead process left half written or half deleted, by our name prefixes."""
    for path in list(parent.iterdir()) if parent.is_dir() else ():
        if path.name.startswith((PART, GONE)) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
