"""The progress display of a training: a live block, plain lines, one notebook cell, or only the last line.

Everything goes to stderr, drawn by a separate thread that never waits for a device. Display errors never stop the
training: writes to a closed stream are dropped, and a display that fails is removed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO, Protocol, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from anyformer.errors import UserError, did_you_mean
from anyformer.training.display.block import block
from anyformer.training.display.format import bare
from anyformer.training.display.lines import LineDisplay, last_line
from anyformer.training.display.progress import Progress
from anyformer.training.display.stream import Safe

MODES = ("auto", "bar", "lines", "none")
INTERVAL = 0.5  # seconds between two looks at the progress: a block is 3 to 8 ms of work, at most 2 % of one core
PATIENCE = 5.0  # seconds to wait for a thread that is stuck in a write


class Screen(Protocol):
    """One way to show progress; `tick` is only called by the display's thread."""

    def start(self) -> None: ...

    def tick(self) -> None: ...

    def finish(self, last: str) -> None: ...


class Display:
    """Shows a progress while its `with` block runs; `mode` says how: bar, lines, notebook or none.

    `last` replaces the last line.
    """

    def __init__(self, progress: Progress, mode: str, screens: list[Screen], stream: Safe) -> None:
        self.progress, self.mode, self.screens, self.stream = progress, mode, screens, stream
        self.trouble: list[Exception] = []
        self.last = ""
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Display:
        self.each(lambda screen: screen.start())
        self.thread = threading.Thread(target=self.run, name="anyformer display", daemon=True)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        try:
            if self.thread is not None:
                self.thread.join(PATIENCE)
        finally:  # a second Ctrl-C may arrive while the first is being handled
            last = self.last or last_line(self.progress.snapshot(), kind)
            self.each(lambda screen: screen.finish(last), last)

    def run(self) -> None:
        while not self.stopping.wait(INTERVAL):
            self.each(lambda screen: screen.tick())

    def each(self, what: Callable[[Screen], None], last: str = "") -> None:
        """Call every screen; one that fails is dropped, and lines take its place."""
        for screen in list(self.screens):
            try:
                what(screen)
            except Exception as error:
                self.trouble.append(error)
                logging.getLogger("anyformer").debug("the display failed", exc_info=True)
                self.screens.remove(screen)
                if isinstance(screen, LineDisplay):
                    continue
                self.mode = "lines"
                lines = LineDisplay(self.progress, self.stream, told=self.progress.numbered)
                self.screens.append(lines)
                if last:
                    lines.finish(last)


def display(
    progress: Progress,
    mode: str = "auto",
    stream: TextIO | None = None,
    quiet: bool = False,
    log: TextIO | None = None,
) -> Display:
    """A display of `progress` for a `with` block, on stderr unless `stream` is given.

    `auto` is the live block on a terminal, one cell in a notebook, plain lines elsewhere; `none` and `quiet` leave the
    last line only. `log` is a file that gets the plain lines whatever the screen shows.
    """
    if mode not in MODES:
        raise UserError(f"unknown display {mode!r}", where="progress", fix=did_you_mean(mode, MODES))
    safe = Safe(sys.stderr if stream is None else stream)
    chosen, screen = choose(progress, "none" if quiet else mode, safe)
    screens = [screen]
    if log is not None:
        screens.append(LineDisplay(progress, Safe(log)))
    return Display(progress, chosen, screens, safe)


def choose(progress: Progress, mode: str, stream: Safe) -> tuple[str, Screen]:
    """The screen that fits this stream; a block is never drawn into a pipe, whatever was requested."""
    if mode == "none":
        return "none", LastLine(stream)
    if mode in ("auto", "bar"):
        try:
            from anyformer.training.display.display import LiveBlock, console_on
            from anyformer.training.display.notebook import NotebookCell, kernel_display
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] != "rich":
                raise
            return "lines", LineDisplay(progress, stream)
        show = kernel_display()
        if show is not None:
            return "notebook", NotebookCell(progress, show)
        console = console_on(stream) if stream.isatty() else None
        if console is not None and not console.is_dumb_terminal:
            return "bar", LiveBlock(progress, console)
    return "lines", LineDisplay(progress, stream)


class LastLine:
    """Prints nothing but the last line."""

    def __init__(self, stream: Safe) -> None:
        self.stream = stream

    def start(self) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def finish(self, last: str) -> None:
        """The one line."""
        self.stream.write(last + "\n")
        self.stream.flush()


def console_on(stream: Safe) -> Console:
    """A console for the stream; rich itself honours NO_COLOR and TERM."""
    return Console(file=cast("IO[str]", stream), force_terminal=True, force_jupyter=False, highlight=False)


class LiveBlock:
    """One block, redrawn in place; it stays on the screen when the training ends.

    Other output to stdout and stderr is not captured: a forked worker that writes to a captured stream could deadlock
    on a lock that the drawing thread held at the fork.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress, self.console = progress, console
        self.told = 0
        self.live = Live(
            get_renderable=self.drawn, console=console, auto_refresh=False, redirect_stdout=False,
            redirect_stderr=False, vertical_overflow="crop",
        )  # fmt: skip

    def drawn(self) -> Group:
        """The block for the current terminal size."""
        size = self.console.size
        ascii_only = self.console.options.ascii_only
        return Group(*block(self.progress.snapshot(), size.width, size.height - 1, ascii_only=ascii_only))

    def start(self) -> None:
        """Draw the block for the first time."""
        self.live.start(refresh=True)

    def tick(self) -> None:
        """Redraw the block, below the events that stay on the screen."""
        try:
            for event in self.progress.events(self.told):
                self.told = event.number
                if event.keep:
                    self.console.print(Text(bare(event.text)), soft_wrap=True)
            self.live.refresh()
        except Exception:
            self.console.show_cursor(True)  # it will not be called again
            raise

    def finish(self, last: str) -> None:
        """Draw the final block and the last line, and restore the terminal."""
        try:
            self.tick()
            self.live.stop()
            self.console.print(Text(last), soft_wrap=True)
        finally:
            self.console.show_cursor(True)  # also if a second Ctrl-C came in between
