"""Every command of docs/how-to/pretrain.md runs, on a small text, and its pictures are those that the code draws."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest

from anyformer.tasks import all_tasks
from anyformer.tasks.pretraining import PretrainingTask
from docs.pretraining_pictures import IMAGES, pictures
from tests.cli import made
from tests.cli.trying import done, standing_in
from tests.tasks.test_pretraining_life import write_book

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pretrain.md"
SHORT = ["--steps", "2", "--set", "data.tokenizer.max_length=32"]


def sections() -> dict[str, list[str]]:
    """The commands of each section, by its task."""
    found = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        blocks = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
        found[part.partition(":")[0]] = [line for block in blocks for line in block.strip().splitlines()]
    return found


@pytest.mark.parametrize("task", sections())
def test_the_commands_of_a_task_run(task: str, tmp_path: Path) -> None:
    write_book(tmp_path / "book.txt", 120)
    made.reviews(tmp_path)
    (tmp_path / "gaps.txt").write_text("The [MASK] sat on the mat.\nThe dog <mask>.\n")
    (tmp_path / "new.txt").write_text("The dog ran.\nThe hill sat.\n")
    with standing_in(tmp_path):
        for line in sections()[task]:
            words = shlex.split(line)[1:]
            done(*words, *(SHORT[: 2 if "--from" in words else 4] if words[0] == "train" else []))


def test_the_pictures_are_those_that_the_code_draws() -> None:
    drawn = pictures()
    assert {path.stem for path in IMAGES.glob("*.svg")} == set(drawn)
    for name, svg in drawn.items():
        kept = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
        assert kept == svg + "\n", f"{name}: python -m docs.pretraining_pictures"


def shown_on(pages: Iterable[Path]) -> set[str]:
    """The pictures that pages show, not only link to."""
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return {name for text in texts for name in re.findall(r"!\[[^]]+\]\(\S*images/pretraining/([\w-]+)\.svg\)", text)}


def test_every_picture_is_shown_on_a_page() -> None:
    kept = {path.stem for path in IMAGES.glob("*.svg")}
    assert shown_on(PAGE.parent.glob("*.md")) == kept
    assert shown_on([PAGE]) < kept  # control: links of the table alone do not count


def table() -> dict[str, str]:
    """The lines of the table of objectives by their tasks."""
    lines = re.findall(r"^\| `(\w[\w-]*)`", PAGE.read_text(encoding="utf-8").partition("## ")[0], re.MULTILINE)
    return {name: line for line in PAGE.read_text(encoding="utf-8").splitlines() for name in lines
            if line.startswith(f"| `{name}`")}  # fmt: skip


def test_the_table_has_every_objective_without_labels() -> None:
    found = table()
    pretraining = {task.name for task in all_tasks() if isinstance(task, PretrainingTask)}
    assert set(found) == pretraining | {"lm", "distill", "contrast", "patches", "image-text"}
    assert {"masked", "spans", "prefix"} <= pretraining
    for name, line in found.items():
        pictured = (IMAGES / f"{name}.svg").is_file()
        assert (f"images/pretraining/{name}.svg" in line) == pictured == (name != "lm")
