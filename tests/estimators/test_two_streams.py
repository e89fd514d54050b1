"""Words and a picture in two streams: one name away from the same rows as one sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anyformer import MixedClassifier, MixedRegressor, Streams, UserError

SETTINGS: dict[str, Any] = {"data.tokenizer.kind": "word", "data.images.randaugment": 0, "data.images.crop": 0.0}
WORDS = ["river", "stone", "cloud", "field"]


def rows(count: int, folder: Path, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """One bit in a word and one in the brightness of an image; whether they agree is the class."""
    rng = np.random.default_rng(seed)
    word, bright = rng.integers(0, 2, (2, count))
    notes = [" ".join(rng.permutation([["cold", "warm"][bit], *rng.choice(WORDS, 3)]).tolist()) for bit in word]
    photos = []
    for row, bit in enumerate(bright):
        pixels = np.clip(rng.normal(190 if bit else 60, 20, (8, 8)), 0, 255).astype(np.uint8)
        photos.append(str(folder / f"{seed}-{row}.png"))
        Image.fromarray(pixels).save(photos[-1])
    return {"note": notes, "photo": photos}, np.array(["same", "other"])[word ^ bright]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], np.ndarray]:
    return rows(160, tmp_path_factory.mktemp("photos"), 0)


def test_two_streams_are_one_name_away_from_one_sequence(data: Any) -> None:
    X, y = data
    made = {
        name: MixedClassifier(name, steps=4, batch_size=16, settings=SETTINGS).fit(X, y)
        for name in ("encoder-mini", "vilbert-base-tiny")
    }
    two = made["vilbert-base-tiny"].predictor_.spec
    assert isinstance(two, Streams) and not isinstance(made["encoder-mini"].predictor_.spec, Streams)
    assert two.head.classes == 2 and two.second.embed.size == 8 and two.first.embed.vocab < 64
    holes = [{"note": None, "photo": X["photo"][0]}, {"note": X["note"][0], "photo": None}]
    for model in made.values():
        share = model.predict_proba([*holes, {"note": X["note"][0], "photo": X["photo"][0]}])
        assert np.isfinite(share).all() and np.allclose(share.sum(1), 1)


def test_two_streams_learn_what_neither_column_tells_alone(data: Any, tmp_path: Path) -> None:
    X, y = data
    few = SETTINGS | {"model.second.embed.patch": 4}  # four patches of an image of 8 x 8
    model = MixedClassifier("vilbert-base-tiny", steps=90, lr=2e-3, batch_size=32, settings=few).fit(X, y)
    new, wanted = rows(60, tmp_path, 1)
    found = model.ablation(new, wanted)
    assert found.whole >= 0.95
    assert all(score <= 0.7 for score in found.without.values())


def test_numbers_come_from_two_streams_too_and_other_columns_are_refused(data: Any) -> None:
    X, _ = data
    some = {name: values[:40] for name, values in X.items()}
    model = MixedRegressor("vilbert-base-tiny", steps=2, batch_size=8, settings=SETTINGS).fit(some, np.arange(40.0))
    assert model.predict(some).shape == (40,)
    with pytest.raises(UserError, match="reads text beside image"):
        MixedClassifier("vilbert-base-tiny", steps=2).fit({"note": some["note"]}, np.arange(40) % 2)
    with pytest.raises(UserError, match="clip-b32-tiny is a Towers"):
        MixedClassifier("clip-b32-tiny", steps=2, settings=SETTINGS).fit(some, np.arange(40) % 2)
