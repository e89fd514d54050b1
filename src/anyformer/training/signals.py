"""Stop requests: the first lets the current step finish and saves, the second stops immediately."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from anyformer.errors import INTERRUPTED, TERMINATED


class Requests:
    """Within the `with` block, Ctrl-C and SIGTERM set `code`, and raise the second time; with `at_once`, for when
    nothing is left to save, they raise the first time."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.code: int | None = None
        self.at_once = at_once
        self.before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Requests:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def note(self, number: int, frame: FrameType | None) -> None:
        again, self.code = self.code is not None, INTERRUPTED if number == signal.SIGINT else TERMINATED
        if again or self.at_once:
            raise KeyboardInterrupt
