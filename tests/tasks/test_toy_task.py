"""A task in one file outside the library lives a whole life: train, resume, evaluate, predict, report, HTTP."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.serving.server import Server
from tests.training.nursery import Nursery

TOY = Path(__file__).with_name("toy_task.py")


def stars(path: Path, rows: int = 400) -> Path:
    """Ratings that two columns explain, with some noise."""
    draw = np.random.default_rng(0)
    clean, kind = draw.uniform(0, 4, rows), draw.choice(["inn", "hotel"], rows)
    level = np.clip(np.round(clean + 0.7 * (kind == "hotel") + draw.normal(0, 0.3, rows)), 0, 4) + 1
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["clean", "kind", "stars"])
        writer.writerows([f"{a:.3f}", b, int(c)] for a, b, c in zip(clean, kind, level, strict=True))
    return path


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def cli(nursery: Nursery) -> Cli:
    """`cli(folder, *words)`: a real process, in a folder where the user's module lies."""

    def run(folder: Path, *words: str, fault: str = "", toy: bool = True) -> subprocess.CompletedProcess[str]:
        own = ("--import", "toy_task") if toy else ()
        return nursery.command(*words, *own, where=folder, fault=fault)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """A folder of the user's with the module, data and a trained run."""
    made: Path = tmp_path_factory.mktemp("toy")
    (made / "toy_task.py").write_text(TOY.read_text(encoding="utf-8"), encoding="utf-8")
    stars(made / "stars.csv")
    words = ["train", "stars.csv", "--task", "rate", "--target", "stars", "--steps", "120", "--quiet"]
    done = cli(made, *words, "--set", "training.save_every=40", "--set", "training.threads=1", "--out", "run")
    assert done.returncode == 0, done.stderr
    return made


def test_it_trains_and_beats_its_trivial_baseline(folder: Path) -> None:
    found = json.loads((folder / "run" / "evaluation.json").read_text())
    assert found["task"] == "rate" and found["main"] == "kappa"
    ours, baselines = found["metrics"][found["split"]], found["baselines"]
    assert ours["kappa"] > 0.6 > baselines["trivial"]["metrics"]["kappa"]
    assert baselines["strong"]["name"] == "gradient boosting, rounded" and baselines["strong"]["metrics"]["kappa"] > 0.6


def test_a_killed_run_resumes_to_the_bit(folder: Path, cli: Cli) -> None:
    words = ["train", "stars.csv", "--task", "rate", "--target", "stars", "--steps", "120", "--quiet"]
    words += ["--set", "training.save_every=40", "--set", "training.threads=1", "--out", "killed"]
    dead = cli(folder, *words, fault="kill@saved:2")
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    again = cli(folder, "resume", "killed", "--quiet")
    assert again.returncode == 0, again.stderr
    weights = [next((folder / run / "checkpoints").glob("*120/model*.safetensors")).read_bytes()
               for run in ("run", "killed")]  # fmt: skip
    assert weights[0] == weights[1]


def test_it_evaluates_and_predicts_new_rows(folder: Path, cli: Cli) -> None:
    judged = cli(folder, "evaluate", "run", "stars.csv", "--json")
    assert judged.returncode == 0, judged.stderr
    assert json.loads(judged.stdout)["kappa"] > 0.6
    (folder / "new.csv").write_text("clean,kind\n0.1,inn\n3.9,hotel\n")
    said = cli(folder, "predict", "run", "new.csv", "--quiet")
    assert said.returncode == 0, said.stderr
    low, high = (int(row["prediction"]) for row in csv.DictReader(said.stdout.splitlines()))
    assert low <= 2 and high >= 4


def test_the_report_shows_it(folder: Path) -> None:
    page = (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "Rating from stars.csv" in page and "kappa" in page and "always answering" in page


def test_a_server_answers_with_it(folder: Path) -> None:
    rows = [{"clean": 3.9, "kind": "hotel"}, {"clean": 0.0, "kind": "inn"}]
    path = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    with Server(folder / "run", "--import", "toy_task", env=path) as server:
        answer = server.post("/v1/predict", {"rows": rows})
    assert answer.status_code == 200, answer.text
    high, low = (one["rating"] for one in answer.json()["data"])
    assert high >= 4 and low <= 2


def test_without_its_module_a_run_says_what_to_import(folder: Path, cli: Cli) -> None:
    for words in (["predict", "run", "new.csv"], ["evaluate", "run"], ["resume", "run"]):
        done = cli(folder, *words, toy=False)
        assert done.returncode == 2 and "--import toy_task" in done.stderr, (words, done.stderr)
    unknown = cli(folder, "train", "stars.csv", "--task", "rate", toy=False)
    assert unknown.returncode == 2 and "--import MODULE" in unknown.stderr
    absent = cli(folder, "train", "stars.csv", "--import", "nowhere")
    assert absent.returncode == 2 and "module 'nowhere' not found" in absent.stderr
