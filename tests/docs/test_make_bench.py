"""`make bench` names scripts that are there and need no argument, and knows of every script of benchmarks/."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Why `make bench` leaves a script out.
NO_PARSER = ("walk",)  # it reads sys.argv itself, and takes nothing for its default
LEFT_OUT = {"decode_gpu": "a GPU", "pretraining": "a folder of data", "pretraining_page": "writes a page of docs/"}


class Parsed(Exception):
    """The words of the command line were accepted."""


def listed() -> list[str]:
    """The scripts that `make bench` runs, as make expands them."""
    done = subprocess.run(["make", "--dry-run", "--assume-old=.venv/.stamp-dev", "bench"], cwd=ROOT, text=True,
                          capture_output=True, timeout=60)  # fmt: skip
    found = re.search(r"for name in ([\w ]+);", done.stdout)
    assert found is not None, done.stdout + done.stderr
    return found[1].split()


def parse_defaults(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script until it has parsed no arguments at all."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, args: Sequence[str] | None = None, *words: Any) -> None:
        parse(self, args, *words)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "0")  # mixer_cost would start itself anew, with it
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)  # also on a machine of one core
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)  # another test may have imported it
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")


def test_every_script_is_run_or_left_out_for_a_reason() -> None:
    names = listed()
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    assert len(set(names)) == len(names) and not set(names) & LEFT_OUT.keys()
    assert set(names) | LEFT_OUT.keys() == scripts


@pytest.mark.parametrize("name", [name for name in listed() if name not in NO_PARSER])
def test_a_script_needs_no_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")  # some compare with it, and import it first
    with pytest.raises(Parsed):
        parse_defaults(name, monkeypatch)


@pytest.mark.parametrize("name", ["decode_gpu", "pretraining"])
def test_control_a_script_that_needs_an_argument_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_defaults(name, monkeypatch)
