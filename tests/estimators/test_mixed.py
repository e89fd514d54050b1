"""Text, a number, a category and an image of one row: only their combination tells the class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anyformer import MixedClassifier, MixedRegressor

SETTINGS: dict[str, Any] = {
    "model.stack.width": 64,
    "model.stack.depth": 2,
    "data.tokenizer.kind": "word",
    "data.images.randaugment": 0,
    "data.images.crop": 0.0,
    "data.images.flip": False,
}
JOINT = {"model.embed.parts[2].stride": 4}  # four cells of an image of 8 x 8
WORDS = ["river", "stone", "cloud", "field", "house", "light", "paper"]
CHANCE = 0.25


def rows(count: int, folder: Path, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """One bit in a word, the sign of a number and the brightness of an image each; the class is two of their sums."""
    rng = np.random.default_rng(seed)
    word, sign, bright = rng.integers(0, 2, (3, count))
    notes = [str(["cold", "warm"][bit]) for bit in word]
    notes = [" ".join(rng.permutation([bit, *rng.choice(WORDS, 4)]).tolist()) for bit in notes]
    level = np.where(sign, 1, -1) * rng.uniform(0.2, 2.0, count)
    photos = []
    for row, bit in enumerate(bright):
        pixels = np.clip(rng.normal(190 if bit else 60, 20, (8, 8)), 0, 255).astype(np.uint8)
        photos.append(str(folder / f"{seed}-{row}.png"))
        Image.fromarray(pixels).save(photos[-1])
    shop = rng.choice(["p", "q", "r"], count).tolist()
    classes = np.array(["a", "b", "c", "d"])[2 * (word ^ sign) + (sign ^ bright)]
    return {"note": notes, "level": level, "shop": shop, "photo": photos}, classes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], np.ndarray, dict[str, Any], np.ndarray]:
    folder = tmp_path_factory.mktemp("photos")
    return *rows(600, folder, 0), *rows(200, folder, 1)


@pytest.fixture(scope="module")
def fitted(data: Any) -> MixedClassifier:
    X, y, _, _ = data
    return MixedClassifier(steps=150, lr=0.003, batch_size=64, settings=SETTINGS | JOINT).fit(X, y)


def test_the_combination_is_learned_and_every_column_it_needs_counts(data: Any, fitted: MixedClassifier) -> None:
    _, _, X, y = data
    found = fitted.ablation(X, y)
    assert found.whole >= 0.95
    assert all(found.without[name] <= 0.65 for name in ("note", "level", "photo"))
    assert found.without["shop"] >= 0.95
    lines = str(found).split("\n")
    assert lines[0].startswith("all columns") and lines[-1].startswith("without shop") and len(lines) == 5


@pytest.mark.parametrize("column", ["note", "level", "shop", "photo"])
def test_a_single_column_stays_at_chance(data: Any, column: str) -> None:
    X, y, new, wanted = data
    patch = {"model.embed.stride": 4} if column == "photo" else {}
    alone = MixedClassifier(steps=60, lr=0.003, batch_size=64, settings=SETTINGS | patch).fit({column: X[column]}, y)
    assert alone.score({column: new[column]}, wanted) <= CHANCE + 0.12


def test_missing_cells_of_any_kind_are_masked(data: Any, fitted: MixedClassifier) -> None:
    _, _, X, _ = data
    rows = [{name: values[row] for name, values in X.items()} for row in range(20)]
    holes = [row | {["note", "level", "shop", "photo"][at % 4]: None} for at, row in enumerate(rows)]
    share = fitted.predict_proba(holes)
    assert np.isfinite(share).all() and np.allclose(share.sum(1), 1)
    whole = fitted.predict_proba(rows)
    assert np.allclose(share[2::4], whole[2::4], atol=0.2) and not np.allclose(share[0::4], whole[0::4], atol=0.2)


def test_numbers_from_all_kinds(data: Any) -> None:
    X, _, _, _ = data
    some = {name: values[:60] for name, values in X.items()}
    made = MixedRegressor(steps=3, settings=SETTINGS | JOINT).fit(some, some["level"] * 2)
    assert made.predict(some).shape == (60,) and set(made.ablation(some, some["level"] * 2).without) == set(some)
