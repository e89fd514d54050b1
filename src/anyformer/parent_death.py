"""Worker processes end with their parent process, even if that was killed and could not stop them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
INTERVAL = 0.5  # polling interval in seconds


def end_with_parent(parent: int) -> None:
    """Called in a forked worker: exit as soon as `parent`, the process that forked it, has ended."""
    if sys.platform == "linux":
        # Immediate, even while a decoder holds the GIL. The kernel watches the thread that forked: it is the one that
        # uses the workers, and ends after them.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    end_if_orphaned(parent)  # it may have ended before the prctl
    threading.Thread(target=watch, args=(parent,), name="parent-death", daemon=True).start()


def watch(parent: int) -> None:
    """Poll for the parent's end; the signal exists on Linux only."""
    while True:
        time.sleep(INTERVAL)
        end_if_orphaned(parent)


def end_if_orphaned(parent: int) -> None:
    """Exit if the parent has ended, which changes the parent's pid."""
    if os.getppid() != parent:
        os._exit(1)
