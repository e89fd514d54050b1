"""`--pretrain`: texts first, then labels, in one run; each stage can be killed, and no text that judges is learned."""

from __future__ import annotations

import csv
import random
import signal
from pathlib import Path

import pytest
import torch

import anyformer
from anyformer import UserError
from anyformer.checkpoints import tensors
from anyformer.data.reopen import reopen
from anyformer.training.run.folder import RunFolder
from tests.cli import made
from tests.training.nursery import Nursery
from tests.training.tiny import differing, resume

SETTINGS = {"training.steps": 6, "training.save_every": 2, "training.eval_every": 3, "training.threads": 1,
            "training.workers": 0, "training.compile": False, "model.stack.depth": 1, "model.stack.width": 16,
            "data.tokenizer.max_length": 16}  # fmt: skip


def write_half(folder: Path) -> Path:
    """Reviews of which every third has no label; each text has a word of its own."""
    rows = list(csv.reader(made.reviews(folder).read_text(encoding="utf-8").splitlines()))
    body = [[f"{text} n{at:03}", "" if at % 3 == 0 else label] for at, (text, label) in enumerate(rows[1:])]
    return made.table(folder / "half.csv", rows[0], body)


def words(out: str, task: str = "masked") -> list[str]:
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    asked = ["train", "half.csv", "--target", "label", "--pretrain", task, "--out", out]
    return [*asked, "--progress", "none", "--device", "cpu", *sets]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A folder with the file and a run in two stages that nobody stopped."""
    home = tmp_path_factory.mktemp("stages")
    write_half(home)
    code, said = nursery.run(words("whole"), home)
    assert code == 0, said
    return home


def texts_learned(run: Path) -> str:
    stage = reopen(RunFolder.open(run / "pretrain").cache)
    assert stage is not None and stage.tokenizer is not None
    sides = [side for side in (stage.train, stage.valid) if side is not None]
    return " ".join(stage.tokenizer.decode(side.ids.tolist()) for side in sides)  # type: ignore[attr-defined]


def test_training_rows_are_read_with_labels_or_without_and_no_others(whole: Path) -> None:
    run = RunFolder.open(whole / "whole")
    rows, learned = reopen(run.cache), texts_learned(run.path)
    assert rows is not None and rows.valid is not None and rows.test is not None
    judged = {rows.valid.shown(row).split()[-1] for row in range(len(rows.valid))}
    judged |= {rows.test.shown(row).split()[-1] for row in range(len(rows.test))}
    trained = {rows.train.shown(row).split()[-1] for row in range(len(rows.train))}
    bare = {f"n{at:03}" for at in range(0, made.ROWS, 3)}
    assert len(judged) > 20 and not [word for word in judged if word in learned]
    assert all(word in learned for word in trained | bare)
    assert len(trained | bare | judged) == made.ROWS


def test_the_second_stage_starts_from_the_first_and_the_report_has_both(whole: Path) -> None:
    run = RunFolder.open(whole / "whole")
    first = {
        name: entry.read() for name, entry in tensors.read_folder(RunFolder.open(run.path / "pretrain").best()).items()
    }
    start = {name: entry.read() for name, entry in tensors.read_header(run.path / "start.safetensors").items()}
    assert start and all(torch.equal(value, first[name]) for name, value in start.items())
    assert "stack.blocks.0.mixer.qkv.weight" in start and not [name for name in start if name.startswith("head.out")]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Pretraining, before the labels" in page and "Masked language model" in page.replace("masked", "Masked")
    assert run.facts["seconds"] >= RunFolder.open(run.path / "pretrain").facts["seconds"] > 0
    predictor = anyformer.load(run.path)
    assert predictor.labels == ["Good film", "bad film"]


@pytest.mark.parametrize("fault", ["int@step:3", "kill@step:10", "kill@scored:1"])
def test_stopped_in_either_stage_or_between_them_it_goes_on_to_the_bit(
    fault: str, whole: Path, tmp_path: Path, nursery: Nursery
) -> None:
    """Ctrl-C in the first stage, a kill in the second, and one after the last step of the first."""
    (tmp_path / "half.csv").write_bytes((whole / "half.csv").read_bytes())
    code, said = nursery.run(words("run"), tmp_path, fault)
    assert code == (130 if fault.startswith("int") else -signal.SIGKILL), said
    if fault.startswith("int"):
        assert f"stopped in the first stage; saved. Resume with: anyformer resume {Path('run')}" in said
        assert RunFolder.open(tmp_path / "run").facts["status"] == "interrupted"
    (tmp_path / "half.csv").unlink()  # the run needs no file any more
    code, said = nursery.run(resume("run"), tmp_path)
    assert code == 0, said
    for stage in (".", "pretrain"):
        assert differing(whole / "whole" / stage, tmp_path / "run" / stage) == []


def test_another_task_learns_from_the_texts_too_and_minutes_are_shared(tmp_path: Path) -> None:
    source = write_half(tmp_path)
    chosen = {name: value for name, value in SETTINGS.items() if not name.startswith("model.") and "steps" not in name}
    run = anyformer.train([source], target="label", model="lstm-lm-tiny", pretrain="lm", minutes=0.1, device="cpu",
                          quiet=True, out=tmp_path / "run", settings=chosen)  # fmt: skip
    stage = RunFolder.open(run.path / "pretrain")
    assert stage.facts["task"] == "lm"
    assert [one.read_json("plan.json")["budget"]["seconds"] for one in (stage, run.folder)] == pytest.approx([3.0, 6.0])
    assert stage.facts["seconds"] < run.facts["seconds"]


@pytest.mark.parametrize(("task", "make", "target", "said"), [
    ("classify", made.reviews, "label", "does not learn from text alone"),
    ("masket", made.reviews, "label", "did you mean 'masked'?"),
    ("masked", made.flowers, "kind", "the rows hold no text to learn from"),
    ("masked", made.book, None, "has no labels to learn afterwards; say --task masked in its place"),
])  # fmt: skip
def test_what_cannot_be_pretrained_is_refused(
    task: str, make: object, target: str | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="--pretrain|--task") as caught:
        anyformer.train([make(tmp_path)], target=target, pretrain=task, out=tmp_path / "run", device="cpu", quiet=True)  # type: ignore[operator]
    assert said in str(caught.value) and not (tmp_path / "run").exists()


def test_the_control_a_text_of_a_test_row_would_be_seen(whole: Path) -> None:
    learned = texts_learned(whole / "whole")
    chance = random.Random(0)
    lines = (whole / "half.csv").read_text(encoding="utf-8").splitlines()[1:]
    seen = [line.partition(",")[0].split()[-1] in learned for line in chance.sample(lines, 100)]
    assert 70 < sum(seen) < 100  # some are left out: those that judge
