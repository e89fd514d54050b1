"""How the command line is tried here: in this process, with everything it says and leaves behind looked at."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.cli import main

LONGEST = 300  # characters of an error line
SLOWEST = 5.0  # seconds until a mistake is told


@dataclass
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*words: str | Path) -> Said:
    """One command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    began = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Said(code, out.getvalue(), err.getvalue(), time.process_time() - began)


def done(*words: str | Path) -> Said:
    """A command that must succeed."""
    said = run(*words)
    assert said.code == 0, (words, said.err.splitlines()[-6:])
    return said


@contextlib.contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    """Work in a folder, as somebody at a prompt does."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def tree(folder: Path) -> str:
    """A hash of everything below a folder: names, kinds, sizes, bytes of plain files."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file" if path.is_file() else "other"
        found.update(f"{path.relative_to(folder)} {kind}\0".encode("utf-8", "surrogateescape"))
        if kind == "file":
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def refused(said: Said, before: str, folder: Path, *, slowest: float = SLOWEST) -> str:
    """The one line of a refusal, after looking at everything that is promised of it."""
    assert said.code == 2, (said.code, said.out, said.err)
    assert len(said.errors) == 1, said.err
    line = said.errors[0]
    assert len(line) <= LONGEST, (len(line), line)
    assert "; " in line, f"no fix in: {line}"
    assert "Traceback" not in said.err and not said.out, (said.out, said.err)
    assert tree(folder) == before, f"something was written: {sorted(map(str, folder.rglob('*')))}"
    assert said.seconds < slowest, said.seconds
    return line
