"""`train` on every malformed file: exit 2, one line that names the file and a fix, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyformer.data.settings import Format
from tests.cli.trying import refused, run, standing_in, tree
from tests.data import bad_images, bad_tables, bad_texts

TASKS = {bad_texts.tagged: "tag", bad_texts.paired: "translate", bad_texts.text: "lm"}
# Of tagged words `--target` names the column to read.
COLUMNS = {"no such column": "7", "column zero": "0", "no names here": "upos", "no such name": "upso"}
NOWHERE = ("nothing there", "nothing there, long name", "name too long", "zero in the name")  # said by a table
PICTURES = [case for case in bad_images.REFUSED if case.name not in NOWHERE]


def format_words(format: Format) -> list[str]:
    """A format as `--set`."""
    asked = {name: value for name, value in format.settings().items() if value is not None}
    return [word for name, value in asked.items() for word in ("--set", f"data.format.{name}={value!r}".lower())]


@pytest.mark.parametrize("case", bad_tables.BAD, ids=lambda case: case.name)
def test_a_bad_table_is_refused(case: bad_tables.Bad, tmp_path: Path) -> None:
    paths = case.make(tmp_path)
    before = tree(tmp_path)
    strict = ["--set", "data.bad=error"] if case.bad == "error" else []
    with standing_in(tmp_path):
        said = run("train", *paths, "--target", "label", "--out", "run", *strict, *format_words(case.format))
    refused(said, before, tmp_path)


@pytest.mark.parametrize("case", bad_texts.BAD, ids=lambda case: case.name)
def test_a_bad_text_is_refused(case: bad_texts.Bad, tmp_path: Path) -> None:
    paths = case.make(tmp_path)
    before = tree(tmp_path)
    words = ["--task", TASKS[case.read]] if case.read in TASKS else []
    words += ["--target", COLUMNS[case.name]] if case.name in COLUMNS else []
    with standing_in(tmp_path):
        said = run("train", *paths, *words, "--out", "run", "--set", "data.bad=error", *format_words(case.format))
    refused(said, before, tmp_path)


@pytest.mark.parametrize("case", PICTURES, ids=lambda case: case.name)
def test_a_bad_picture_is_refused(case: bad_images.Case, tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for at in range(2):
            (tmp_path / "photos" / name / f"{at}.png").write_bytes(bad_images.WHOLE)
    case.make(tmp_path / "photos" / "cats")
    before = tree(tmp_path)
    with standing_in(tmp_path):
        said = run("train", "photos", "--out", "run", "--set", "data.bad=error")
    refused(said, before, tmp_path)


@pytest.mark.parametrize("name", NOWHERE)
def test_a_path_to_no_picture_is_refused(name: str, tmp_path: Path) -> None:
    case = next(case for case in bad_images.REFUSED if case.name == name)
    (tmp_path / "a.png").write_bytes(bad_images.WHOLE)
    rows = ["a.png,yes", "a.png,no"] * 5 + [f"{case.make(tmp_path).name},yes"]
    (tmp_path / "photos.csv").write_text("image,label\n" + "\n".join(rows) + "\n")
    before = tree(tmp_path)
    with standing_in(tmp_path):
        said = run("train", "photos.csv", "--out", "run", "--set", "data.bad=error", "--types", "image=image")
    assert "csv" in refused(said, before, tmp_path) if "\0" in rows[-1] else "png" in refused(said, before, tmp_path)


def test_control_the_good_twins_train(tmp_path: Path) -> None:
    """The same line without the mistake is taken: what is refused above is the mistake."""
    (tmp_path / "a.csv").write_text(bad_tables.GOOD)
    for words in (["a.csv", "--target", "label"],):
        with standing_in(tmp_path):
            said = run("check", *words, "--set", "data.bad=error")
        assert said.code == 0, said.err
