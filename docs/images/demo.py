"""Makes demo.svg: the screen at the end of a real `make demo`. Run it on an idle machine: python docs/images/demo.py"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from anyformer import demo
from anyformer.demo import show

# rich's template fetches a font, and a picture in a README must not fetch anything.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "'DejaVu Sans Mono', Menlo, Consolas, monospace"
)


class Picture(show.Show):
    """The same show on a screen that is photographed: its end, without the lines to copy.

    What the demo says before, and the training's own display, are left out; a README can show only so much.
    """

    def copy(self, *lines: str) -> None:
        pass

    def title(self, words: str) -> str:
        return "" if words == "Lines to copy" else super().title(words)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else demo.SECONDS
    console = Console(
        record=True, width=104, height=34, force_terminal=True, color_system="truecolor", file=io.StringIO()
    )  # fmt: skip
    show.Show = Picture  # type: ignore[misc]
    target = Path(__file__).resolve().with_suffix(".svg")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        demo.run(seconds=seconds, console=console, device="cpu", quiet=True)
    svg = console.export_svg(title="make demo", theme=MONOKAI, code_format=FORMAT, unique_id="demo")
    target.write_text(svg.replace("&#160;", "\u00a0"), encoding="utf-8")
    sys.stdout.write(f"{target} {target.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
