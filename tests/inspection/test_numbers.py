"""What is shown of models that answer by numbers: the units of the file, as `predict` has them, with or without layers
that attend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anyformer
from anyformer.inference.predictor import Predictor
from anyformer.inspection.answer import Query
from anyformer.inspection.capture import look
from anyformer.inspection.importance import empty_cells
from anyformer.inspection.views import compare, lens, positions, remove, table
from tests.inspection import models

HOUSE = {"rooms": 3, "age": 20, "place": "sea"}


def houses(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    lines = ["rooms,age,place,price,rent"]
    for _ in range(160):
        rooms, age, place = draw.integers(1, 8), draw.integers(0, 90), draw.choice(["town", "sea", "hill"])
        price = 100_000 * rooms - 900 * age + {"town": 0, "sea": 150_000, "hill": 40_000}[place]
        lines.append(f"{rooms},{age},{place},{price},{price / 300 + 20 * rooms:.2f}")
    path = folder / "houses.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Predictor]:
    """By the defaults, which for so few rows attend to nothing; as an FT-Transformer; and with two targets."""
    folder = tmp_path_factory.mktemp("houses")
    data, found = houses(folder), {}
    for name, model, target in (
        ("default", None, "price"), ("ft", "ft-transformer-tiny", "price"), ("two", None, ["price", "rent"]),
    ):  # fmt: skip
        anyformer.train(data, model=model, target=target, steps=40, out=folder / name, device="cpu", quiet=True,
                        settings={"data.inputs": list(HOUSE)})  # fmt: skip
        found[name] = anyformer.load(folder / name)
    return found


@pytest.mark.parametrize("name", ["default", "ft", "two"])
def test_the_answer_is_the_one_of_predict(trained, name: str) -> None:
    (said,) = trained[name].predict([HOUSE])
    found = look(trained[name], HOUSE).prediction()
    wanted = said if isinstance(said, dict) else dict(zip(["price", "rent"], np.ravel(said), strict=False))
    assert {one.name: one.logit for one in found} == pytest.approx(wanted, rel=1e-5)
    assert all(one.probability is None for one in found) and found[0].logit > 10_000  # control: not a scaled number


@pytest.mark.parametrize("name", ["default", "ft"])
def test_an_empty_cell_changes_the_answer_as_predict_does(trained, name: str) -> None:
    whole, *without = trained[name].predict([HOUSE, *({**HOUSE, column: None} for column in HOUSE)])
    found = empty_cells(look(trained[name], HOUSE), HOUSE)
    assert found.names == tuple(HOUSE) and found.what == "price" and found.whole == pytest.approx(whole, rel=1e-5)
    assert found.change == pytest.approx(np.array(without) - whole, rel=1e-3, abs=abs(whole) * 1e-5)
    assert np.abs(found.change).max() > 1_000  # control: something is read


def test_an_empty_cell_of_a_classifier_is_the_log_probability_of_its_class() -> None:
    capture = look(models.ft(), models.ROW)
    best = capture.prediction()[0]
    found = empty_cells(capture, models.ROW)
    assert found.what == f"log-probability of {best.name}" and best.probability is not None
    assert found.whole == pytest.approx(np.log(best.probability), abs=1e-5)
    for name, change in zip(found.names, found.change, strict=True):
        other = next(p for p in look(models.ft(), models.ROW | {name: None}).prediction() if p.id == best.id)
        assert other.probability is not None
        assert change == pytest.approx(np.log(other.probability / best.probability), abs=1e-4)


def test_a_table_model_without_attention_still_shows_its_columns(trained, tmp_path: Path) -> None:
    capture = look(trained["default"], HOUSE)
    assert not capture.sites and table.applies(capture) is None
    shown = table.answer(capture, Query())
    assert "from_class" not in shown.arrays and shown.facts["names"] == list(HOUSE)
    assert shown.facts["groups"] == ["number", "number", "category"] and shown.facts["values"] == ["3", "20", "sea"]
    assert "price changes most" in shown.facts["found"] and np.isfinite(shown.arrays["empty"]).all()
    assert positions.exported(capture)  # a page without tokens is written too
    assert len(capture.html(tmp_path / "inside.html")) > 2**17


def test_a_file_of_rows_is_shuffled_also_without_attention(trained, tmp_path: Path) -> None:
    shown = table.answer(look(trained["default"], houses(tmp_path)), Query())
    assert shown.facts["permutation"]["metric"] == "rmse" and shown.facts["agreement"] == ""
    drops = dict(zip(shown.facts["names"], shown.arrays["drops"], strict=True))
    assert max(drops, key=drops.__getitem__) in ("rooms", "place") and "empty" not in shown.arrays


def test_every_view_says_the_same_number(trained) -> None:
    capture = look(trained["ft"], HOUSE)
    price = capture.prediction()[0].logit
    assert remove.answer(capture, Query()).facts["target"]["value"] == pytest.approx(price)
    shown = lens.answer(capture, Query())
    assert shown.facts["outputs"] == ["price"] and shown.arrays["values"][-1, 0, 0] == pytest.approx(price, rel=1e-5)
    capture.compare(look(trained["ft"], HOUSE | {"rooms": 7}))
    both = compare.answer(capture, Query()).facts
    assert both["numbers"] and [row["name"] for row in both["predictions"]] == ["price"]
    assert both["predictions"][0]["first"] == pytest.approx(price) != both["predictions"][0]["second"]
