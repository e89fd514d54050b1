"""The checkpoints of a real run as a series: every number is that of the checkpoint opened by itself."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import anyformer
from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.checkpoint_steps import CheckpointSteps, checkpoint_steps, followed_runs, run_of, spread
from anyformer.inspection.head_stats import STATISTICS
from anyformer.inspection.views import training as view
from anyformer.training.run.history import history
from tests.inspection.models import ROW, TEXT, gpt, table_file
from tests.inspection.runs import text_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return text_run(tmp_path_factory.mktemp("runs") / "words")


def test_every_checkpoint_is_what_it_is_by_itself(run):
    series = checkpoint_steps(run, "a b c a b c a b")
    assert [found.step for found in series] == [10, 20, 30]
    for found in series:
        alone = look(anyformer.load(run / "checkpoints" / f"step-{found.step:06}"), "a b c a b c a b")
        assert found.heads == alone.heads() and found.prediction == alone.prediction()
        for site in alone.sites:
            exact = alone.weights(site.index).numpy()
            assert np.abs(found.weights(site.index) - exact).max() < 0.005  # one step of 255 at a weight of 1
    # Control: the checkpoints differ, so that the series is no copy of one of them.
    assert series[0].heads != series[-1].heads


def test_a_capture_of_a_run_knows_its_series(run):
    capture = look(anyformer.load(run), "a b c a b c")
    assert run_of(capture.predictor.opened.folder) == run and followed_runs(capture) == (run,)
    assert view.applies(capture) is None
    made = ViewAnswer.from_bytes(view.answer(capture, Query(site=1, head=1)).to_bytes())
    steps, rows = made.facts["steps"], len(capture.axes[""])
    assert steps == [10, 20, 30] and made.arrays["maps"].shape == (3, rows, rows)
    assert made.arrays["maps"].dtype == np.uint8
    looks = capture.checkpoints.read()
    for number, found in enumerate(looks):
        line = next(row for row in found.heads if (row["site"], row["head"]) == (1, 1))
        wanted = [np.nan if line[name] is None else line[name] for name in STATISTICS]
        assert np.allclose(made.arrays["heads"][number, 1], wanted, atol=1e-5, equal_nan=True)
    past = history(run)
    for step, losses in zip(steps, made.facts["losses"], strict=True):
        assert losses["training"] == dict(past.curve("loss"))[step]
        assert losses["valid"] == dict(past.curve("loss", "valid"))[step]
    assert made.facts["curves"]["training"][-1] == [30, dict(past.curve("loss"))[30]]


def test_checkpoints_come_and_go_while_the_run_is_watched(run, tmp_path):
    copied = tmp_path / "words"
    shutil.copytree(run, copied, ignore=shutil.ignore_patterns("step-000030"))
    capture = look(anyformer.load(copied / "checkpoints" / "step-000020"), "a b c a")
    series = CheckpointSteps(copied, capture)
    assert [found.step for found in series.read()] == [10, 20]
    shutil.copytree(run / "checkpoints" / "step-000030", copied / "checkpoints" / "step-000030")
    shutil.rmtree(copied / "checkpoints" / "step-000010")
    assert [found.step for found in series.read()] == [10, 20, 30]  # what was seen stays
    (copied / "checkpoints" / "step-000040").mkdir()  # half a checkpoint is none
    assert [found.step for found in series.read()] == [10, 20, 30]


def test_models_of_no_run_have_no_series(run):
    capture = look(gpt(), TEXT)
    assert "does not come from a run" in view.applies(capture)
    with pytest.raises(UserError, match="run"):
        view.answer(capture, Query())
    with pytest.raises(UserError, match="no run"):
        checkpoint_steps(run / "checkpoints", ROW)


def test_long_series_are_thinned():
    assert spread(list(range(100)), 5) == [0, 25, 50, 74, 99] or spread(list(range(100)), 5) == [0, 25, 49, 74, 99]
    assert spread([1, 2], 5) == [1, 2]


def test_a_model_without_maps_shows_its_run_all_the_same(tmp_path):
    out = tmp_path / "run"
    anyformer.train(table_file(), model="table-mini-tiny", target="buys", steps=4, out=out, device="cpu", quiet=True)
    capture = look(anyformer.load(out), ROW)
    assert not capture.sites and view.applies(capture) is None
    found = view.answer(capture, Query())
    assert found.facts["steps"][-1] == 4 and found.facts["curves"] and not found.arrays
