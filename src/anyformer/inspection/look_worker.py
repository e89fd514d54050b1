"""The thread that computes what pages ask of a server, and makes way for all else that the server does."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable

POLITE = 10  # how far the thread steps back (`nice`): where all cores are busy it gets about a tenth of one
SWITCH = 0.0005  # seconds after which Python code of a look lets another thread go on; usual are 0.005
MOST_WAITING = 16  # questions; a browser asks six at a time


class LookWorker:
    """One question after the other, in the order they came; begins with the first."""

    def __init__(self) -> None:
        self.questions: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self.thread: threading.Thread | None = None
        self.busy = False

    def ask(self, work: Callable[[], None]) -> bool:
        """Have something done; False where too much waits. To be called from one thread."""
        try:
            self.questions.put_nowait(work)
        except queue.Full:
            return False
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="anyformer-look", daemon=True)
            self.thread.start()
        return True

    def run(self) -> None:
        if sys.platform == "linux":  # where each thread has a priority of its own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), POLITE)
        usual = sys.getswitchinterval()
        while True:
            work = self.questions.get()
            self.busy = True
            sys.setswitchinterval(SWITCH)
            try:
                work()
            finally:
                sys.setswitchinterval(usual)
                self.busy = False
