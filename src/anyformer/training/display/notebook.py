"""One notebook cell, updated in place. IPython is used only if it is already running."""

from __future__ import annotations

import importlib
import io
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from anyformer.training.display.block import block
from anyformer.training.display.progress import Progress

WIDTH, HEIGHT = 100, 30
EVERY = 1.0  # seconds between two updates: each one travels to the browser whole
# Its own dark background: the line colours are chosen for one, and a notebook may be light.
CELL = (
    '<pre style="color:{foreground};background:{background};padding:0.8em;line-height:1.25;white-space:pre;'
    "overflow-x:auto;font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace\">{code}</pre>"
)


def kernel_display() -> Callable[..., Any] | None:
    """IPython's `display` if this process is a notebook kernel; None in a terminal, also IPython's."""
    module = sys.modules.get("IPython")
    ask = getattr(module, "get_ipython", None)
    shell = ask() if ask is not None else None
    if shell is None or type(shell).__name__ == "TerminalInteractiveShell":
        return None
    found: Callable[..., Any] = importlib.import_module("IPython.display").display
    return found


class NotebookCell:
    """The live block as HTML, with a plain-text fallback."""

    def __init__(
        self, progress: Progress, show: Callable[..., Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.progress, self.show, self.clock = progress, show, clock
        self.handle: Any = None
        self.updated = clock()

    def start(self) -> None:
        """Create the cell output that is updated later."""
        self.handle = self.show(self.bundle(), raw=True, display_id=True)

    def tick(self) -> None:
        """Update the cell, at most every EVERY seconds."""
        if self.clock() - self.updated >= EVERY:
            self.updated = self.clock()
            self.handle.update(self.bundle(), raw=True)

    def finish(self, last: str) -> None:
        """The final block, with the last line below."""
        self.handle.update(self.bundle(last), raw=True)

    def bundle(self, last: str = "") -> dict[str, str]:
        """The block as a MIME bundle."""
        lines = block(self.progress.snapshot(), WIDTH, HEIGHT)
        if last:
            lines.append(Text(last))
        console = Console(
            file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, force_jupyter=False,
            color_system="truecolor", legacy_windows=False,
        )  # fmt: skip
        for line in lines:
            console.print(line, soft_wrap=True)
        html = console.export_html(theme=MONOKAI, inline_styles=True, code_format=CELL)
        return {"text/html": html, "text/plain": "\n".join(line.plain.rstrip() for line in lines)}
