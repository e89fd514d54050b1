"""Taggers of whole words: they know a word that they never met by its letters, and their spans are well formed."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from anyformer import Predictor, TokenHead, load, train
from anyformer.data.columns.words import WordList, hash_spelling, letter_codes
from anyformer.data.tag_schemes import impossible_transitions
from anyformer.embeds.words import CODES
from anyformer.errors import UserError
from anyformer.serving.predict_rows import answer_columns, parse_row

SETTINGS = {"training.steps": 120, "training.batch_size": 16, "training.eval_every": 60, "training.threads": 1,
            "training.workers": 0, "training.optimizer.lr": 5e-3, "data.split.valid": 0.1, "data.split.test": 0.1,
            "model.stack.width": 32, "model.embed.affixes": 512}  # fmt: skip
KINDS = {"ation": "B-THING", "ly": "B-MANNER", "er": "B-WHO"}


def sentence(rng: random.Random) -> tuple[list[str], list[str]]:
    """Words that nobody met before; their ending says the tag, and "de" with the word behind it prolongs a span."""
    words, tags = [], []
    for _ in range(rng.randint(2, 6)):
        stem = "".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 4)))
        ending = rng.choice([*KINDS, "o", "um"])
        words.append(stem + ending)
        tags.append(KINDS.get(ending, "O"))
        if tags[-1] != "O" and rng.random() < 0.4:
            words += ["de", stem[:2]]
            tags += [tags[-1].replace("B-", "I-")] * 2
    return words, tags


def conll(path: Path, rows: list[tuple[list[str], list[str]]]) -> Path:
    path.write_text("".join("".join(f"{w}\t{t}\n" for w, t in zip(*row, strict=True)) + "\n" for row in rows))
    return path


def rows(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    rng = random.Random(seed)
    return [sentence(rng) for _ in range(count)]


def trained(source: Any, out: Path, preset: str | None = None, **changes: Any) -> Predictor:
    settings = {name: value for name, value in (SETTINGS | changes).items() if value is not None}
    made = train(source, model=preset, out=out, device="cpu", settings=settings, progress="none", quiet=True)
    return made.predictor()


def accuracy(model: Predictor, test: list[tuple[list[str], list[str]]]) -> float:
    said = model.predict([words for words, _ in test])
    pairs = [(a, b) for (_, want), got in zip(test, said, strict=True) for a, b in zip(want, got, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file to train on and the run that the defaults make of it."""
    folder = tmp_path_factory.mktemp("tagger")
    file = conll(folder / "train.conll", rows(300, 0))
    trained([file], folder / "run")
    return file, folder / "run"


def test_words_never_met_are_known_by_their_letters(spelled: tuple[Path, Path], tmp_path: Path) -> None:
    model, test = load(spelled[1]), rows(60, 1)
    assert isinstance((model.preprocess.columns or ())[0], WordList) and model.tokenizer is None
    assert accuracy(model, test) > 0.9
    blind = trained([spelled[0]], tmp_path / "blind", **{"model.embed.letters": 0, "model.embed.affixes": 0})
    assert accuracy(blind, test) < 0.75  # control: words alone; most were never met


def test_spans_are_well_formed_however_little_was_learned(spelled: tuple[Path, Path], tmp_path: Path) -> None:
    """A CRF never continues a span that is not there; a head without transitions does."""

    def broken(model: Predictor) -> int:
        labels = list(model.labels or ())
        never = impossible_transitions(labels)
        found = 0
        for tags in model.predict([words for words, _ in rows(40, 2)]):
            ids = [len(labels), *map(labels.index, tags), len(labels)]
            found += sum(bool(never[a, b]) for a, b in pairwise(ids))
        return found

    early = {"training.steps": 12, "training.eval_every": 12}
    assert broken(trained([spelled[0]], tmp_path / "crf", **early)) == 0
    head = {"model.head": TokenHead(classes=7)}
    assert broken(trained([spelled[0]], tmp_path / "head", **early, **head)) > 0


def test_pieces_where_they_are_asked_for_or_the_preset_reads_them(spelled: tuple[Path, Path], tmp_path: Path) -> None:
    few = {"training.steps": 4, "training.eval_every": 4, "model.embed.affixes": None}
    asked = trained([spelled[0]], tmp_path / "asked", **few, **{"data.tokenizer.kind": "bpe"})
    named = trained([spelled[0]], tmp_path / "named", "gru-tagger-tiny", **few)
    for model in (asked, named):
        assert model.tokenizer is not None and [column.kind for column in model.preprocess.columns] == ["sentence"]
        assert [len(tags) for tags in model.predict([["a", "b"], ["c"]])] == [2, 1]
    with pytest.raises(UserError, match="affixes"):
        trained([spelled[0]], tmp_path / "wrong", **(few | {"data.tokenizer.kind": "bpe", "model.embed.affixes": 8}))


def test_a_trained_tagger_goes_on_with_the_words_it_knows(spelled: tuple[Path, Path], tmp_path: Path) -> None:
    first = load(spelled[1])
    other = conll(tmp_path / "other.conll", rows(80, 5))
    few = {"training.steps": 20, "training.eval_every": 20, "model.stack.width": None, "model.embed.affixes": None}
    made = train([other], start=spelled[1], out=tmp_path / "run", device="cpu", progress="none", quiet=True,
                 settings={name: value for name, value in (SETTINGS | few).items() if value is not None})  # fmt: skip
    model = made.predictor()
    assert model.preprocess.columns[0].known == first.preprocess.columns[0].known
    assert accuracy(model, rows(60, 1)) > 0.9


def test_spellings_are_numbers_in_bounds_and_tell_words_apart() -> None:
    odd = ["", "a", "A", "x" * 50, "北京", "\U0001f600", "\ud800", "\0", "naïve"]
    assert all(len(letter_codes(word)) == 20 and min(letter_codes(word)) >= 0 for word in odd)
    assert all(max(letter_codes(word)) < CODES and len(hash_spelling(word)) == 10 for word in odd)
    assert sum(map(bool, letter_codes("\0北"))) == 2  # no letter reads as the end of its word
    assert letter_codes("A") != letter_codes("a") and hash_spelling("A")[:8] == hash_spelling("a")[:8]
    assert hash_spelling("A")[8:] != hash_spelling("a")[8:]


def test_a_server_says_how_likely_each_tag_is(spelled: tuple[Path, Path]) -> None:
    model = load(spelled[1])
    row = parse_row({"words": ["kovation", "de", "ko"]}, model.preprocess)
    (answer,) = answer_columns([row], model)
    shares = [word["probability"] for word in answer["tags"]]
    assert [word["tag"] for word in answer["tags"]] == ["B-THING", "I-THING", "I-THING"]
    assert all(0.5 < share <= 1 for share in shares)
