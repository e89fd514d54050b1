"""docs/pretraining-results.md holds the figures of the newest CSV, and the script that makes such a CSV runs."""

from __future__ import annotations

import csv
import lzma
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.pretraining import COLUMNS, GLUE, accuracy, matthews, mean_ranks, spearman
from benchmarks.pretraining_page import BEGIN, END, PAGE, newest, render

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_newest_file() -> None:
    """After a run: python -m benchmarks.pretraining_page"""
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip() == render(newest()).strip()


def test_scores_are_those_of_scikit_learn_and_scipy() -> None:
    metrics, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    chance = random.Random(0)
    truth, said = ([chance.choice("0011") for _ in range(50)] for _ in range(2))
    assert matthews(truth, said) == pytest.approx(metrics.matthews_corrcoef(truth, said))
    assert accuracy(truth, said) == pytest.approx(metrics.accuracy_score(truth, said))
    assert matthews(truth, ["1"] * 50) == 0.0
    numbers = [str(chance.randint(0, 9)) for _ in range(50)]
    assert spearman(numbers, said) == pytest.approx(stats.spearmanr(list(map(int, numbers)), list(map(int, said)))[0])
    assert mean_ranks([3.0, 1.0, 3.0]) == [1.5, 0.0, 1.5]


def write_data(folder: Path) -> None:
    """Files of the form of wikitext-2 and the GLUE tasks."""
    chance = random.Random(0)
    words = "the a cat dog sat ran on under mat house big small red blue and then it was very happy".split()
    text = lambda count: " ".join(chance.choice(words) for _ in range(count))  # noqa: E731
    for name, lines in (("train", 400), ("valid", 40)):
        pack(folder / "wikitext2" / f"{name}.txt.xz", "\n".join(text(20) for _ in range(lines)))
    for task in GLUE.values():
        answer, places = task.columns
        for name in (task.train, task.held_out):
            rows = [["x"] * 7 for _ in range(50 + task.has_header)]
            for row in rows:
                row[answer] = f"{chance.random() * 5:.1f}" if task.is_number else chance.choice("01")
                for place in places:
                    row[place] = text(6)
            pack(folder / "glue_small" / task.folder / f"{name}.xz", "\n".join("\t".join(row) for row in rows))


def pack(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write(text + "\n")


def test_a_run_gives_every_model_the_same_flops_and_a_row_for_every_task(tmp_path: Path) -> None:
    write_data(tmp_path)
    words = ["--data", tmp_path, "--steps", 4, "--width", 16, "--vocab", 300, "--workers", 1, "--seeds", 1,
             "--epochs", 1, "--device", "cpu", "--only", "bert", "distilbert",
             "--csv", tmp_path / "found.csv"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "benchmarks.pretraining", *map(str, words)], cwd=ROOT,
                          env=environment, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    with (tmp_path / "found.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert all(row["note"].startswith("learning rate") for row in rows if row["stage"] != "pretrain")
    stages = {(row["model"], row["stage"]) for row in rows}
    assert stages == {(name, stage) for name in ("bert", "distilbert")
                      for stage in ("pretrain", *GLUE, *(f"{task} from scratch" for task in GLUE))}  # fmt: skip
    teacher, student = (row for row in rows if row["stage"] == "pretrain")
    assert int(student["steps"]) > int(teacher["steps"]) == 4  # half the layers, and the teacher's pass
    assert float(student["flops"]) == pytest.approx(float(teacher["flops"]), rel=0.2)
    page = render(tmp_path / "found.csv")
    assert "| BERT |" in page and "| DistilBERT |" in page and page.count("\n") == 5
    assert torch.isfinite(torch.tensor([float(row["score"]) for row in rows])).all()


def test_the_gist_on_the_page_of_results_is_that_of_the_table() -> None:
    path = newest()
    assert path is not None
    lines = [line.split(" | ") for line in render(path).splitlines() if line.startswith("| ")][1:]
    means = {line[0].removeprefix("| "): float(line[-2]) for line in lines}
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"between {means[least]:.1f} ({least}) and {means[most]:.1f} ({most})" in text
    assert max(abs(float(line[-2]) - float(line[-1].strip(" |"))) for line in lines) <= 2.5
