"""The page on looking inside: its commands and its Python are run, its tables are what the program has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from anyformer.inspection.views import views
from tests.cli.trying import done, standing_in
from tests.docs.test_how_to import blocks
from tests.inspection import models
from tests.training.nursery import Nursery

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "look.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.gpt().save(tmp_path_factory.mktemp("look") / "model")


def test_every_command_runs(folder: Path, tmp_path: Path) -> None:
    with standing_in(tmp_path):
        for line in "".join(blocks(PAGE, "sh")).strip().splitlines():
            words = [str(folder) if word == "FOLDER" else word for word in shlex.split(line)[1:]]
            done(*words)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"inside.html", "map.png", "heads.svg", "two.html", "dog.look", "again.html", "NEW"}


def test_the_python_runs(folder: Path, tmp_path: Path, nursery: Nursery) -> None:
    code = "\n".join(blocks(PAGE, "python")).replace('"path/to/folder"', repr(str(folder)))
    ran = nursery.python(code, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "smaller" / "anyformer.json").is_file()


def test_the_table_names_every_view() -> None:
    rows = re.findall(r"^\| ([A-Z][^|]+) \| [a-z]", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [module.TITLE for module in views().values()]
