"""All output of the demo other than the training's own display.

If the console is no terminal, it gets plain lines without control characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from anyformer.terminal import CurveSeries, clean, curve, heat_map, shaded

if TYPE_CHECKING:  # these import torch, and the first line should not wait for it
    from anyformer.demo.inside import HeadWeights
    from anyformer.demo.learned import DemoResult
    from anyformer.demo.sampling import Piece

WIDEST = 110  # wider lines are harder to read
SAMPLE_WIDTH = 26  # smallest width of a training sample
PANEL_WIDTH = 34  # smallest width of a final completion
SAMPLE_LINES = 8

HELD_OUT, TRAINING, GZIP = "bold yellow", "cyan", "magenta"


class Show:
    """What the demo prints; `quiet`: results only."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.colour = console.color_system is not None and not console.no_color
        self.ascii_only = console.options.ascii_only
        self.width = min(console.width, WIDEST)

    # ------------------------------------------------------------------------------------------------ words

    def news(self, *what: RenderableType) -> None:
        """A progress message, not printed if quiet."""
        if not self.quiet:
            self.write(*what)

    def write(self, *what: RenderableType) -> None:
        """A result."""
        for part in what:
            if self.console.is_terminal:
                self.console.print(part, width=self.width, highlight=False)
                continue
            with self.console.capture() as captured:
                self.console.print(part, width=self.width, highlight=False)
            # rich pads tables with trailing spaces; strip them for logs.
            lines = captured.get().split("\n")
            self.console.out("\n".join(line.rstrip(" ") for line in lines), end="", highlight=False)

    def copy(self, *lines: str) -> None:
        """Lines to copy: never wrapped, coloured or decorated."""
        for line in lines:
            self.console.out(line, highlight=False)

    def title(self, words: str) -> str:
        return f"\n[bold]{words}[/]"

    def facts(self, rows: Sequence[tuple[str, str]]) -> Table:
        """Names and values in two columns."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column()
        for name, value in rows:
            grid.add_row(name, value)
        return grid

    # ------------------------------------------------------------------------------------------------ at the end

    def key(self, learned: DemoResult, gzip_bits: float, xz_bits: float) -> Text:
        """The legend of the curve, with the last value of each line."""
        point, line, level = ("o", ".", "-") if self.ascii_only else ("●", "▀▀", "──")
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{point} held-out files {learned.bits:.2f}", HELD_OUT).append("   ")
        text.append(f"{line} training {learned.training[-1][1]:.2f}", TRAINING).append("   ")
        text.append(f"{level} gzip {gzip_bits:.2f}", GZIP).append("   ").append(f"(xz {xz_bits:.2f})", "dim")
        return text

    def curve(self, learned: DemoResult, gzip_bits: float, height: int) -> Text:
        """Training and held-out bits per byte over the steps, with gzip as a horizontal line."""
        held_out = CurveSeries(learned.held_out, HELD_OUT, joined=False, mark="o" if self.ascii_only else "●")
        return curve(
            [CurveSeries(learned.training, TRAINING, mark="."), held_out],
            self.width,
            height,
            x_range=(0.0, float(max(learned.total, 1))),
            x_words=("step 0", f"step {learned.total:,}"),
            levels=[(gzip_bits, GZIP)],
            ascii_only=self.ascii_only,
        )

    def samples(self, written: list[tuple[int, str]], lines: int = SAMPLE_LINES) -> RenderableType:
        """Continuations of the same prompt at growing steps, side by side."""
        columns = max(1, min(3, self.width // SAMPLE_WIDTH))
        chosen = spread(written, columns)
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        for step, _ in chosen:
            table.add_column(f"at step {step:,}", width=self.width // columns - 1, no_wrap=True, overflow="ellipsis")
        table.add_row(*(first_lines(text, lines) for _, text in chosen))
        return table

    def completions(self, texts: Sequence[list[Piece]], lines: int = 9) -> RenderableType:
        """Completions side by side, each token coloured by its probability."""
        panels = []
        for pieces in texts:
            text = shaded([(piece.text, piece.probability) for piece in pieces], colour=self.colour)
            rows = text.split("\n")[: lines if self.colour else 2 * lines]
            text = Text("\n", no_wrap=True, overflow="crop").join(rows)
            panels.append(Panel(text, border_style="dim"))
        across = max(1, min(len(panels), self.width // PANEL_WIDTH))
        grid = Table.grid(expand=True)
        for _ in range(across):
            grid.add_column(ratio=1)
        for i in range(0, len(panels), across):
            grid.add_row(*panels[i : i + across])
        return grid

    def scale(self) -> Text:
        """The legend of the shades."""
        if not self.colour:
            return Text("the digit under a token is its probability in tenths, as the model saw it")
        words = [(f" {tenth / 10:.1f} ", tenth / 10) for tenth in range(0, 11, 2)]
        return Text("probability the model gave to each token ").append_text(shaded(words))

    def head(self, found: HeadWeights) -> RenderableType:
        """One attention head over a line of code; the closing brackets' cells are marked."""
        seen = [[w if j <= i else None for j, w in enumerate(row)] for i, row in enumerate(found.weights)]
        return heat_map(
            seen, found.words, found.words, colour=self.colour, ascii_only=self.ascii_only, marked=found.pairs
        )


def first_lines(text: str, count: int) -> Text:
    """The first lines of a text, without control characters and not wrapped."""
    return Text("\n".join(clean(text).split("\n")[:count]), no_wrap=True, overflow="ellipsis")


def spread(items: list[tuple[int, str]], count: int) -> list[tuple[int, str]]:
    """At most `count` items: the first, the last, and evenly spaced ones in between.

    >>> [step for step, _ in spread([(i, "") for i in range(7)], 3)]
    [0, 3, 6]
    """
    if len(items) <= count or count < 2:
        return items[-count:] if count < 2 else items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
