"""A student learns from a teacher by the ordinary command: any kind of data, resumed to the bit, judged beside it."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from anyformer import UserError, load
from anyformer.objectives.distill import hash_model
from anyformer.training.train import Run, resume, train
from tests.training.nursery import Nursery
from tests.training.test_resume import expect
from tests.training.test_resume import resume as resume_words
from tests.training.tiny import COMMON, differing, write_data, write_pictures

TEXT = {"data.tokenizer.kind": "char", "data.tokenizer.max_length": 24, "training.batch_size": 12}


def trained(data: Any, out: Path, task: str | None = None, *, target: str | None = None, start: Any = None,
            teacher: Any = None, **changes: Any) -> Run:  # fmt: skip
    """A run; the settings in `changes` have __ for the dot."""
    settings = COMMON | {name.replace("__", "."): value for name, value in changes.items()}
    if start is not None:
        settings.pop("model.stack.width")
    return train(data, task, target=target, start=start, teacher=teacher, out=out, device="cpu", settings=settings,
                 quiet=True)  # fmt: skip


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("distill")
    write_data(where)
    return where


@pytest.fixture(scope="module")
def masked(place: Path) -> Run:
    """A teacher that fills gaps."""
    return trained(place / "book.txt", place / "masked", "masked", model__stack__depth=3, **keys(TEXT))


def keys(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "__"): value for name, value in settings.items()}


def test_a_masked_teacher_has_a_masked_student_judged_beside_it(masked: Run, place: Path) -> None:
    before = files_of(masked.path)
    run = trained(place / "book.txt", place / "student", "distill", teacher=masked.path, **keys(TEXT))
    assert files_of(masked.path) == before
    assert run.facts["task"] == "masked"  # judged as what it is
    config = run.folder.config().objective.to_dict()
    assert config["teacher"] == str(masked.folder.best()) and config["sha256"] == hash_model(masked.folder.best())
    assert config["student"]["type"] == "Masked"
    teacher = run.evaluation["baselines"]["teacher"]
    assert teacher["name"] == "the teacher"
    assert teacher["metrics"]["loss"] == pytest.approx(masked.metrics["loss"], rel=1e-5)  # the same rows, the same gaps
    assert any(line.startswith("teacher") for line in run.summary())
    assert "the teacher" in (run.path / "report.html").read_text()
    names = set(load(run.path).model.state_dict())
    assert not any("teacher" in name for name in names) and len(names) < len(load(masked.path).model.state_dict())
    assert load(run.path).tokenizer.sha256 == load(masked.path).tokenizer.sha256  # type: ignore[union-attr]


def test_the_teacher_changes_what_is_learned(masked: Run, place: Path) -> None:
    """Control: were the teacher left out, the first step's loss would be the student's own."""
    folder = masked.path
    alone = trained(place / "book.txt", place / "no-beta", teacher=folder, task="masked", **keys(TEXT),
                    objective__alpha=1.0, objective__beta=0.0, objective__gamma=0.0)  # fmt: skip
    taught = trained(place / "book.txt", place / "beta", teacher=folder, task="masked", **keys(TEXT),
                     objective__alpha=1.0, objective__beta=1.0, objective__gamma=0.0)  # fmt: skip
    first, second = (run.history[0]["loss"] for run in (alone, taught))
    assert second > first + 0.01


def test_a_student_starts_from_every_second_layer_of_its_teacher(masked: Run, place: Path) -> None:
    run = trained(place / "book.txt", place / "halved", "distill", teacher=masked.path, start=masked.path,
                  **keys(TEXT), model__stack__depth=2, training__steps=1, training__optimizer__lr=1e-30)  # fmt: skip
    mine, theirs = (load(path).model.state_dict() for path in (run.path, masked.path))
    weight = "stack.blocks.{}.mixer.qkv.weight"
    assert mine[weight.format(1)].equal(theirs[weight.format(2)]) and weight.format(2) not in mine
    assert not mine[weight.format(1)].equal(theirs[weight.format(1)])
    assert mine["embed.table.weight"].equal(theirs["embed.table.weight"])


def test_a_language_model_teaches_a_language_model(place: Path) -> None:
    teacher = trained(place / "book.txt", place / "lm", "lm", model__stack__depth=2, **keys(TEXT))
    student = trained(place / "book.txt", place / "lm-student", "distill", teacher=teacher.path, **keys(TEXT))
    assert student.facts["task"] == "lm" and "bits_per_byte" in student.evaluation["baselines"]["teacher"]["metrics"]
    with pytest.raises(UserError, match="the teacher is for lm, the student for masked"):
        trained(place / "book.txt", place / "wrong", "masked", teacher=teacher.path, **keys(TEXT))
    assert not (place / "wrong").exists()


def test_a_classifier_of_text_a_regressor_of_a_table_and_of_images_teach(place: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [(chance.choice(["good fine", "great good"]), "yes") if chance.random() < 0.5
            else (chance.choice(["bad poor", "awful bad"]), "no") for _ in range(60)]  # fmt: skip
    (tmp_path / "reviews.csv").write_text("text,label\n" + "\n".join(f"{text} {i},{y}"
                                                                     for i, (text, y) in enumerate(rows)))  # fmt: skip
    numbers = [(chance.gauss(0, 3), chance.choice("xyz")) for _ in range(80)]
    (tmp_path / "houses.csv").write_text("size,kind,price\n" + "\n".join(f"{a:.3f},{b},{5 * a + ord(b):.3f}"
                                                                         for a, b in numbers))  # fmt: skip
    write_pictures(tmp_path / "pictures")
    cases: dict[str, tuple[str | None, str]] = {
        "reviews.csv": ("label", "classify"), "houses.csv": ("price", "regress"), "pictures": (None, "classify"),
    }  # fmt: skip
    for name, (target, task) in cases.items():
        data = tmp_path / name
        teacher = trained(data, tmp_path / f"{name}-teacher", target=target, model__stack__depth=2)
        for split in (0.1, 0.4):  # on other training rows nothing is fitted anew: the teacher must understand them
            run = trained(data, tmp_path / f"{name}-{split}", target=target, teacher=teacher.path,
                          data__split__valid=split)  # fmt: skip
            assert run.facts["task"] == task
            mine, theirs = (load(path).preprocess for path in (run.path, teacher.path))
            assert mine is not None and theirs is not None
            assert (mine.columns, mine.target) == (theirs.columns, theirs.target)
            assert run.evaluation["main"] in run.evaluation["baselines"]["teacher"]["metrics"]
    with pytest.raises(UserError, match="the teacher was trained on other columns"):
        trained(tmp_path / "houses.csv", tmp_path / "wrong", target="price", teacher=tmp_path / "reviews.csv-teacher")


def test_a_student_killed_and_resumed_is_the_one_that_nobody_stopped(
    masked: Run, place: Path, tmp_path: Path, nursery: Nursery
) -> None:
    shutil.copytree(masked.path, tmp_path / "masked")
    shutil.copy(place / "book.txt", tmp_path)
    sets = [word for name, value in (COMMON | TEXT).items() for word in ("--set", f"{name}={value}")]
    words = ["train", "book.txt", "--task", "distill", "--teacher", "masked", "--progress", "none", "--device", "cpu",
             *sets, "--out"]  # fmt: skip
    expect(nursery, [*words, "whole"], tmp_path, 0)
    expect(nursery, [*words, "run"], tmp_path, -signal.SIGKILL, "kill@step:8")
    weights = Path(Run(tmp_path / "run").folder.config().objective.to_dict()["teacher"]) / "model.safetensors"
    assert weights.is_relative_to(tmp_path / "masked")
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    said = expect(nursery, resume_words("run"), tmp_path, 2)
    assert "the teacher is not the one that the run began with" in said
    weights.write_bytes(kept)
    expect(nursery, resume_words("run"), tmp_path, 0)
    assert not differing(tmp_path / "whole", tmp_path / "run")


def test_mistakes_are_said_before_anything_is_trained(masked: Run, place: Path, tmp_path: Path) -> None:
    book = place / "book.txt"
    with pytest.raises(UserError, match="distillation needs a teacher.*add --teacher FOLDER"):
        train(book, "distill", out=tmp_path / "a", quiet=True)
    with pytest.raises(UserError, match="--teacher .*no such folder"):
        train(book, "distill", teacher=tmp_path / "nobody", out=tmp_path / "b", quiet=True)
    with pytest.raises(UserError, match="objective.student.rat"):
        train(book, "distill", teacher=masked.path, settings={"objective.student.rat": 1}, quiet=True)
    assert not list(tmp_path.iterdir())
    again = resume(trained(book, tmp_path / "done", "distill", teacher=masked.path, **keys(TEXT)).path, quiet=True)
    assert again.facts["status"] == "done"
