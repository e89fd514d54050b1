"""Several files, a task each: the file of a row says what is put before its text, in training and afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anyformer import UserError, load
from anyformer.data.file_tasks import add_tasks_of_files, stem_of, tasks_of_files
from anyformer.data.files.tables import read
from anyformer.data.mixing import mix_rows
from anyformer.data.settings import Format, Mixture
from tests.cli import made
from tests.cli.trying import done, run, standing_in
from tests.training.tiny import differing

SMALL = ["--task", "translate", "--preset", "t5-small-tiny", "--set", "model.encoder.stack.depth=1",
         "--set", "model.decoder.stack.depth=1", "--progress", "none", "--quiet"]  # fmt: skip


def write_files(folder: Path) -> list[Path]:
    """upper.csv asks for capitals, last.csv for the last word."""
    words = ["red", "blue", "green", "old", "new", "tall"]
    texts = [f"{a} {b} {c}" for a in words for b in words for c in words[:2]]
    upper = made.table(folder / "upper.csv", ["input", "target"], [[text, text.upper()] for text in texts[:60]])
    last = made.table(folder / "last.csv", ["input", "target"], [[text, text.split()[-1]] for text in texts[12:32]])
    return [upper, last]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    with standing_in(folder):
        done("train", "upper.csv", "last.csv", *SMALL, "--steps", "2", "--out", "run",
             "--set", "data.mixture.prefixes=[upper=Make it large]", "--set", "data.mixture.temperature=2")  # fmt: skip
    return folder


def test_the_file_of_a_row_is_its_task(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    with files[1].open("a") as file:
        file.write("red blue,,one too many\nold new,new\n")  # a row that is left out moves no other
    frame = read(files, Format())
    found = add_tasks_of_files(frame, Mixture(prefixes=("upper=Make it large",)), trained=2)
    tasks = found.column("task").to_pylist()
    assert tasks == ["Make it large"] * 60 + ["last"] * 21 and found.names == ["task", "input", "target"]
    for task, text in zip(tasks, found.column("target").to_pylist(), strict=True):
        assert (text == text.upper()) == (task != "last")
    backwards = add_tasks_of_files(read(files[::-1], Format()), Mixture(by_file=True), trained=2)
    assert backwards.column("task").to_pylist() == ["last"] * 21 + ["upper"] * 60  # control: the order of files decides
    assert [stem_of(name) for name in ("a.csv", "b.tsv.gz", "c.v1.jsonl")] == ["a", "b", "c.v1"]


def test_naming_files_alone_mixes_no_rows() -> None:
    assert mix_rows(["a", "b"], Mixture(by_file=True)) is None
    assert mix_rows(["a", "b"], Mixture(by_file=True, temperature=2.0)) is not None  # control


def test_files_that_cannot_be_tasks_are_told(tmp_path: Path) -> None:
    one, two = write_files(tmp_path)
    both = read([one, two], Format())
    with pytest.raises(UserError, match="these are not several files"):
        add_tasks_of_files(read([one], Format()), Mixture(by_file=True), trained=1)
    with pytest.raises(UserError, match="unknown file 'uper'.*did you mean 'upper'"):
        tasks_of_files(both, Mixture(prefixes=("uper=x",)))
    with pytest.raises(UserError, match="its task 'last' is that of no training file.*last=upper"):
        add_tasks_of_files(both, Mixture(by_file=True), trained=1)
    assert "upper" in add_tasks_of_files(both, Mixture(prefixes=("last=upper",)), trained=1).column("task").to_pylist()
    with pytest.raises(UserError, match="have a column 'task' already"):
        add_tasks_of_files(add_tasks_of_files(both, Mixture(by_file=True), trained=2), Mixture(by_file=True), trained=2)
    with pytest.raises(UserError, match="does not say file=task"):
        Mixture(prefixes=("upper",))


def test_files_are_mixed_by_rates_and_judged_one_by_one(home: Path) -> None:
    data = (home / "run" / "log.txt").read_text()
    rates = next(line for line in data.splitlines() if "tasks    " in line)
    assert "Make it large 63% (48 rows)" in rates and "last 37% (16 rows)" in rates  # sqrt 48 : sqrt 16
    metrics = json.loads((home / "run" / "evaluation.json").read_text())["metrics"]["test"]
    assert {"exact_match.Make it large", "exact_match.last"} <= set(metrics)


def test_the_same_files_are_evaluated_and_predicted(home: Path) -> None:
    """New rows of a file that was trained on need no column; those of another file do."""
    with standing_in(home):
        judged = done("evaluate", "run", "upper.csv", "last.csv", "--json").json
        assert judged["rows"] == 80 and "exact_match.last" in judged
        done("predict", "run", "last.csv", "-o", "said.csv")
        told = load("run").predict([{"task": "last", "input": "red blue"}])
        other = made.table(home / "other.csv", ["input"], [["red blue"]])
        said = run("predict", "run", other.name)
    assert len((home / "said.csv").read_text().splitlines()) == 21 and isinstance(told[0], str)
    assert said.code == 2 and "'task'" in said.errors[0]


def test_a_resumed_run_of_files_ends_in_the_same_bits(home: Path) -> None:
    settings = ("batch_size=16", "save_every=2", "eval_every=2", "threads=1", "schedule={type: Constant, warmup: 0.0}")
    few = [word for setting in settings for word in ("--set", f"training.{setting}")]
    files = ["upper.csv", "last.csv", "--set", "data.mixture.by_file=true", "--set", "data.mixture.cap=20"]
    with standing_in(home):
        for out, steps, seed in (("whole", "4", "0"), ("parts", "2", "0"), ("another", "4", "1")):
            done("train", *files, *SMALL, "--steps", steps, "--seed", seed, "--out", out, *few)
        done("resume", "parts", "--set", "training.steps=4", "--allow-change", "steps", "--quiet")
    assert differing(home / "parts", home / "whole") == []
    assert differing(home / "another", home / "whole")  # control


def test_several_files_without_tasks_are_one_and_it_is_said(home: Path) -> None:
    words = [word for word in SMALL if word != "--quiet"]
    with standing_in(home):
        said = done("train", "upper.csv", "last.csv", *words, "--steps", "1", "--out", "one")
    assert "all one task; --set data.mixture.by_file=true" in said.err
    assert "tasks    " not in said.err
