"""An option that would have no effect is an error in one line, before anything is trained or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import made
from tests.cli.trying import done, refused, run, standing_in, tree
from tests.training.test_detection import annotated
from tests.training.test_signals import waves

IDLE = {
    "target of running text": (made.book, ["--target", "label"], "--target"),
    "inputs of running text": (made.book, ["--inputs", "text"], "--inputs"),
    "types of running text": (made.book, ["--types", "a=number"], "--types"),
    "group of running text": (made.book, ["--group", "a"], "--group"),
    "time of running text": (made.book, ["--time", "a"], "--time"),
    "split column of running text": (made.book, ["--split-column", "a"], "--split-column"),
    "images of running text": (made.book, ["--set", "data.images.size=32"], "data.images.size"),
    "classes of running text": (made.book, ["--set", "training.class_weights=balanced"], "training.class_weights"),
    "group of a language model": (made.reviews, ["--task", "lm", "--inputs", "text", "--group", "label"], "--group"),
    "sounds of a table": (
        made.flowers,
        ["--target", "kind", "--set", "data.audio.sample_rate=8000"],
        "data.audio.sample_rate",
    ),
    "words of a table": (
        made.flowers,
        ["--target", "kind", "--set", "data.tokenizer.vocab_size=99"],
        "data.tokenizer.vocab_size",
    ),
    "series of a table": (made.flowers, ["--target", "kind", "--set", "data.series.horizon=4"], "data.series"),
    "columns of texts": (made.reviews, ["--target", "label", "--set", "data.columns.scale=none"], "data.columns"),
    "patience without validation": (
        made.reviews,
        ["--target", "label", "--set", "data.split.valid=0", "--set", "training.patience=2"],
        "training.patience",
    ),
    "a vocabulary that the data has": (
        made.pairs,
        ["--preset", "translator-mini", "--set", "model.encoder.embed.vocab=77"],
        "model.encoder.embed.vocab",
    ),
    "a number to translate": (
        made.mixed,
        ["--task", "translate", "--target", "y", "--inputs", "text", "--inputs", "size"],
        "--inputs",
    ),
    "a target of objects": (lambda folder: annotated(folder / "a"), ["--task", "detect", "--target", "x"], "--target"),
}


@pytest.mark.parametrize("what", IDLE)
def test_an_option_without_effect_is_refused(what: str, tmp_path: Path) -> None:
    make, words, where = IDLE[what]
    data = make(tmp_path)
    before = tree(tmp_path)
    with standing_in(tmp_path):
        said = run("train", data, *words, "--out", "run", "--device", "cpu", "--steps", "2")
    refused(said, before, tmp_path)
    assert where in said.errors[0], said.errors


def test_a_group_of_a_series_is_refused(tmp_path: Path) -> None:
    words = waves(tmp_path)
    before = tree(tmp_path)
    with standing_in(tmp_path):
        refused(run("train", *words, "--group", "a", "--out", "run"), before, tmp_path)


def test_control_the_same_words_with_an_effect_are_taken(tmp_path: Path) -> None:
    """What a run wrote down holds every setting, most of them without use for its data: it is read back as it is."""
    made.reviews(tmp_path)
    with standing_in(tmp_path):
        done("train", "reviews.csv", "--target", "label", "--set", "data.tokenizer.vocab_size=300", "--steps",
             "2", "--out", "run", "--set", "training.threads=1", "--quiet")  # fmt: skip
        done("check", "reviews.csv", "--config", "run/config.yaml")


@pytest.mark.parametrize("words", [["--temperature", "0", "--top-k", "3"], ["--draft-tokens", "3"]])
def test_generate_refuses_what_another_option_makes_useless(words: list[str], tmp_path: Path) -> None:
    said = run("generate", tmp_path, "a", *words)
    assert said.code == 2 and words[-2] in said.errors[0]


@pytest.mark.parametrize("preset", ["gpt2-tiny", "bert-base-tiny"])
def test_fewer_positions_than_the_rows_have_tokens_are_refused_before_a_step(preset: str, tmp_path: Path) -> None:
    data = made.book(tmp_path) if preset == "gpt2-tiny" else made.reviews(tmp_path)
    before = tree(tmp_path)
    with standing_in(tmp_path):
        said = run("train", data, "--preset", preset, "--set", "model.embed.position.length=4", "--out", "run")
    refused(said, before, tmp_path)
    assert "4 positions" in said.errors[0], said.errors


def test_a_length_that_the_data_dictates_is_refused_and_not_replaced(tmp_path: Path) -> None:
    data = made.pairs(tmp_path)
    before = tree(tmp_path)
    with standing_in(tmp_path):
        said = run("train", data, "--preset", "bart-base-tiny", "--set", "model.decoder.embed.position.length=64",
                   "--steps", "2", "--out", "run")  # fmt: skip
    refused(said, before, tmp_path)
    assert "model.decoder.embed.position.length" in said.errors[0], said.errors
