"""`train` on every malformed file: exit 2, one line that names the file and a fix, nothing written."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import anyformer.data
from anyformer.data.settings import Data, Format
from anyformer.errors import UserError
from anyformer.tasks.prepare import prepare
from tests.cli import bad_folders, bad_requests
from tests.cli.trying import Said, refused, run, standing_in, tree
from tests.data.files import bad_tables, bad_texts
from tests.data.images import bad_images

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


@pytest.mark.parametrize("case", bad_folders.BAD, ids=lambda case: case.name)
def test_a_bad_folder_is_refused(case: bad_folders.Bad, tmp_path: Path) -> None:
    paths = case.make(tmp_path)
    before = tree(tmp_path)
    with standing_in(tmp_path):
        words = [] if case.task is None else ["--task", case.task]
        said = run("train", *(path.relative_to(tmp_path) for path in paths), *words, "--out", "run")
    line = refused(said, before, tmp_path)
    assert case.said in line, line


# ---------------------------------------------------------------- as real processes


REAL = [
    ("a table cut short", bad_tables, "cut gzip"),
    ("a table that is a web page", bad_tables, "web page"),
    ("a row too long", bad_tables, "too many fields"),
    ("a table that is a pickle", bad_tables, "pickle"),
    ("a text in no encoding", bad_texts, "broken UTF-8"),
    ("an empty text", bad_texts, "empty"),
    ("a pipe", bad_texts, "pipe"),
    ("an image that is none", bad_images, "text"),
    ("a bomb", bad_images, "bomb"),
]
TYPED = [
    ("a setting misspelt", ["--set", "training.bacth=4"], "did you mean 'training.batch_size'"),
    ("no such preset", ["--preset", "encoder-mni"], "did you mean 'encoder-mini'"),
    ("no such column", ["--target", "lable"], "did you mean 'label'"),
]


def as_process(folder: Path, *words: str | Path) -> Said:
    """One command as a person starts it, with the seconds of its CPU."""
    program = [sys.executable, "-m", "anyformer.cli", *map(str, words)]
    with subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        out, err = child.stdout.read(), child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return Said(child.returncode, out, err, used.ru_utime + used.ru_stime)


@pytest.mark.parametrize("name", [name for name, *_ in [*REAL, *TYPED]])
def test_a_real_process_is_refused(name: str, tmp_path: Path) -> None:
    typed = {label: (words, said) for label, words, said in TYPED}
    if name in typed:
        words, wanted = typed[name]
        (tmp_path / "data.csv").write_text(bad_tables.GOOD)
        paths: list[Path] = [tmp_path / "data.csv"]
    else:
        module, which = next((module, which) for label, module, which in REAL if label == name)
        cases: list[Any] = module.REFUSED if module is bad_images else module.BAD
        case = next(case for case in cases if case.name == which)
        words, wanted = ["--set", "data.bad=error"], ""
        if module is bad_images:
            for kind in ("cats", "dogs"):
                (tmp_path / kind).mkdir()
                (tmp_path / kind / "0.png").write_bytes(bad_images.WHOLE)
            case.make(tmp_path / "cats")
            paths = [tmp_path]
        else:
            paths = case.make(tmp_path)
    before = tree(tmp_path)
    said = as_process(tmp_path, "train", *paths, *words)
    assert wanted in refused(said, before, tmp_path, slowest=10.0)


# ---------------------------------------------------------------- all of them together


def test_there_are_enough_malformed_inputs_and_some_for_every_reader(tmp_path: Path) -> None:
    all_of_them = [*bad_tables.BAD, *bad_texts.BAD, *bad_images.REFUSED, *bad_folders.BAD, *bad_requests.BAD]
    assert len(all_of_them) >= 150 and len(REAL) + len(TYPED) >= 12
    print(f"{len(all_of_them)} malformed inputs")
    reached: set[str] = set()
    for at, case in enumerate([*bad_tables.BAD, *bad_texts.BAD, *bad_folders.BAD]):
        folder = tmp_path / str(at)
        folder.mkdir()
        reached |= modules_of(case, folder)
    assert readers() >= {"csv_rows", "json_rows", "conll", "parallel_text", "documents", "idx", "image_folders"}
    assert readers() - reached == set(), "a reader without a malformed input"


def readers() -> set[str]:
    """Modules of the data that read files people give: readers of rows, or with a function named so."""
    found = set()
    for path in Path(anyformer.data.__path__[0]).rglob("*.py"):
        names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        reads = path.stem in ("csv_rows", "json_rows") or any(name.startswith("read_") for name in names)
        # Files of tokenizers belong to model folders, which have malformed twins of their own.
        if reads and path.parent.name not in ("data", "tokenizers") and path.stem != "open_text":
            found.add(path.stem)
    return found


def modules_of(case: Any, folder: Path) -> set[str]:
    """The modules of the data that the refusal of a malformed file came through."""
    read = getattr(case, "read", None)
    settings = Data(bad="error", format=getattr(case, "format", Format()), target=named(case))
    try:
        task = TASKS.get(read) if read else getattr(case, "task", None)
        prepare(case.make(folder), task=task, settings=settings, cache=folder / "cache")
    except (UserError, OSError) as error:
        frames, cause = [], error
        while cause is not None:  # an error of one file is told again as one of its row
            frames += [frame.filename for frame in traceback.extract_tb(cause.__traceback__)]
            cause = cause.__context__
        return {Path(name).stem for name in frames if Path(name).is_relative_to(anyformer.data.__path__[0])}
    return set()


def named(case: Any) -> tuple[str, ...] | None:
    if isinstance(case, bad_tables.Bad):
        return ("label",)
    return (COLUMNS[case.name],) if isinstance(case, bad_texts.Bad) and case.name in COLUMNS else None


def test_control_a_whole_set_of_yolo_is_data_and_another_yaml_is_settings(tmp_path: Path) -> None:
    path = bad_folders.yolo()(tmp_path)[0]
    (tmp_path / "run.yaml").write_text("training: {steps: 2}\n")
    with standing_in(tmp_path):
        found = run("check", path.name)
        assert found.code == 0 and "YOLO" in found.err + found.out, found
        assert "run.yaml" in run("train", "run.yaml").err
