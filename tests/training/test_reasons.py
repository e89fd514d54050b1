"""What nobody asked for is in the log with its reason; what was asked for is not explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anyformer
from anyformer.data.reopen import reopen
from anyformer.tasks import find
from anyformer.training.setup.budget import sizes_for
from anyformer.training.tune import usable_space
from tests.tasks.test_ngram_weights import texts
from tests.training.test_probabilities import write_rows


def said_of(caplog: pytest.LogCaptureFixture, data: Any, target: str, out: Path, **asked: Any) -> list[str]:
    """What the log of a run of one step says."""
    with caplog.at_level("INFO", logger="anyformer"):
        anyformer.train(data, target=target, out=out, device="cpu", progress="none", minutes=0.02, **asked)
    return [record.getMessage() for record in caplog.records]


def test_defaults_of_a_table_are_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = said_of(caplog, write_rows(tmp_path / "rows.csv", 300, share=0.5, noise=0.5), "y", tmp_path / "run")
    assert "preset   table-mini: the default for tables with 240 training rows on a CPU; --preset names another" in said
    usual = next(line for line in said if line.startswith("defaults"))
    assert usual.endswith(": usual for tables") and "at most 60 passes" in usual and "weight decay 0.01" in usual
    assert "label smoothing" not in usual


def test_texts_are_smoothed_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = said_of(caplog, texts(200), "label", tmp_path / "run", settings={"training.optimizer.weight_decay": 0.2})
    usual = next(line for line in said if line.startswith("defaults"))
    assert "label smoothing 0.1" in usual and "usual for text" in usual
    assert "weight decay" not in usual  # it was asked for


def test_what_was_asked_for_has_no_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = {"training.patience": 3, "training.optimizer.weight_decay": 0.0, "training.epochs": 1}
    data = write_rows(tmp_path / "rows.csv", 300, share=0.5, noise=0.5)
    said = said_of(caplog, data, "y", tmp_path / "run", model="ft-transformer-tiny", settings=asked)
    assert not [line for line in said if line.startswith(("preset", "defaults"))]
    assert [line for line in said if line.startswith("model    ft-transformer-tiny")]  # control: the log was read


def test_a_search_tries_the_dropout_that_a_network_has(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.csv", 300, share=0.5, noise=0.5)
    quick: dict[str, Any] = {"device": "cpu", "quiet": True, "steps": 1}
    table = anyformer.train(data, target="y", out=tmp_path / "table", **quick)
    text = anyformer.train(texts(200), target="label", out=tmp_path / "text", **quick)
    feeds, blocks = "model.stack.feed.dropout", "model.stack.block.dropout"
    for run, has, lacks in ((table, feeds, blocks), (text, blocks, feeds)):
        opened = reopen(run.folder.cache)
        assert opened is not None
        space = usable_space(run.folder.config(), find("classify").tuned(sizes_for(opened)))
        assert len(space[has]) >= 3 and lacks not in space
