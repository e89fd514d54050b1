"""Where nearly all rows are of one class, checkpoints are chosen and runs compared by more than accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.bootstrap import compare_rows, standard_error
from anyformer.evaluation.metrics import auc
from anyformer.evaluation.row_sums import class_sums
from anyformer.evaluation.sentences import undecided
from anyformer.training.train import verdict_lines
from tests.training.test_probabilities import write_rows

SETTINGS = {"model.stack.width": 16, "model.stack.depth": 1, "training.steps": 30, "training.threads": 1}


def chosen_by(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float, **asked: str
) -> tuple[str, dict[str, Any], str]:
    """The metric that chose the checkpoint, the evaluation, and what was printed."""
    data = write_rows(tmp_path / "rows.csv", 600, share=share, noise=0.5)
    settings = SETTINGS | {f"training.{name}": value for name, value in asked.items()}
    with caplog.at_level("INFO", logger="anyformer"):
        run = anyformer.train(data, target="y", out=tmp_path / "run", device="cpu", progress="none", settings=settings)
    best = json.loads((run.folder.path / "run.json").read_text())["best"]["metric"]
    return best, json.loads((run.folder.path / "evaluation.json").read_text()), caplog.text


def test_uneven_classes_choose_by_log_loss_and_are_compared_by_auc(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metric, evaluation, said = chosen_by(tmp_path, caplog, 0.05)
    assert metric == "log_loss" and evaluation["main"] == "accuracy"
    strong = evaluation["baselines"]["strong"]
    assert set(strong["beside"]) == {"log_loss", "auc"}
    for name, one in strong["beside"].items():
        ours = evaluation["metrics"]["test"][name]
        assert one["value"] == pytest.approx(ours - strong["metrics"][name], abs=1e-6)
        assert one["low"] <= one["value"] <= one["high"]
    assert sum("log loss" in line or "AUC" in line for line in verdict_lines(evaluation)) == 2
    assert "choose   checkpoints by log loss" in said and "training.metric=accuracy" in said


def test_even_classes_go_by_accuracy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metric, evaluation, said = chosen_by(tmp_path, caplog, 0.4)
    assert metric == "accuracy" and "beside" not in evaluation["baselines"]["strong"]
    assert "choose   checkpoints" not in said


def test_a_metric_that_was_asked_for_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metric, _, said = chosen_by(tmp_path, caplog, 0.05, metric="accuracy")
    assert metric == "accuracy" and "choose   checkpoints" not in said


@pytest.mark.quick
def test_what_another_metric_decides_is_not_called_undecided() -> None:
    even = {"value": 0.0, "low": -0.1, "high": 0.1}
    sure = {"value": 0.05, "low": 0.01, "high": 0.1}
    assert undecided({"strong": {"difference": even}})
    assert undecided({"strong": {"difference": even, "beside": {"auc": even}}})
    assert not undecided({"strong": {"difference": even, "beside": {"auc": sure}}})


# ---------------------------------------------------------------- AUC by rows


def answers_of(signal: float, rows: int, seed: int, truth: np.ndarray | None = None) -> Answers:
    draw = np.random.default_rng(seed)
    truth = (draw.random(rows) < 0.1).astype(int) if truth is None else truth
    score = 1 / (1 + np.exp(-(signal * truth + draw.normal(size=rows)).round(1)))  # rounded: some are equal
    return Answers("classify", truth, score > 0.5, np.stack([1 - score, score], 1), ["no", "yes"])


@pytest.mark.quick
def test_the_spread_of_auc_is_that_of_rows_drawn_anew() -> None:
    answers = answers_of(1.0, 500, 0)
    sums = class_sums(answers, "auc")
    assert sums is not None
    truth, score = np.asarray(answers.truth), np.asarray(answers.probability)[:, 1]
    draw, drawn = np.random.default_rng(1), []
    for _ in range(400):
        at = draw.integers(0, 500, 500)
        drawn.append(auc(truth[at] == 1, score[at]))
    assert sums.value == pytest.approx(auc(truth == 1, score))
    assert standard_error(sums) == pytest.approx(np.std(drawn), rel=0.2)


@pytest.mark.quick
def test_two_models_are_told_apart_by_auc_where_accuracy_cannot() -> None:
    better = answers_of(2.0, 1000, 2)
    worse = answers_of(0.5, 1000, 3, truth=np.asarray(better.truth))
    ours, theirs = class_sums(better, "auc"), class_sums(worse, "auc")
    assert ours is not None and theirs is not None
    found = compare_rows(ours, theirs)
    assert found.low > 0.1 and not found.has_zero
    assert compare_rows(ours, ours).value == 0  # control
