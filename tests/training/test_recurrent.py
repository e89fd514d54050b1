"""Recurrent and convolutional models by the same trainer, tokenizers, saving and use as Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anyformer import Convolution, Mixer, NoRelative, Predictor, Recurrent
from anyformer.training.train import Run, train

STEPS = {"training.steps": 16, "training.batch_size": 8, "training.eval_every": 16, "training.threads": 1,
         "training.workers": 0, "training.optimizer.lr": 5e-3, "training.schedule.warmup": 2.0}  # fmt: skip
COLOURS = {"red": "rot", "green": "grün", "blue": "blau", "black": "schwarz"}
THINGS = {"door": "Tor", "house": "Haus", "cat": "Tier", "very small stone": "ganz kleines Steinchen"}
ENDS = {"is here": "ist hier", "was there": "war da", "comes": "kommt", "is old and grey": "ist alt und grau"}
ENGLISH = [f"a {colour} {thing} {end}" for colour in COLOURS for thing in THINGS for end in ENDS]
GERMAN = [
    f"ein {colour} {thing} {end}" for colour in COLOURS.values() for thing in THINGS.values() for end in ENDS.values()
]
MIXERS: dict[str, Mixer] = {
    "both-ways": Recurrent("lstm"),
    "one-way": Recurrent("lstm", directions=1),
    "convolution": Convolution(3),
}


def tried(files: list[Path], task: str, preset: str, out: Path, **settings: Any) -> tuple[Run, Predictor]:
    """A short run whose loss falls, and the model it left."""
    run = train(files, task, preset, out=out, device="cpu", settings=STEPS | settings, progress="none", quiet=True)
    losses = [line["loss"] for line in run.history if "rate" in line or "lr" in line]
    assert len(losses) == 16 and losses[-1] < 0.9 * losses[0], losses
    return run, run.predictor()


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_language_model_writes(tmp_path: Path) -> None:
    book = written(tmp_path / "book.txt", ENGLISH * 4)
    _, model = tried([book], "lm", "lstm-lm-tiny", tmp_path / "run", **{"data.tokenizer.max_length": 32})
    assert len(model.generate(["a red "], max_new_tokens=5)) == 1


def test_a_translator_reads_and_writes(tmp_path: Path) -> None:
    files = [written(tmp_path / "train.en", ENGLISH), written(tmp_path / "train.de", GERMAN)]
    _, model = tried(files, "translate", "bahdanau-seq2seq-tiny", tmp_path / "run", **{"objective.num_beams": 2})
    assert len(model.predict(["a red door", "a blue very small stone"])) == 2


@pytest.mark.parametrize("name", MIXERS)
def test_the_same_settings_with_another_mixer_classify(name: str, tmp_path: Path) -> None:
    """A preset of attention with one name changed; a batch of unequal texts says what each says alone."""
    lines = ["text,label"] + [f"{text},{text.split()[1]}" for text in ENGLISH]
    other = {"model.stack.block.mixer": MIXERS[name], "model.stack.block.relative": NoRelative()}
    _, model = tried([written(tmp_path / "rows.csv", lines)], "classify", "encoder-mini", tmp_path / "run", **other)
    texts = ENGLISH[:6]
    together = model.predict_proba(texts)
    for text, row in zip(texts, together, strict=True):
        assert (model.predict_proba([text])[0] - row).abs().max() < 1e-5


def test_a_tagger_tags_every_word(tmp_path: Path) -> None:
    words = [[f"{word}\t{'COLOUR' if word in COLOURS else 'OTHER'}" for word in text.split()] for text in ENGLISH]
    lines = [line for text in words for line in [*text, ""]]
    _, model = tried([written(tmp_path / "words.conll", lines)], "tag", "gru-tagger-tiny", tmp_path / "run")
    assert [len(tags) for tags in model.predict([["a", "red", "door"], ["blue"]])] == [3, 1]
