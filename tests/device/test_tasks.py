"""Every task on a GPU by the command line: train, evaluate, predict. A translator once died there after training.

Needs a GPU; `make test-gpu`. The cases themselves run anywhere: `SMOKE_DEVICE=cpu pytest tests/device/test_tasks.py`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.tasks import find
from tests.cli import made
from tests.cli.test_every_kind import KINDS
from tests.cli.trying import done, standing_in
from tests.data.audio.test_sound import classes
from tests.data.datasets.test_series import columns
from tests.tasks.test_qa import squad
from tests.training.test_detection import annotated

DEVICE = os.environ.get("SMOKE_DEVICE", "cuda")
IS_THERE = DEVICE == "cpu" or torch.cuda.is_available()
pytestmark = [pytest.mark.device, pytest.mark.skipif(not IS_THERE, reason="needs a GPU")]


def series(folder: Path) -> Path:
    table = columns(160)
    return made.table(folder / "hours.csv", list(table), [list(row) for row in zip(*table.values(), strict=True)])


def recordings(folder: Path) -> Path:
    return classes(folder / "clips", clips=20)


def shapes(folder: Path) -> Path:
    return annotated(folder / "shapes", count=24)


def sentences(folder: Path) -> Path:
    """A text a line."""
    chance, path = random.Random(0), folder / "lines.txt"
    words = "the a cat dog sat ran on under mat house".split()
    path.write_text("".join(" ".join(chance.choices(words, k=6)) + "\n" for _ in range(80)), encoding="utf-8")
    return path


def questions(folder: Path) -> Path:
    return squad(folder / "squad.json")


def captioned(folder: Path) -> Path:
    return made.captions(folder, 60)


# The data and words of each task; those of the CPU's tests, and the kinds that have tests of their own there.
TASKS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    name: (make, [word for word in words if not word.isdigit() and word != "--steps"])
    for name, (make, words, _, _) in KINDS.items()
} | {
    "recordings": (recordings, []),
    "series": (series, ["--task", "forecast"]),
    "boxes": (shapes, ["--task", "detect"]),
    "translate t5": (made.pairs, ["--preset", "t5-small-tiny"]),
    "translate bahdanau": (made.pairs, ["--preset", "bahdanau-seq2seq-tiny"]),
    "text hyena": (made.book, ["--preset", "hyena-small-tiny"]),
    "text lstm": (made.book, ["--preset", "lstm-lm-tiny"]),
    "masked": (made.book, ["--task", "masked"]),
    "masked pairs": (made.book, ["--task", "masked", "--preset", "bert-base-tiny", "--set", "objective.pairs=next"]),
    "replaced": (made.book, ["--task", "replaced"]),
    "spans": (made.book, ["--task", "spans", "--preset", "t5-small-tiny"]),
    "mass": (made.book, ["--task", "mass"]),
    "prefix": (made.book, ["--task", "prefix"]),
    "deshuffle": (made.book, ["--task", "deshuffle"]),
    "drop": (made.book, ["--task", "drop"]),
    "contrast": (sentences, ["--task", "contrast"]),
    "patches": (made.photos, ["--task", "patches"]),
    "image-text": (made.colours, ["--task", "image-text", "--inputs", "image", "--inputs", "text",
                                  "--types", "text=text"]),
    "distill": (made.book, ["--task", "distill", "--teacher", "teacher"]),
    "qa": (questions, []),
    "captions": (captioned, ["--task", "translate", "--target", "caption"]),
    "adversarial": (made.photos, ["--task", "adversarial", "--preset", "sagan-32-tiny"]),
    "prefix t5": (made.book, ["--task", "prefix", "--preset", "t5-small-tiny"]),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["auto", "fp32"])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_trains_evaluates_and_predicts_on_the_card(task: str, precision: str, tmp_path: Path) -> None:
    make, words = TASKS[task]
    data = make(tmp_path)
    paths = [str(path) for path in (data if isinstance(data, list) else [data])]
    settings = [] if precision == "auto" else ["--set", f"training.precision={precision}"]
    with standing_in(tmp_path):
        if task == "distill":
            done("train", *paths, "--task", "masked", "--out", "teacher", "--steps", "2", "--device", DEVICE,
                 "--progress", "none")  # fmt: skip
        said = done("train", *paths, *words, "--out", "run", "--json", "--progress", "none", "--device", DEVICE,
                    "--steps", "3", *settings)  # fmt: skip
        assert said.json["status"] == "done"
        assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "done"
        done("evaluate", "run", *paths, "--json", "--device", DEVICE)
        trained = find(said.json["task"])
        if trained.writes_text and not trained.has_target:
            done("generate", "run", "It was", "--max-new-tokens", "3", "--device", DEVICE)
        else:
            (tmp_path / "gaps.txt").write_text("It was [MASK] before.\n")
            (tmp_path / "classes.txt").write_text("down\nacross\n")
            asked = "gaps.txt" if trained.answers_texts else "classes.txt" if task == "adversarial" else paths[0]
            found = "found.png" if task == "adversarial" else "found.npy" if task == "contrast" else "found.csv"
            done("predict", "run", asked, "-o", found, "--device", DEVICE)
            assert (tmp_path / found).read_bytes()  # a detector of three steps may find nothing; its header stands
