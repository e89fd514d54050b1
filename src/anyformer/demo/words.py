"""Shell commands to try: the demo as a `train` command, and what to do with its run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from anyformer.training.setup.request import Request


def train_line(request: Request) -> str:
    """The equivalent `train` command, with options instead of settings where they exist."""
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
    """Commands to generate text, train on another text, and resume a stopped run."""
    folder = run.as_posix()
    return [
        line("generate", folder, "    def", "--temperature", "0.6", "--max-new-tokens", "60"),
        line("train", "yourbook.txt"),
        line("resume", folder),
    ]


def line(*words: str) -> str:
    """A shell-quoted command."""
    return shlex.join([program("anyformer"), *words])


def program(name: str) -> str:
    """The shortest path of a program beside this Python that works from the current folder."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        return name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
