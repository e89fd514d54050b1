"""Tables by the defaults: what their parts are worth on data made here, and an ensemble's whole life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer
from anyformer import UserError
from anyformer.data.sizes import Sizes
from anyformer.tasks import find
from anyformer.training.distributed.tensor import check_split

LEAN = {"training.threads": 1, "data.split.valid": 0.2, "data.split.test": 0.2, "training.compile": False}


def trained(rows: Any, target: str, out: Path, preset: str | None = None, **settings: Any) -> anyformer.Run:
    given = LEAN | {name.replace("__", "."): value for name, value in settings.items()}
    return anyformer.train(rows, None, preset, target, out=out, device="cpu", quiet=True, settings=given)


def waves(count: int = 500) -> dict[str, np.ndarray]:
    """A number that rises and falls three times with another; no straight line says anything about it."""
    draw = np.random.default_rng(0)
    x, other = draw.normal(size=count), draw.normal(size=count)
    return {"x": x, "other": other, "value": np.sin(5 * x) + 0.1 * draw.normal(size=count)}


def test_the_default_bends_where_a_straight_line_cannot(tmp_path):
    run = trained(waves(), "value", tmp_path / "run", training__steps=150)
    straight = trained(waves(), "value", tmp_path / "straight", training__steps=150, model__embed__curve=None)
    assert run.metrics["r2"] > 0.8
    assert straight.metrics["r2"] < run.metrics["r2"] - 0.1  # control: without the part


def test_few_rows_are_seen_more_often_than_many():
    task = find("classify")
    few, some, many = (task.habit(Sizes(["table"], rows=n), start=False).epochs for n in (300, 10_000, 1_000_000))
    assert few > some > many >= 10
    assert task.habit(Sizes(["text"], rows=300), start=False) == task.habit(Sizes(["text"]), start=False)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_default_is_an_ensemble_and_the_published_one_stays(gpu):
    few, many = (anyformer.preset(find("regress").default_preset(Sizes(["table"], rows=rows), gpu=gpu))
                 for rows in (1000, 20_000))  # fmt: skip
    assert few.ensemble is not None and isinstance(few.embed.curve, anyformer.PiecewiseCurve)
    assert many.ensemble == few.ensemble and isinstance(many.embed.curve, anyformer.PeriodicCurve)
    paper = anyformer.preset("ft-transformer")
    assert paper.ensemble is None and paper.embed.curve is None and paper.embed.joined is None


def test_an_ensemble_of_texts_is_trained_saved_and_asked(tmp_path):
    draw = np.random.default_rng(2)
    good, bad = ("fine", "lovely", "warm"), ("cold", "dull", "grim")
    labels = draw.integers(0, 2, 160)
    rows = {"text": [" ".join(draw.choice(good if y else bad, 5)) for y in labels],
            "label": np.where(labels, "good", "bad").tolist()}  # fmt: skip
    settings = {"model__ensemble": "Ensemble", "model__ensemble__members": 3}
    run = trained(rows, "label", tmp_path / "run", "encoder-mini", training__steps=40, **settings)
    assert run.metrics["accuracy"] > 0.95
    model = anyformer.load(tmp_path / "run")
    assert model.spec.ensemble.members == 3
    answers = model.predict({"text": ["warm fine lovely", "grim dull cold"]})
    assert answers == ["good", "bad"]
    again = anyformer.load(tmp_path / "run").predict({"text": ["warm dull"] * 4 + ["grim fine"]})
    assert len(again) == 5 and len(set(again[:4])) == 1


def test_micro_batches_of_an_ensemble_add_up(tmp_path):
    steady = {"training__steps": 6, "training__batch_size": 16, "model__stack__feed__dropout": 0.0,
              "model__head__dropout": 0.0}  # fmt: skip
    whole = trained(waves(200), "value", tmp_path / "whole", **steady)
    parts = trained(waves(200), "value", tmp_path / "parts", training__micro_batch_size=4, **steady)
    losses = [[row["loss"] for row in run.history if "lr" in row] for run in (whole, parts)]
    assert len(losses[0]) == 6 and losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_an_ensemble_of_a_language_model_is_refused(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("the cat sees the dog. " * 200, encoding="utf-8")
    with pytest.raises(UserError, match="cannot be averaged"):
        anyformer.train(book, "lm", "decoder-mini", out=tmp_path / "run", device="cpu", quiet=True,
                        settings={"model.ensemble": "Ensemble"})  # fmt: skip


def test_an_ensemble_is_not_cut_by_heads():
    spec = anyformer.preset("encoder-mini")
    check_split(spec.build(device="meta"), 2)  # control: without members it can be
    with pytest.raises(UserError, match="members of an ensemble"):
        check_split(spec.replace(ensemble=anyformer.Ensemble(2)).build(device="meta"), 2)
