"""A run ends with probabilities that mean something, fitted on validation rows and used by all that open it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import anyformer
from anyformer.cli import app
from anyformer.data.calibration import CALIBRATION_FILE
from anyformer.data.reopen import reopen
from anyformer.errors import UserError
from anyformer.inference.evaluate import evaluate_run
from anyformer.training.setup.trial import time_evaluation

SMALL = {"model.stack.depth": 1, "model.stack.width": 32, "training.threads": 1, "training.optimizer.lr": 0.01,
         "training.batch_size": 64, "training.compile": False}  # fmt: skip


NAMES = list("abcdefgh")


def write_rows(path: Path, rows: int, *, share: float, noise: float, seed: int = 0) -> Path:
    """Eight numbers and a class that is `share` of the rows; two of them say of it as much as the noise leaves."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, len(NAMES)))
    said = x[:, :2].sum(1) + noise * generator.normal(size=rows)
    truth = np.where(said > np.quantile(said, 1 - share), "yes", "no")
    lines = [",".join(f"{one:.4f}" for one in row) + f",{y}" for row, y in zip(x.tolist(), truth.tolist(), strict=True)]
    path.write_text("\n".join([",".join([*NAMES, "y"]), *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that has seen few noisy rows too often, and was told to keep its last step."""
    folder = tmp_path_factory.mktemp("overfitted")
    data = write_rows(folder / "rows.csv", 2000, share=0.08, noise=0.9)
    asked = {"training.steps": 200, "training.eval_every": 200, "training.metric": "balanced_accuracy",
             "data.split.valid": 0.4, "data.split.test": 0.4}  # fmt: skip
    run = anyformer.train(data, target="y", out=folder / "run", device="cpu", quiet=True, settings=SMALL | asked)
    return run, data


def test_what_is_fitted_on_validation_rows_helps_the_test_rows_and_is_in_the_report(overfitted: Any) -> None:
    run, _ = overfitted
    found = run.evaluation["calibration"]
    assert found["temperature"][0] > 1.1 and found["rows"] == 800
    before, after = found["effect"]["test"]["log_loss"]
    assert after < before and run.metrics["log_loss"] == pytest.approx(after)
    assert found["threshold"] is not None and found["threshold"] < 0.5 and found["gain"]["low"] > 0
    page = (run.path / "report.html").read_text()
    assert "Temperature" in page and "before" in page and "95 of 100" in page


def test_the_report_says_by_how_much(overfitted: Any) -> None:
    run, _ = overfitted
    strong, interval = run.evaluation["baselines"]["strong"], run.evaluation["interval"]
    main = run.evaluation["main"]
    assert main == "balanced_accuracy" and interval["low"] < run.metrics[main] < interval["high"]
    assert strong["difference"]["value"] == pytest.approx(run.metrics[main] - strong["metrics"][main])
    (said, *_) = [line for line in run.summary() if line.startswith("verdict")]
    words = ("better than", "worse than", "not told apart from")
    assert any(word in said for word in words) and strong["name"] in said and " to " in said
    assert strong["name"] in (run.path / "report.html").read_text()


def test_every_way_to_open_the_run_gives_the_same_probabilities(overfitted: Any, tmp_path: Path) -> None:
    run, _ = overfitted
    loaded = anyformer.load(run.path)
    assert loaded.preprocess is not None and loaded.preprocess.calibration is not None
    saved = anyformer.load(loaded.save(tmp_path / "model"))
    rows = [dict.fromkeys(NAMES, value) for value in (0.1, -0.7, 1.5)]
    assert np.array_equal(loaded.predict_proba(rows).numpy(), saved.predict_proba(rows).numpy())
    bare = anyformer.load(run.folder.best())  # control: a checkpoint by itself was never fitted to
    assert not np.array_equal(loaded.predict_proba(rows).numpy(), bare.predict_proba(rows).numpy())
    again = evaluate_run(run.path, [], device="cpu", batch_size=64, log=lambda line: None)
    assert again["log_loss"] == pytest.approx(run.metrics["log_loss"], rel=1e-5)
    assert again["interval"]["low"] == pytest.approx(run.evaluation["interval"]["low"])


def test_a_threshold_is_an_option_of_predict_and_evaluate(overfitted: Any) -> None:
    run, data = overfitted

    def share_of_yes(*words: str) -> float:
        done = CliRunner().invoke(app, ["predict", str(run.path), str(data), "--json", "--quiet", *words])
        assert done.exit_code == 0, done.output
        return float(np.mean([json.loads(line)["prediction"] == "yes" for line in done.stdout.splitlines()]))

    few, some, many = share_of_yes("--threshold", "0.9"), share_of_yes(), share_of_yes("--threshold", "0.05")
    assert few < some < many
    judged = evaluate_run(run.path, [data], device="cpu", batch_size=64, log=lambda line: None, threshold=0.9)
    assert (
        judged["accuracy"]
        != evaluate_run(run.path, [data], device="cpu", batch_size=64, log=lambda line: None)["accuracy"]
    )
    with pytest.raises(UserError, match="outside 0 to 1"):
        anyformer.load(run.path).with_threshold(1.5)


def test_what_was_fitted_for_other_weights_is_not_used(overfitted: Any, tmp_path: Path) -> None:
    run, _ = overfitted
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    held = json.loads((copy / CALIBRATION_FILE).read_text())
    (copy / CALIBRATION_FILE).write_text(json.dumps(held | {"weights": "step-000001"}))
    opened = anyformer.load(copy)
    assert opened.preprocess is not None and opened.preprocess.calibration is None
    (copy / CALIBRATION_FILE).write_text("[1]")
    with pytest.raises(UserError):
        anyformer.load(copy)


def test_the_time_is_a_limit_and_no_aim(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ten minutes for a table that is learned in seconds: as many passes as such data wants, and a stop before that
    where nothing gets better."""
    data = write_rows(tmp_path / "rows.csv", 120, share=0.5, noise=50.0)
    with caplog.at_level("INFO", logger="anyformer"):
        run = anyformer.train(data, target="y", out=tmp_path / "run", device="cpu", minutes=10, progress="none",
                              settings=SMALL | {"training.batch_size": 32, "training.patience": 2})  # fmt: skip
    events = (run.path / "events.jsonl").read_text()
    assert run.facts["step"] < run.facts["total"] <= 400 and "early stop" in events
    assert any(line.startswith("enough") for line in caplog.messages)
    lines = [line for line in run.history if "eval" in line]
    assert lines[0]["step"] <= 15 and "choice" in lines[0]  # few rows are judged often


def test_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.csv", 100, share=0.5, noise=1.0)
    with pytest.raises(UserError, match="macro_f2"):
        anyformer.train(data, target="y", out=tmp_path / "run", device="cpu", quiet=True,
                        settings=SMALL | {"training.steps": 2, "training.metric": "macro_f2"})  # fmt: skip


class Delayed(torch.nn.Module):
    """A model to which the way is long, and which takes no time for its rows: as on a GPU."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> Any:
        time.sleep(0.02)
        return self.model(*inputs, **named)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Two threads beside a busy neighbour wait some 15 ms for each other at every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.alone
@pytest.mark.usefixtures("one_thread")
def test_the_time_of_an_evaluation_is_that_of_batches(overfitted: Any) -> None:
    """Eight rows and 20 ms are not 2.5 ms a row, by which a run could afford a single evaluation."""
    run, _ = overfitted
    config, data = run.folder.config(), reopen(run.folder.cache)
    assert data is not None
    config = config.replace(training=config.training.replace(batch_size=512, micro_batch_size=512))
    assert 512 * time_evaluation(Delayed(config.model.build(seed=0)), config, data) < 0.4
