"""How far one command walks through the source: files and functions of src/anyformer that it visits.

    python benchmarks/walk.py                       the four walks of docs/design/walk.md, on small files made here
    python benchmarks/walk.py --list generate RUN "Once upon" --max-new-tokens 4

Prints the files and functions visited, the distinct switches (calls from one file into another), and how many of those
lead back to a file that was left before. The main thread only; spec.py, errors.py, lambdas and the bodies of classes
are not counted. With --list also the files, in the order of their first visit.
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import anyformer.cli

SOURCE = os.path.dirname(anyformer.cli.__file__) + os.sep
LEFT_OUT = ("spec.py", "errors.py")  # every file uses them


@dataclass
class CarriedState:
    """What was visited so far."""

    files: dict[str, None] = field(default_factory=dict)  # in the order of their first visit
    functions: set[tuple[str, str]] = field(default_factory=set)
    switches: set[tuple[str, str]] = field(default_factory=set)
    back: set[tuple[str, str]] = field(default_factory=set)
    last: str = ""

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; `sys.setprofile` tells of every one."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):  # nearly all: it must be quick
            return
        name = code.co_filename.removeprefix(SOURCE)
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if not is_function or name in LEFT_OUT:
            return
        self.functions.add((name, code.co_qualname))
        if name == self.last:
            return
        switch = (self.last, name)
        if self.last and switch not in self.switches:
            self.switches.add(switch)
            if name in self.files:
                self.back.add(switch)
        self.files[name] = None
        self.last = name

    def __str__(self) -> str:
        return (
            f"{len(self.files)} files, {len(self.functions)} functions, {len(self.switches)} switches, "
            f"{len(self.back)} of them back"
        )


def walk_command(words: list[str], *, is_listed: bool) -> None:
    """Run one command of the command line and print its walk."""
    walk = CarriedState()
    sys.setprofile(walk.see)
    try:
        code = anyformer.cli.main(words)
    finally:
        sys.setprofile(None)
    if is_listed:
        print("\n".join(walk.files))
    print(f"exit {code}: {walk}", file=sys.stderr)


def walk_page() -> None:
    """The walks of the page, each in a process of its own."""
    draw = random.Random(0)
    rows = [(draw.randint(18, 80), draw.choice(["Rome", "Oslo", "Lima"]), draw.gauss(30, 9)) for _ in range(600)]
    cells = [f"{age},{city},{income:.2f},{'yes' if age + income > 75 else 'no'}" for age, city, income in rows]
    with tempfile.TemporaryDirectory() as home:
        Path(home, "book.txt").write_text(inspect.getsource(argparse)[:60_000], encoding="utf-8")
        Path(home, "table.csv").write_text("\n".join(["age,city,income,label", *cells, ""]), encoding="utf-8")
        Path(home, "new.csv").write_text("age,city,income\n72,Oslo,30.47\n34,Lima,20.61\n", encoding="utf-8")
        for words in (
            ["train", "book.txt", "--steps", "2", "--out", "text", "--quiet"],
            ["train", "table.csv", "--target", "label", "--steps", "2", "--out", "table", "--quiet"],
            ["generate", "text", "Once upon", "--max-new-tokens", "4"],
            ["predict", "table", "new.csv"],
        ):
            line = [sys.executable, str(Path(__file__).resolve()), *words]
            done = subprocess.run(line, cwd=home, env=os.environ, capture_output=True, text=True, check=True)
            print(f"{' '.join(words[:2])}: {done.stderr.splitlines()[-1]}")


def main() -> None:
    words = sys.argv[1:]
    is_listed = words[:1] == ["--list"]
    if words:
        walk_command(words[is_listed:], is_listed=is_listed)
    else:
        walk_page()


if __name__ == "__main__":
    main()
