"""Modules of the user's: by `--import` anywhere on the line, by an entry point of an installed package, or unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer.errors import UserError
from anyformer.evaluation.metric_directions import SMALLER, direction
from anyformer.own_parts import UnknownPart, import_module, modules_outside, take_imports
from anyformer.tasks import Task
from tests.tasks.test_toy_task import TOY, stars


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *(one for one in sys.path if one)])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "anyformer.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy_task.py").write_text(TOY.read_text(encoding="utf-8"), encoding="utf-8")
    stars(tmp_path / "stars.csv", rows=60)
    return tmp_path


def test_an_installed_package_makes_its_parts_known_by_itself(folder: Path) -> None:
    line = ["check", "stars.csv", "--task", "rate", "--target", "stars"]
    before = run(folder, *line)
    assert before.returncode == 2 and "unknown task 'rate'" in before.stderr  # control: it is only lying there
    about = folder / "toy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[anyformer.parts]\ntoy = toy_task\n")
    after = run(folder, *line)
    assert after.returncode == 0 and "5 levels from 1 to 5" in after.stdout + after.stderr, after.stderr
    (about / "entry_points.txt").write_text("[anyformer.parts]\ntoy = lost_task\n")
    lost = run(folder, *line)
    assert lost.returncode == 2 and "entry point 'toy'" in lost.stderr and "lost_task" in lost.stderr


def test_words_of_the_line_are_left_as_they_are() -> None:
    assert take_imports(["--import", "a", "train", "x", "--import=b.c"]) == (["train", "x"], ["a", "b.c"])
    assert take_imports(["train", "x"]) == (["train", "x"], [])
    for wrong in (["train", "--import"], ["--import", "--quiet"], ["--import="]):
        with pytest.raises(UserError, match="no module is named"):
            take_imports(wrong)


@pytest.mark.parametrize(
    "name, source, words",
    [
        ("toy_task.py", None, "not a file"),
        ("nowhere_at_all", None, "module 'nowhere_at_all' not found"),
        ("needy", "import nowhere_either", "'nowhere_either', which needy imports"),
        ("broken", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_imported_is_one_line(
    name: str, source: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(UserError) as error:
        import_module(name, where="--import")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_run_names_the_modules_that_are_missing() -> None:
    error = UnknownPart.named("Levels", "'Levels' is not a known Target", ["Classes"], where="type")
    assert "--import MODULE" in str(error)
    assert "--import not_imported_yet" in str(error.of_run(["not_imported_yet"]))
    assert error.of_run(["os"]) is error  # it is imported, and knows nothing of it
    assert type(error.inside("target")) is UnknownPart
    assert modules_outside([int, Path, UserError]) == ["builtins", "pathlib"]


def test_a_task_says_which_of_its_metrics_are_good_when_small() -> None:
    assert direction("strain") == "max"  # control: nobody has said anything of it

    class Strained(Task):
        """One that nobody can name."""

        smaller_is_better = ("strain",)

    assert direction("strain") == "min" and direction("strain.left") == "min"
    SMALLER.discard("strain")
