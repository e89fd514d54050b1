"""Everything the demo says and draws, on the console it is given.

On a terminal one block is drawn anew at most four times a second by rich's own thread; anywhere else there are plain
lines and no control characters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from anyformer.terminal import Series, clean, curve, heat_map, shaded

if TYPE_CHECKING:  # these bring torch, and the first sentence should not wait for it
    from anyformer.demo.inside import Found
    from anyformer.demo.record import Record
    from anyformer.demo.sampling import Piece

REFRESH = 4  # a second
SILENCE = 10.0  # seconds without a plain line, at most
WIDEST = 110  # wider lines are harder to read
SAMPLE_WIDTH = 26  # of a completion in the live block, at least
PANEL_WIDTH = 34  # of a completion at the end, at least
SAMPLE_LINES = 8

HELD_OUT, TRAINING, GZIP = "bold yellow", "cyan", "magenta"


class Show:
    """The demo's voice. `quiet` keeps the results only."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.live = console.is_terminal and not console.is_dumb_terminal and not quiet
        self.colour = console.color_system is not None and not console.no_color
        self.ascii_only = console.options.ascii_only
        self.width = min(console.width, WIDEST)
        self.spoke = time.perf_counter()

    # ------------------------------------------------------------------------------------------------ words

    def news(self, *what: RenderableType) -> None:
        """Something about the work; quiet leaves it out."""
        if not self.quiet:
            self.say(*what)

    def say(self, *what: RenderableType) -> None:
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
        self.spoke = time.perf_counter()

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

    # ------------------------------------------------------------------------------------------------ while it trains

    @contextmanager
    def during(self, record: Record) -> Iterator[None]:
        """While the block is open the record is on the screen; it stays there when the block ends."""
        if not self.live:
            yield
            return
        with Live(
            get_renderable=lambda: self.block(record), console=self.console, refresh_per_second=REFRESH,
            redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
        ):  # fmt: skip
            yield

    def block(self, record: Record) -> RenderableType:
        """The live block: where it stands, the curve, and what it writes."""
        # Two lines of figures, two empty ones, one of headings; what is left of the screen is for curve and samples.
        room = max(12, self.console.height - 6)
        lines = min(SAMPLE_LINES, room // 2)
        return Group(
            Text(),
            self.figures(record),
            self.curve(record, min(13, room - lines)),
            Text(),
            self.samples(record, lines),
        )

    def figures(self, record: Record) -> RenderableType:
        """Two lines of numbers, coloured as the lines of the plot are."""
        pace = record.pace
        state = "done" if pace.done else f"{pace.left:.0f} s left" if pace.at else "measuring"
        first = Text(f"step {pace.at:,} of {pace.total:,} · {record.rate:,.0f} tokens/s · {state}", no_wrap=True)
        second = Text("bits per byte   ", no_wrap=True)
        second.append(f"● held-out files {record.last:.2f}", HELD_OUT).append("   ")
        trained = record.smooth()
        second.append(f"training {trained[-1][1]:.2f}" if trained else "training", TRAINING).append("   ")
        second.append(f"gzip {record.gzip_bits:.2f}", GZIP).append("   ").append(f"xz {record.xz_bits:.2f}", "dim")
        return Group(first, second)

    def curve(self, record: Record, height: int) -> Text:
        """Training and held-out bits per byte over the steps, with gzip as a level line."""
        held_out = Series(list(record.held_out), HELD_OUT, joined=False, mark="o" if self.ascii_only else "●")
        return curve(
            [Series(record.smooth(), TRAINING, mark="."), held_out],
            self.width,
            height,
            x_range=(0.0, float(max(record.pace.total, 1))),
            x_words=("step 0", f"step {record.pace.total:,}"),
            levels=[(record.gzip_bits, GZIP)],
            ascii_only=self.ascii_only,
        )

    def samples(self, record: Record, lines: int) -> RenderableType:
        """The same prompt completed at growing steps, side by side."""
        columns = max(1, min(3, self.width // SAMPLE_WIDTH))
        chosen = spread(list(record.samples), columns)
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        for step, _ in chosen:
            table.add_column(f"at step {step:,}", width=self.width // columns - 1, no_wrap=True, overflow="ellipsis")
        table.add_row(*(first_lines(text, lines) for _, text in chosen))
        return table

    def line(self, record: Record, *, now: bool = False) -> None:
        """One plain line where there is no live block: at each new figure, and never silent for long."""
        if self.live or not (now or time.perf_counter() - self.spoke > SILENCE):
            return
        pace = record.pace
        known = f"held-out {record.last:.2f} bits/byte (gzip {record.gzip_bits:.2f})"
        self.news(
            f"step {pace.at:>5,} of {pace.total:,}   {known}   {record.rate:,.0f} tokens/s   {pace.left:.0f} s left"
        )

    def sample(self, text: str) -> None:
        """A completion among the plain lines."""
        if not self.live:
            lines = first_lines(text, SAMPLE_LINES).plain.split("\n")
            self.news(Text("\n".join(f"    | {line}"[: self.width] for line in lines)))

    # ------------------------------------------------------------------------------------------------ at the end

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

    def head(self, found: Found) -> RenderableType:
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
