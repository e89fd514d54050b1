"""The page on several processes: its commands are run as they stand, with the launcher it names."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer.training.distributed.watch import LOST
from tests.cli import made
from tests.training.distributed.launch import free_port

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "many-machines.md"
SMALL = ["--steps", "4", "--set", "model.stack.depth=1", "--set", "model.stack.width=16", "--progress", "none",
         "--set", "data.tokenizer.kind=char", "--set", "data.tokenizer.max_length=16", "--device", "cpu"]  # fmt: skip


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    made.book(tmp_path)
    lines = [line for block in blocks("sh") for line in block.strip().splitlines()]
    assert len(lines) == 3
    for line in lines:
        launcher, *words = shlex.split(line)
        assert launcher == "torchrun"
        words += SMALL if "train" in words else []
        program = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port()), *words]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=200,
                              env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        assert ("parallel 2 processes, " in done.stderr) == ("train" in words), done.stderr
    for name in ("book", "large"):
        assert json.loads((tmp_path / "runs" / name / "run.json").read_text())["status"] == "done"
    assert (tmp_path / "runs" / "large" / "config.yaml").read_text().count("parallel: fsdp") == 1


@pytest.mark.parametrize("words", [["train", "no-such.csv"], ["train", "book.txt", "--task", "nothing"],
                                   ["train", "book.txt", "--batch-size", "9"]])  # fmt: skip
def test_a_launcher_ends_nobody_who_still_has_to_tell_why(words: list[str], tmp_path: Path) -> None:
    """It ends all processes as soon as one has ended; the one that knows the reason must be that one."""
    made.book(tmp_path)
    program = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port()),
               "--nproc-per-node", "2", "-m", "anyformer", *words, "--out", "run", "--device", "cpu"]  # fmt: skip
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=200,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")][1:] == [], done.stderr
    assert "\nerror: " in f"\n{done.stderr}", done.stderr


def test_the_script_for_slurm_is_one() -> None:
    (script,) = blocks("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "-m anyformer $WORDS" in script and "#SBATCH --nodes" in script


def test_the_page_says_how_long_a_lost_process_is_waited_for() -> None:
    assert f"after {LOST:.0f} seconds without a sign of life" in PAGE.read_text()
