"""The page on distillation: every command is run as it stands, in small."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli import made
from tests.cli.trying import run, standing_in

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "distil.md"
SMALL = ["--steps", "3", "--set", "model.stack.width=16", "--set", "training.compile=false", "--progress", "none"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("distil")
    for make in (made.book, made.reviews, made.photos):
        make(folder)
    return folder


def test_every_command_of_the_page_runs(home: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.strip().splitlines()]
    assert len(lines) >= 10
    with standing_in(home):
        for line in lines:
            words = shlex.split(line)[1:]
            if words[0] == "train":
                words += [*SMALL[:2], *SMALL[4:]] if "--from" in words else SMALL
            said = run(*words)
            assert said.code == 0, (line, said.err.splitlines()[-4:])
    assert "the teacher" in (home / "runs" / "small" / "report.html").read_text()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE.read_text(encoding="utf-8"))
    assert links and all((PAGE.parent / link).exists() for link in links)
