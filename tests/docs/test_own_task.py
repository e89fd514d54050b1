"""The page on a task, a column and a part of one's own: its modules are written as they stand, its commands run."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.cli import made
from tests.training.nursery import Nursery

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-task.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def modules() -> dict[str, str]:
    """The modules of the page by the names it gives them."""
    page = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"Save it as `(\w+)\.py`:\n\n```python\n(.*?)```", page, re.DOTALL))


def scripts() -> list[str]:
    """The other Python of the page."""
    return [block for block in blocks("python") if block not in modules().values()]


def words_of(line: str) -> list[str]:
    return shlex.split(line)[1:]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A folder with the modules and the data, in which every command of the page has been run."""
    folder: Path = tmp_path_factory.mktemp("own")
    for name, code in modules().items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    visits(folder / "visits.csv")
    (folder / "new.csv").write_text("time,shop\n12:00,bakery\n00:10,books\n")
    made.book(folder)
    for line in (line for block in blocks("sh") for line in block.strip().splitlines()):
        done = nursery.command(*words_of(line), where=folder)  # what one line imports is unknown to the next
        assert done.returncode == 0, (line, done.stderr)
    return folder


def visits(path: Path, rows: int = 400) -> None:
    """Counts that a circle explains: most at noon, fewest at midnight."""
    draw, chance = np.random.default_rng(0), random.Random(0)
    written = []
    for _ in range(rows):
        minute, shop = chance.randrange(24 * 60), chance.choice(["bakery", "books"])
        expected = np.exp(1 - np.cos(minute / 720 * np.pi) + 0.5 * (shop == "bakery"))
        written.append([f"{minute // 60:02}:{minute % 60:02}", shop, int(draw.poisson(expected))])
    made.table(path, ["time", "shop", "visits"], written)


def test_the_page_has_its_modules_and_commands() -> None:
    lines = [line for block in blocks("sh") for line in block.strip().splitlines()]
    assert set(modules()) == {"counts", "clock", "fading"} and len(lines) >= 9 and len(scripts()) == 2
    assert {word for line in lines for word in re.findall(r"--import (\w+)", line)} == set(modules())


def test_the_task_learns(home: Path) -> None:
    found = json.loads((home / "runs" / "visits" / "evaluation.json").read_text())
    assert found["task"] == "count" and found["main"] == "mae"
    assert found["metrics"][found["split"]]["mae"] < 0.9 * found["baselines"]["trivial"]["metrics"]["mae"]
    text = (home / "expected.csv").read_text()
    noon, midnight = (float(row["prediction"]) for row in csv.DictReader(text.splitlines()))
    assert noon > 2 * midnight > 0


def test_the_column_is_recognised_and_used(home: Path) -> None:
    columns = json.loads(next((home / "runs" / "by-clock" / "checkpoints").glob("step-*/preprocess.json")).read_text())
    assert [column["type"] for column in columns["columns"]] == ["Clock", "Category"]
    log = (home / "runs" / "by-clock" / "log.txt").read_text()
    assert "clock     times of day" in log


def test_a_run_names_the_modules_it_needs(home: Path) -> None:
    needed = {run.name: json.loads((run / "run.json").read_text())["modules"] for run in (home / "runs").iterdir()}
    assert needed == {"visits": ["counts"], "by-clock": ["clock", "counts"], "faded": ["fading"]}


def test_what_the_page_shows_is_printed(home: Path, nursery: Nursery) -> None:
    (shown,) = blocks("text")
    line, _, wanted = shown.removeprefix("$ ").partition("\n")
    done = nursery.command(*words_of(line), where=home)
    assert done.returncode == 2 and done.stderr == wanted


@pytest.mark.parametrize("number", [0, 1])
def test_the_other_python_runs(home: Path, number: int, nursery: Nursery) -> None:
    done = nursery.python(scripts()[number], home)
    assert done.returncode == 0, done.stderr


def test_an_entry_point_replaces_the_option(home: Path, nursery: Nursery) -> None:
    """An installed package, as pip leaves it: the group of the page in its metadata."""
    (toml,) = blocks("toml")
    group = re.search(r'entry-points\."([\w.]+)"\]\n(\w+) = "(\w+)"', toml)
    assert group is not None and group[3] in modules()
    installed = home / "counts-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: counts\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{group[1]}]\n{group[2]} = {group[3]}\n")
    try:
        done = nursery.command("predict", "runs/visits", "new.csv", "--quiet", where=home)
    finally:
        for path in (*installed.iterdir(), installed):
            path.rmdir() if path.is_dir() else path.unlink()
    assert done.returncode == 0 and "prediction" in done.stdout, done.stderr
