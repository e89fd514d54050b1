"""A compile cache that only its owner can write, since its files are loaded and executed.

Torch's default is a folder with a predictable name in the shared temporary folder: whoever creates it first controls
the machine code that another user loads, and the pickles of the graph cache. Ours is `anyformer/compiled` in the
user's cache folder; a folder that another user could have written to is never used.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger("anyformer")

TORCH, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"  # the only way to set the folders of torch and Triton
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@cache
def use_private_cache() -> Path:
    """Point the caches of torch and Triton to a private folder; call before either compiles."""
    folder = user_folder() or own_folder()
    reason = make_private(folder)
    if reason:
        fresh = fresh_folder()
        log.warning("compiled code is not kept: %s (%s); it goes into %s for this run", folder, reason, fresh)
        folder = fresh
    elif folder != user_folder():
        # Torch's cache key omits the CPU's vector extension: code compiled for AVX-512 gave wrong gradients with
        # ATEN_CPU_CAPABILITY=avx2, and several machines may share a home folder.
        code = folder / torch.backends.cpu.get_cpu_capability().lower()
        folder = fresh_folder() if make_private(code) else code
    os.environ[TORCH] = str(folder)
    triton = folder / "triton"
    if make_private(triton):  # no other user could create it: a file of that name is the owner's mistake
        triton = fresh_folder()
    os.environ[TRITON] = str(triton)
    return folder


def redirect_default() -> None:
    """Redirect precompiled headers and a pickled memo, which torch keeps in its default folder despite its setting."""
    folder = use_private_cache()
    from torch._inductor.runtime import cache_dir_utils, runtime_utils

    codecache: Any = sys.modules.get("torch._inductor.codecache")
    memoizers: Any = sys.modules.get("torch._inductor.runtime.caching.memoizers")

    def private_cache_dir() -> str:
        return str(folder)

    modules: list[Any] = [cache_dir_utils, runtime_utils]
    if codecache is not None:  # already imported: correct the paths computed at import time
        modules.append(codecache)
        headers = folder / "precompiled_headers"
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
        codecache.CacheBase.get_local_cache_path.cache_clear()
    for module in modules:
        module.default_cache_dir = private_cache_dir
    if memoizers is not None:
        memo = memoizers.should_pad_memoizer
        memo._disk_cache = type(memo._disk_cache)(sub_dir="should_pad")


def own_folder() -> Path:
    """`anyformer/compiled` in the user's cache folder, by the XDG Base Directory Specification."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    except RuntimeError:  # a user without a home folder
        base = Path("/nonexistent")
    return base / "anyformer" / "compiled"


def user_folder() -> Path | None:
    """The folder that the user set for torch, or None; torch itself writes its default into the environment."""
    named = os.environ.get(TORCH, "")
    if not named or Path(named).name.startswith("torchinductor_"):
        return None
    return Path(os.path.abspath(named))


def make_private(folder: Path) -> str:
    """Create the folder, accessible to its owner only, if missing; returns why it cannot be trusted, or ''."""
    try:
        nearest = next(path for path in folder.parents if path.exists())
        if reason := find_weakness_above(nearest / "any"):
            return reason  # create nothing in a folder that others control
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.path.lexists(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        return find_weakness(folder)
    except OSError as error:
        return error.strerror or type(error).__name__


def find_weakness(folder: Path) -> str:
    """Why another user could write to this folder; '' if none could."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & OTHERS_WRITE:
        return "others may write into it"
    return find_weakness_above(folder)


def find_weakness_above(path: Path) -> str:
    """Why another user could replace this path, checking its parents as written and with links resolved."""
    administrators = {0, Path("/").stat().st_uid}  # in a user namespace root may have another uid
    for parent in {*path.parents, *path.parent.resolve().parents, path.parent.resolve()}:
        found = parent.stat()
        if found.st_uid not in {*administrators, os.geteuid()}:
            return f"{parent} belongs to user {found.st_uid}"
        if (
            found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
        ):  # the sticky bit stops others from renaming
            return f"others may write into {parent}"
    return ""


def fresh_folder() -> Path:
    """A temporary folder of this process, removed at exit."""
    folder, owner = Path(tempfile.mkdtemp(prefix="anyformer-compiled-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
