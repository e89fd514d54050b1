"""Everything the demo says and draws beside the training's own display, on the console it is given.

Away from a terminal there are plain lines and no control characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from anyformer.terminal import CurveSeries, clean, curve, heat_map, shaded

if TYPE_CHECKING:  # these bring torch, and the first sentence should not wait for it
    from anyformer.demo.inside import HeadWeights
    from anyformer.demo.learned import DemoResult
    from anyformer.demo.sampling import Piece

WIDEST = 110  # wider lines are harder to read
SAMPLE_WIDTH = 26  # of a text on the way, at least
PANEL_WIDTH = 34  # of a completion at the end, at least
SAMPLE_LINES = 8

HELD_OUT, TRAINING, GZIP = "bold yellow", "cyan", "magenta"


class Show:
    """What the demo prints. `quiet` keeps the results only."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.colour = console.color_system is not None and not console.no_color
        self.ascii_only = console.options.ascii_only
        self.width = min(console.width, WIDEST)

    # ------------------------------------------------------------------------------------------------ words

    def news(self, *what: RenderableType) -> None:
        """Something about the work; quiet leaves it out."""
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
            # rich fills tables with spaces up to the edge; a log is better without.
            lines = captured.get().split("\n")
            self.console.out("\n".join(line.rstrip(" ") for line in lines), end="", highlight=False)

    def copy(self, *lines: str) -> None:
        """Lines to copy: never wrapped, never coloured, nothing around them."""
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
        """What the lines of the curve are, each with its last value."""
        point, line, level = ("o", ".", "-") if self.ascii_only else ("●", "▀▀", "──")
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{point} held-out files {learned.bits:.2f}", HELD_OUT).append("   ")
        text.append(f"{line} training {learned.training[-1][1]:.2f}", TRAINING).append("   ")
        text.append(f"{level} gzip {gzip_bits:.2f}", GZIP).append("   ").append(f"(xz {xz_bits:.2f})", "dim")
        return text

    def curve(self, learned: DemoResult, gzip_bits: float, height: int) -> Text:
        """Training and held-out bits per byte over the steps, with gzip as a level line."""
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
        """The same beginning continued at growing steps, side by side."""
        columns = max(1, min(3, self.width // SAMPLE_WIDTH))
        chosen = spread(written, columns)
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        for step, _ in chosen:
            table.add_column(f"at step {step:,}", width=self.width // columns - 1, no_wrap=True, overflow="ellipsis")
        table.add_row(*(first_lines(text, lines) for _, text in chosen))
        return table

    def completions(self, texts: Sequence[list[Piece]], lines: int = 9) -> RenderableType:
        """Completions side by side, each token on the colour of its probability."""
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
        """The key to the shades."""
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
    """The first lines of a text, safe to draw; each is one line on the screen."""
    return Text("\n".join(clean(text).split("\n")[:count]), no_wrap=True, overflow="ellipsis")


def spread(items: list[tuple[int, str]], count: int) -> list[tuple[int, str]]:
    """At most `count` of them, the first and the last among them, the others evenly between.

    >>> [step for step, _ in spread([(i, "") for i in range(7)], 3)]
    [0, 3, 6]
    """
    if len(items) <= count or count < 2:
        return items[-count:] if count < 2 else items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
