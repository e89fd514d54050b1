"""`make demo`: `anyformer train` on the standard library's own source, then a look at the trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.extras import require

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = Path("runs/demo")
SECONDS = 105.0  # of training, including evaluations
PRESET = "decoder-mini"
# The defaults except for shorter sequences and smaller batches: two minutes on two cores are about a thousand steps.
SETTINGS = {"data.tokenizer.max_length": 128, "training.batch_size": 8}
PROMPTS = ("    def ", "class ", "    if ")


def run(
    *,
    seconds: float | None = None,
    steps: int | None = None,
    device: str = "auto",
    seed: int = 0,
    out: Path | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> float:
    """Train, show and save; returns the held-out bits per byte at the end.

    `seconds` is the training time, `steps` a number of steps instead; everything else takes about 15 s more.
    """
    require("rich", "the demo needs")
    from anyformer.demo.show import Show

    show = Show(console_here() if console is None else console, quiet)
    show.news(
        "A small GPT will now learn Python from the source of Python's own standard library, on this machine, "
        f"in about {rough(seconds, steps)}; Ctrl-C stops it at any moment and keeps what it has learned."
    )
    from anyformer.demo.job import Job  # a late import: torch takes seconds, and the first line should not wait

    job = Job(show, device=device, seed=seed, out=out)
    return job.run(SECONDS if seconds is None else seconds, steps)


def rough(seconds: float | None, steps: int | None) -> str:
    """The approximate duration in words."""
    if steps is not None:
        return f"{steps:,} steps"
    whole = (SECONDS if seconds is None else seconds) + 15
    return f"{whole / 60:.0f} minutes" if whole >= 100 else f"{whole:.0f} seconds"


def console_here() -> Console:
    """A console on stdout; plain text if stdout is no terminal, regardless of colour variables in the environment."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(force_terminal=None if terminal else False, width=None if terminal else 100)
