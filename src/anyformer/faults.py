"""Fault injection at named points of a run, so that tests can verify every guarantee about crashes.

Inactive unless `arm` was called, which only the command line does, from ANYFORMER_FAULT: `kill@manifest:2` kills the
process the second time that a save reaches its manifest.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anyformer.errors import UserError, did_you_mean

# Points of a save, in order; the tests kill a process at each.
SAVING = ("weights", "optimizer", "state", "before-manifest", "manifest", "before-rename", "renamed", "before-delete",
          "deleted")  # fmt: skip
POINTS = ("settled", "step", "gradients", *SAVING, "saved", "evaluated", "scored", "finished")
SERVING = ("engine-step", "prefill", "decode")  # in the engine: its loop, a pass over prompts, a decode step
ACTIONS = ("sleep", "kill", "term", "int", "enospc", "eio", "nan-loss", "nan-weight", "nan-gradient", "oom")

armed: dict[str, tuple[str, int]] = {}
reached: dict[str, int] = {}


def arm(words: str) -> None:
    """Parse and arm `action@point:count`, several separated by commas."""
    armed.clear()
    reached.clear()
    for word in filter(None, words.split(",")):
        action, _, place = word.partition("@")
        point, _, count = place.partition(":")
        if action not in ACTIONS or point not in (*POINTS, *SERVING) or not (count or "1").isdigit():
            known = [f"{action}@{point}" for action in ACTIONS for point in (*POINTS, *SERVING)]
            raise UserError(f"no fault {word!r}", where="ANYFORMER_FAULT", fix=did_you_mean(word, known))
        armed[point] = (action, int(count or 1))


@contextmanager
def paused() -> Iterator[None]:
    """Disable all points inside, for trial steps that are not steps of the run."""
    kept = dict(armed)
    armed.clear()
    try:
        yield
    finally:
        armed.update(kept)


def point(name: str) -> str:
    """Reached a named point: run the armed action; returns one that the caller must carry out itself, or ""."""
    if name not in armed:
        return ""
    reached[name] = reached.get(name, 0) + 1
    action, count = armed[name]
    if reached[name] != count:
        return ""
    if action in ("kill", "term", "int"):
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}[action])
    if action == "sleep":
        time.sleep(3600)  # longer than any test waits
    if action == "enospc":
        raise OSError(errno.ENOSPC, "No space left on device")
    if action == "eio":
        raise OSError(errno.EIO, "Input/output error")
    if action == "oom":
        raise torch.OutOfMemoryError("out of memory, as asked for")
    return action
