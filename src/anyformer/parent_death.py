"""Worker processes end with the process that started them, also where it was killed and could tell them nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
INTERVAL = 0.5  # seconds between two looks


def end_with_parent(parent: int) -> None:
    """Called in a forked worker: end this process as soon as `parent`, the process that forked it, is gone."""
    if sys.platform == "linux":
        # At once, and also while a decoder keeps the interpreter's lock. The kernel means the thread that forked: it is
        # the one that uses the workers, and ends after them.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    end_if_orphaned(parent)  # it may have gone before it was asked about
    threading.Thread(target=watch, args=(parent,), name="parent-death", daemon=True).start()


def watch(parent: int) -> None:
    """Look from time to time, as no other system tells."""
    while True:
        time.sleep(INTERVAL)
        end_if_orphaned(parent)


def end_if_orphaned(parent: int) -> None:
    """End this process when its parent has ended: then the parent's id is another."""
    if os.getppid() != parent:
        os._exit(1)
