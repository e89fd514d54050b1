"""Defaults of text: two texts of a row are compared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyformer
from anyformer import preset, replace_in

WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "bdfgklmnprst"]  # 480


def draw_pairs(rows: int, seed: int) -> dict[str, list[str]]:
    """Two texts of five words: the second has the words of the first in another order, or others."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(rows):
        first, same = rng.sample(WORDS, 5), rng.random() < 0.5
        second = rng.sample(first, 5) if same else rng.sample(WORDS, 5)
        pairs.append((" ".join(first), " ".join(second), "same" if same else "other"))
    return {name: [pair[i] for pair in pairs] for i, name in enumerate(("first", "second", "label"))}


def learn(out: Path, model: Any) -> anyformer.Run:
    return anyformer.train(
        draw_pairs(600, 0), target="label", model=model, out=out, epochs=6, seed=0, device="cpu", quiet=True,
        settings={"data.types": ("first=text", "second=text"), "data.split.test": 0.3},
    )  # fmt: skip


def test_two_texts_are_compared_where_counts_of_words_say_nothing(tmp_path: Path) -> None:
    run = learn(tmp_path / "default", None)
    assert run.evaluation["baselines"]["strong"]["metrics"]["accuracy"] < 0.7
    assert run.metrics["accuracy"] > 0.9
    deep = preset("encoder-mini").head.deep
    alone = learn(tmp_path / "deep", replace_in(preset("encoder-mini"), {"head": deep}))
    assert alone.metrics["accuracy"] < 0.75  # control: without the n-grams
