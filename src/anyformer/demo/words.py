"""Lines that a reader can type: the demo as a `train` line, and what to do with the run it leaves."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from anyformer.training.setup.request import Request


def train_line(request: Request) -> str:
    """The command that asks for the same training, with the settings that have an option of their own as options."""
    options = {"data.split.valid_file": "--valid", "training.steps": "--steps", "training.minutes": "--minutes"}
    words = ["train", *(path.as_posix() for path in request.source), "--preset", str(request.preset)]
    for name, value in request.settings.items():
        text = value[0] if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
        if name == "training.seed":
            words += ["--seed", text] if value else []
        else:
            words += [options[name], text] if name in options else ["--set", f"{name}={text}"]
    if request.device != "auto":
        words += ["--device", request.device]
    return line(*words, "--out", str(request.out))


def next_lines(run: Path) -> list[str]:
    """Write with the model, train on a text of one's own, resume a stopped run."""
    folder = run.as_posix()
    return [
        line("generate", folder, "    def", "--temperature", "0.6", "--max-new-tokens", "60"),
        line("train", "yourbook.txt"),
        line("resume", folder),
    ]


def line(*words: str) -> str:
    """A line for the shell."""
    return shlex.join([program("anyformer"), *words])


def program(name: str) -> str:
    """How to call a program that stands beside this Python, as short as it works from here."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        return name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
