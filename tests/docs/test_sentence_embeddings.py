"""The page on sentence embeddings: every command and the Python are run as they stand, in small."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.cli.trying import run, standing_in
from tests.training.nursery import Nursery
from tests.training.test_contrast import write_texts

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sentence-embeddings.md"
SMALL = ["--steps", "2", "--progress", "none"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("vectors")
    write_texts(folder)
    pairs = (folder / "pairs.csv").read_text()
    (folder / "pairs.csv").write_text(pairs.replace("english,other", "question,answer", 1))
    (folder / "new.txt").write_text("the cat sat\na dog ran\n")
    return folder


def test_every_command_and_the_python_run(home: Path, nursery: Nursery) -> None:
    lines = [line for block in blocks("sh") for line in block.strip().splitlines()]
    assert {shlex.split(line)[1] for line in lines} == {"train", "predict", "evaluate"}
    with standing_in(home):
        for line in lines:
            words = shlex.split(line)[1:]
            said = run(*words, *(SMALL if words[0] == "train" else ()))
            assert said.code == 0, (line, said.err.splitlines()[-4:])
    assert np.load(home / "vectors.npy").shape[0] == 2
    (code,) = blocks("python")
    done = nursery.python(code, home)
    assert done.returncode == 0 and -1 <= float(done.stdout) <= 1.0001, done.stderr
