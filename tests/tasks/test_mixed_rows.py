"""Texts beside columns, and texts of many classes: their n-grams are fitted, and numbers bend."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from anyformer.core.model import Model
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.embeds import Joint, Table
from anyformer.embeds.numbers import PiecewiseCurve
from anyformer.heads import WideAndDeep
from anyformer.presets import preset
from anyformer.tasks import find
from anyformer.tasks.decide import decide
from anyformer.tasks.network import LEAST_BUCKETS, MOST_WEIGHTS
from anyformer.training.train import Run, train
from tests.tasks.test_decide import PRICE, ROWS, SIZE, TEXT, YES, frame_of
from tests.tasks.test_ngram_weights import texts

MAILS = [f"person.{at}@mail.org" for at in range(ROWS)]
CODES = [f"C-{at:05}" for at in range(ROWS)]


def one_step(folder: Path, **settings: bool) -> Run:
    draw = random.Random(1)
    rows = texts(500)
    columns = {"age": [draw.randrange(90) for _ in range(500)], "city": draw.choices(["Rom", "Oslo"], k=500)}
    return train(rows | columns, target="label", device="cpu", steps=1, out=folder, quiet=True, progress="none",
                 settings={f"model.head.{name}": value for name, value in settings.items()})  # fmt: skip


def test_a_training_on_texts_beside_columns_begins_where_the_regression_ends(tmp_path: Path) -> None:
    fitted, fresh = one_step(tmp_path / "fitted"), one_step(tmp_path / "fresh", fitted=False)
    assert fitted.metrics["accuracy"] > 0.9
    assert fresh.metrics["accuracy"] < 0.8  # control: a single step knows next to nothing
    spec = fitted.folder.config().model
    assert isinstance(spec, Model) and isinstance(spec.embed, Joint)
    table = next(part for part in spec.embed.parts if isinstance(part, Table))
    assert isinstance(table.curve, PiecewiseCurve)
    rows = [{"text": "ba de lovely fi", "age": 3, "city": "Rom"}, {"text": "awful go ki", "age": None, "city": "Oslo"}]
    assert fitted.predictor("cpu").predict(rows) == ["good", "bad"]


@pytest.mark.quick
@pytest.mark.parametrize(
    "classes, fitted", [(2, True), (64, True), (65, True), (150, True), (1000, True), (5000, False)]
)
def test_many_classes_have_fewer_buckets(classes: int, fitted: bool) -> None:
    sizes = Sizes(parts=["text"], rows=1000, vocab=500, length=16, classes=classes)
    spec = find("classify").fit_network(preset("encoder-mini"), "encoder-mini", sizes)
    assert isinstance(spec, Model) and isinstance(spec.head, WideAndDeep)
    assert spec.head.fitted == fitted
    weights = spec.build(device="meta").head.wide.weight
    if fitted:
        assert weights.shape[1] == classes and weights.numel() <= MOST_WEIGHTS and len(weights) >= LEAST_BUCKETS
    else:
        assert weights.shape[1] < classes


# ---------------------------------------------------------------- which columns are read


@pytest.mark.quick
def test_addresses_and_codes_beside_other_columns_are_left_out_with_the_word_that_reads_them() -> None:
    found = decide(frame_of(mail=MAILS, code=CODES, x=SIZE, ok=YES), Data(target=("ok",)))
    assert [one.name for one in found.inputs] == ["x"]
    why = dict(found.dropped)
    assert "--types mail=text" in why["mail"] and "codes, nearly all different" in why["code"]
    kept = decide(frame_of(mail=MAILS, code=CODES, x=SIZE, ok=YES), Data(target=("ok",), types=("mail=text",)))
    assert [(one.name, one.kind) for one in kept.inputs] == [("mail", "text"), ("x", "number")]
    texts = decide(frame_of(text=TEXT, x=PRICE, ok=YES), Data(target=("ok",)))  # control: sentences stay
    assert [one.name for one in texts.inputs] == ["text", "x"] and not texts.dropped


@pytest.mark.quick
def test_codes_alone_are_read() -> None:
    found = decide(frame_of(code=CODES, ok=YES), Data(target=("ok",)))
    assert [(one.name, one.kind) for one in found.inputs] == [("code", "text")] and not found.dropped


# ---------------------------------------------------------------- pixels


def pixels(count: int, *, top: int = 255, name: str = "pixel") -> dict[str, list[str]]:
    """Columns of whole numbers; the first of them always 0, as the corner of an image is."""
    draw = random.Random(2)
    return {f"{name}{at}": [str(draw.randrange(top + 1) if at else 0) for _ in range(ROWS)] for at in range(count)}


@pytest.mark.quick
@pytest.mark.parametrize(
    "columns, shape",
    [
        (pixels(64), "-1, 8, 8)"),
        (pixels(192), "-1, 8, 8, 3)"),
        (pixels(65), ""),  # no square
        (pixels(64, top=300), ""),  # too bright
        (pixels(49), ""),
        ({chr(97 + at % 26) * (1 + at // 26): cells for at, cells in enumerate(pixels(64).values())}, ""),
    ],
    ids=["grey", "colour", "no square", "too bright", "few", "names of their own"],
)
def test_pixels_in_columns_are_told_how_to_be_read_as_images(columns: dict[str, list[str]], shape: str) -> None:
    found = decide(frame_of(label=YES, **columns), Data(target=("label",)))
    said = [note for note in found.remarks if "look like pixels" in note]
    assert bool(said) == bool(shape) and shape in "".join(said)
    assert said == [note for note in found.plain()["notes"] if "look like pixels" in note]
