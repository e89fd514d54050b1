"""Texts, sentences, pairs, running text and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer import ImageClassifier, LanguageModel, TextClassifier, TextRegressor, TokenTagger, Translator, UserError

SMALL: dict[str, Any] = {"model.stack.width": 32, "model.stack.depth": 1, "data.tokenizer.kind": "word"}
NAMES = ["anna", "ben", "carla", "dora", "emil", "fritz", "greta", "hans"]
THINGS = ["bread", "milk", "salt", "rice", "corn", "fish"]


def sentences(rows: int, seed: int = 0) -> tuple[list[list[str]], list[list[str]]]:
    rng = np.random.default_rng(seed)
    words = [[str(rng.choice(NAMES)), "buys", str(rng.choice(THINGS)), *["now"] * int(rng.integers(0, 3))]
             for _ in range(rows)]  # fmt: skip
    return words, [["B-PER", "O", "B-OBJ", *["O"] * (len(row) - 3)] for row in words]


def test_texts() -> None:
    words, _ = sentences(120)
    texts = [" ".join(row) for row in words]
    y = np.where(np.array([THINGS.index(row[2]) for row in words]) < 3, "dry", "wet")
    fitted = TextClassifier(steps=60, lr=0.01, settings=SMALL).fit(texts, y)
    assert fitted.score(texts, y) > 0.95 and fitted.classes_.tolist() == ["dry", "wet"]
    assert np.allclose(fitted.predict_proba(texts[:3]), fitted.predict_proba(np.array(texts))[:3], atol=1e-5)
    table = {"note": texts, "label": y.tolist()}
    named = TextClassifier(steps=60, lr=0.01, settings=SMALL).fit(table, "label")
    assert named.score(table) > 0.95 and (named.predict(texts) == y).mean() > 0.95
    price = np.array([float(THINGS.index(row[2])) for row in words])
    assert TextRegressor(steps=60, lr=0.01, settings=SMALL).fit(texts, price).score(texts, price) > 0.8
    with pytest.raises(ValueError, match="requires y"):
        TextClassifier().fit(texts)


def test_tags(tmp_path: Path) -> None:
    X, y = sentences(120)
    fitted = TokenTagger(steps=60, lr=0.01, settings=SMALL).fit(X, y)
    assert fitted.score(X, y) > 0.95 and set(fitted.classes_) == {"O", "B-PER", "B-OBJ"}
    assert [len(tags) for tags in fitted.predict(X[:5])] == [len(row) for row in X[:5]]
    opened = TokenTagger.load(fitted.save(tmp_path / "tagger"))
    assert opened.predict(X) == fitted.predict(X)
    path = tmp_path / "train.conll"
    blocks = ["\n".join(f"{word}\t{tag}" for word, tag in zip(*pair, strict=True)) for pair in zip(X, y, strict=True)]
    path.write_text("\n\n".join(blocks) + "\n")
    assert TokenTagger(steps=60, lr=0.01, settings=SMALL).fit(path).score(path) > 0.95
    with pytest.raises(UserError, match="X has 120 rows, y has 119"):
        TokenTagger().fit(X, y[:-1])


def test_translation(tmp_path: Path) -> None:
    words, _ = sentences(150)
    X, y = [" ".join(row) for row in words], [" ".join(row[::-1]).upper() for row in words]
    small = {f"model.{side}.stack.{name}": value for side in ("encoder", "decoder")
             for name, value in (("width", 64), ("depth", 1))}  # fmt: skip
    settings = small | {"data.tokenizer.kind": "word"}
    fitted = Translator(steps=120, lr=0.005, settings=settings).fit(X, y)
    assert fitted.score(X, y) > 60 and all(isinstance(text, str) for text in fitted.predict(X[:3]))
    (tmp_path / "t.en").write_text("\n".join(X) + "\n")
    (tmp_path / "t.de").write_text("\n".join(y) + "\n")
    assert len(Translator(steps=2, settings=settings).fit(tmp_path / "t.en", tmp_path / "t.de").predict(X[:2])) == 2


def test_running_text(tmp_path: Path) -> None:
    texts = ["abcabcabc" * 30] * 6
    settings = {"model.stack.width": 32, "model.stack.depth": 1, "data.tokenizer.kind": "char",
                "data.tokenizer.max_length": 16, "training.eval_every": 1000}  # fmt: skip
    fitted = LanguageModel(steps=80, lr=0.01, settings=settings).fit(texts)
    assert fitted.score(["abcabcabcabc"]) > fitted.score(["acbacbbaccab"])
    assert fitted.predict(["abcabc"], tokens=6)[0].endswith("abcabc")
    (tmp_path / "book.txt").write_text("abcabcabc" * 100)
    assert (
        -1
        < LanguageModel(steps=80, lr=0.01, settings=settings).fit(tmp_path / "book.txt").score(tmp_path / "book.txt")
        < 0
    )


def test_images(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    X = np.clip(rng.normal(0, 20, (60, 8, 8)) + np.where(y, 180, 60)[:, None, None], 0, 255).astype(np.uint8)
    settings = {"model.stack.width": 32, "model.stack.depth": 1, "data.images.randaugment": 0}
    fitted = ImageClassifier(steps=40, lr=0.003, settings=settings).fit(X, y)
    assert fitted.score(X, y) > 0.95
    paths = []
    for row, pixels in enumerate(X):
        paths.append(tmp_path / f"{row}.png")
        Image.fromarray(pixels).save(paths[-1])
    assert np.allclose(fitted.predict_proba([str(path) for path in paths]), fitted.predict_proba(X), atol=1e-5)
    by_path = ImageClassifier(steps=40, lr=0.003, settings=settings).fit([str(path) for path in paths], y)
    assert np.array_equal(by_path.predict(X), fitted.predict(X))
    with pytest.raises(UserError, match="is not a picture"):
        ImageClassifier().fit(X.astype(float), y)
