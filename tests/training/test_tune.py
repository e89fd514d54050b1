"""`--tune`: settings tried by successive halving, the winner becomes the run, and a killed search goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import anyformer
from anyformer.errors import UserError
from anyformer.training import tune
from anyformer.training.train import Run
from anyformer.training.tune import TunedTrial, TuneState, count_trials, plan_rounds
from tests.training.test_probabilities import write_rows

MINUTES = 0.15
TINY = ["--set", "model.stack.depth=1", "--set", "model.stack.width=16", "--set", "training.threads=1", "--device",
        "cpu", "--progress", "none", "--epochs", "6", "--batch-size", "64"]  # fmt: skip


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "anyformer.cli", *words]


def train_words(data: Path, out: Path) -> list[str]:
    return ["train", str(data), "--target", "y", "--out", str(out), "--tune", str(MINUTES), *TINY]


def state_of(out: Path) -> dict[str, Any]:
    path = out / "tune" / "tune.json"
    return json.loads(path.read_text()) if path.is_file() else {"trials": []}


def check_finished(out: Path) -> None:
    """One winner, whose settings are the run's, and all that was tried is told."""
    found, run = state_of(out), Run(out)
    assert run.facts["status"] == "done" and run.facts["id"] == out.name
    assert len(found["trials"]) == 3 and all(one["round"] == 1 for one in found["trials"])
    winner = next(one for one in found["trials"] if one["name"] == found["winner"])
    best = max(found["trials"], key=lambda one: one["value"])
    assert winner["value"] >= best["value"] - best["error"] and winner["loss"] <= best["loss"]
    rate = winner["settings"].get("training.optimizer.lr")
    assert rate is None or run.folder.config().training.optimizer.lr == rate  # type: ignore[attr-defined]
    page = (out / "report.html").read_text()
    assert "Settings that were tried" in page and all(one["name"] in page for one in found["trials"])
    left = [one["name"] for one in found["trials"] if one["name"] != found["winner"]]
    assert not any((out / "tune" / name / "checkpoints").exists() for name in left)
    assert anyformer.load(out).predict([dict.fromkeys("abcdefgh", 0.5)])[0] in ("yes", "no")


def test_a_search_that_is_killed_goes_on_to_a_run(tmp_path: Path) -> None:
    data, out = write_rows(tmp_path / "rows.csv", 300, share=0.5, noise=0.5), tmp_path / "run"
    child = subprocess.Popen(command(*train_words(data, out)), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    until = time.monotonic() + 120
    while not any(one["round"] for one in state_of(out)["trials"]) and child.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    if child.poll() is None:
        os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    before = state_of(out)
    assert child.returncode == -signal.SIGKILL and not (out / "run.json").exists()
    data.unlink()  # the trials hold all that they need
    done = subprocess.run(command("resume", str(out), "--progress", "none"), capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    ended = [one for one in before["trials"] if one["round"]]
    after = {one["name"]: one for one in state_of(out)["trials"]}
    assert ended and all(after[one["name"]]["value"] == one["value"] for one in ended)  # not trained again
    check_finished(out)


@pytest.mark.quick
def test_a_third_goes_on_and_the_defaults_win_a_tie() -> None:
    assert plan_rounds(9) == [9, 3] and plan_rounds(3) == [3] and plan_rounds(27) == [27, 9, 3]
    trials = [TunedTrial("trial-00", {}, 1, 0.8, 0.5), TunedTrial("trial-01", {"a": 1}, 1, 0.8, 0.5),
              TunedTrial("trial-02", {"a": 2}, 1, 0.9, 0.6), TunedTrial("trial-03", {"a": 3}, 1, 0.99, problem="lost"),
              TunedTrial("trial-04", {"a": 4}, 1, None)]  # fmt: skip
    ranked = [trial.name for trial in TuneState(60.0, "accuracy", trials).alive()]
    assert ranked == ["trial-02", "trial-00", "trial-01", "trial-04"]
    later = TuneState(60.0, "accuracy", trials, rounds=[ranked, ["trial-00", "trial-01"]])
    assert [trial.name for trial in later.alive()] == ["trial-00", "trial-01"]
    assert next(one.name for one in TuneState(60.0, "rmse", trials).alive()) == "trial-00"
    trials[2].error = 0.1  # so few rows do not tell 0.9 from 0.8: the lower loss is better
    assert [one.name for one in TuneState(60.0, "accuracy", trials).alive()][:3] == ["trial-00", "trial-01", "trial-02"]
    assert count_trials(600, 1.0) == 9 and count_trials(600, 60.0) == 3 and count_trials(20, 0.1) == 3


@pytest.mark.quick
def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    data, out = write_rows(tmp_path / "rows.csv", 100, share=0.5, noise=0.5), tmp_path / "run"
    for minutes, settings, said in ((0, {}, "0 minutes is outside"), (1, {"data.split.valid": 0}, "validate")):
        with pytest.raises(UserError, match=said):
            anyformer.train(data, target="y", out=out, tune=minutes, settings=settings, device="cpu", quiet=True)
        assert not out.exists()
    with pytest.raises(UserError, match="two stages"):
        anyformer.train(data, target="y", out=out, tune=1, pretrain="masked", device="cpu", quiet=True)
    (tmp_path / "broken" / "tune").mkdir(parents=True)
    (tmp_path / "broken" / "tune" / tune.TUNE_FILE).write_text("{}")
    with pytest.raises(UserError, match="search"):
        TuneState.read(tmp_path / "broken" / "tune" / tune.TUNE_FILE)
