"""`make demo`: a small GPT learns Python from the standard library's own source, before the reader's eyes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from anyformer.core.model import Model

SECONDS = 105.0  # of training, with everything that happens between the steps
VOCAB = 384
PROMPT = "    def "
PROMPTS = ("    def ", "class ", "    if ")
SHOWN_AT = (0.02, 0.06, 0.15, 0.35, 0.65, 1.0)  # shares of the training at which the prompt is completed
JUDGED_AT = (0.03, 0.08, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)  # and at which the held-out files are read
SHARE = 0.15  # of the time may go into both


def model(vocab: int = VOCAB) -> Model:
    """The demo's network: pre-norm, rotary positions, a head that shares the table."""
    from anyformer import LM, MLP, Attention, Block, Model, RMSNorm, Rope, Stack, Tokens

    block = Block(
        mixer=Attention(heads=4, bias=False),
        relative=Rope(),
        feed=MLP(act="gelu_tanh", bias=False),
        norm=RMSNorm(),
    )
    return Model(
        embed=Tokens(vocab=vocab), stack=Stack(width=128, depth=4, causal=True, block=block), head=LM(tied=True)
    )


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

    `seconds` is the time for training, `steps` a number of steps in its place; the whole takes some 15 s more.
    """
    started = time.perf_counter()
    from anyformer.demo.show import Show

    show = Show(console_here() if console is None else console, quiet)
    show.news(
        "A small GPT will now learn Python from the source of Python's own standard library, on this machine, "
        f"in about {rough(seconds, steps)}; Ctrl-C stops it at any moment."
    )
    import torch  # here and not above: it takes seconds, and the sentence should not wait

    from anyformer.demo.folder import FOLDER, check_folder
    from anyformer.demo.job import Job
    from anyformer.predictor import pick_device

    folder = FOLDER if out is None else out
    check_folder(folder)
    threads = torch.get_num_threads()
    job = Job(show, pick_device(device), seed, folder, started)
    try:
        job.prepare(SECONDS if seconds is None and steps is None else seconds, steps)
        job.train()
        job.finish()
    finally:
        torch.set_num_threads(threads)
        show.console.show_cursor(True)  # also after a second Ctrl-C during the clean-up of the first
    return job.record.last


def rough(seconds: float | None, steps: int | None) -> str:
    """The length of the whole, as one would say it."""
    if steps is not None:
        return f"{steps:,} steps"
    whole = (SECONDS if seconds is None else seconds) + 15
    return f"{whole / 60:.0f} minutes" if whole >= 100 else f"{whole:.0f} seconds"


def console_here() -> Console:
    """A console on stdout; away from a terminal it writes plain text, whatever the environment says of colours."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(force_terminal=None if terminal else False, width=None if terminal else 100)
