"""The live block on a terminal."""

from __future__ import annotations

from typing import IO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from anyformer.training.display.block import block
from anyformer.training.display.format import bare
from anyformer.training.display.progress import Progress
from anyformer.training.display.stream import Safe


def console_on(stream: Safe) -> Console:
    """A console for the stream; rich itself honours NO_COLOR and TERM."""
    return Console(file=cast("IO[str]", stream), force_terminal=True, force_jupyter=False, highlight=False)


class LiveBlock:
    """One block, drawn anew in place; it stays on the screen when the training ends.

    What others write to stdout and stderr is not caught: a forked worker that writes to a caught stream could wait for
    ever on a lock that the drawing thread held at the fork.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress, self.console = progress, console
        self.told = 0
        self.live = Live(
            get_renderable=self.drawn, console=console, auto_refresh=False, redirect_stdout=False,
            redirect_stderr=False, vertical_overflow="crop",
        )  # fmt: skip

    def drawn(self) -> Group:
        """The block for the terminal as large as it is now."""
        size = self.console.size
        ascii_only = self.console.options.ascii_only
        return Group(*block(self.progress.snapshot(), size.width, size.height - 1, ascii_only=ascii_only))

    def start(self) -> None:
        """Draw it for the first time."""
        self.live.start(refresh=True)

    def tick(self) -> None:
        """Draw it again, below the events that are to be kept."""
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
        """The final block and the last line; the terminal is as it was."""
        try:
            self.tick()
            self.live.stop()
            self.console.print(Text(last), soft_wrap=True)
        finally:
            self.console.show_cursor(True)  # also if a second Ctrl-C came in between
