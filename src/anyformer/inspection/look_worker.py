"""The background thread that computes the pages' requests with low priority beside the server's other work."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator

POLITE = 10  # niceness of the thread: if all cores are busy it gets about a tenth of one
SWITCH = 0.0005  # GIL switch interval in seconds during a look; Python's default is 0.005
MOST_WAITING = 16  # queued requests; a browser sends six at a time


class SwitchInterval:
    """The GIL switch interval of the process, shortened while any worker is busy.

    It is shared by all threads: a worker that saved and restored it alone would keep another's short one for good.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.busy = 0
        self.usual = sys.getswitchinterval()

    @contextlib.contextmanager
    def shortened(self) -> Iterator[None]:
        with self.lock:
            if not self.busy:
                self.usual = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH)
            self.busy += 1
        try:
            yield
        finally:
            with self.lock:
                self.busy -= 1
                if not self.busy:
                    sys.setswitchinterval(self.usual)


switch_interval = SwitchInterval()


class LookWorker:
    """Processes requests one by one, in order; the thread starts with the first."""

    def __init__(self) -> None:
        self.questions: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self.thread: threading.Thread | None = None
        self.busy = False

    def ask(self, work: Callable[[], None]) -> bool:
        """Queue work; False if the queue is full. Call from one thread only."""
        try:
            self.questions.put_nowait(work)
        except queue.Full:
            return False
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="anyformer-look", daemon=True)
            self.thread.start()
        return True

    def run(self) -> None:
        if sys.platform == "linux":  # on Linux each thread has its own priority
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), POLITE)
        while True:
            work = self.questions.get()
            self.busy = True
            try:
                with switch_interval.shortened():
                    work()
            finally:
                self.busy = False
