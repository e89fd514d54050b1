"""Answers for rows of many clients at once: every kind of model, no row felt by another, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer
from anyformer.data.files import data_urls
from anyformer.errors import UserError
from anyformer.inference.predictor import Predictor
from anyformer.serving.predict_rows import embed_what, example, first_wrong, predict_what, takes
from tests.cli import made
from tests.serving.folders import Folders, trained
from tests.training.test_signals import clips, waves

Rows = list[Any]
EXTRA: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "labels": (made.topics, ["--target", "labels"]),
    "houses": (made.houses, ["--target", "price"]),
    "mixed": (made.mixed, ["--target", "y"]),
    "gaps": (made.book, ["--task", "masked"]),
    "replaced": (made.book, ["--task", "replaced"]),
}
ANSWERED = ["classifier", "labels", "tagger", "table", "houses", "pictures", "mixed", "translator", "gaps", "replaced"]


def as_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def drawing(upright: bool, seed: int = 0, form: str = "PNG") -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(made.stripes(upright, np.random.default_rng(seed))).save(sink, form)
    return sink.getvalue()


ROWS: dict[str, Rows] = {
    "classifier": ["good film", "bad plot bad actor dull music sad ending", {"text": "fine"}, "x"],
    "labels": ["plot music", "actor", "good good great music lovely fine"],
    "tagger": [["Anna", "saw", "Paris"], "Peter Smith met music in Rome .", {"words": ["Rome"]}],
    "table": [{"size": 1.0, "height": "0.5", "colour": "red"}, {"size": None, "height": 2, "colour": "green"},
              {"size": "?", "height": -1.5, "colour": None, "kind": "rose"}],
    "houses": [{"rooms": 3, "age": 10.5, "place": "town"}, {"rooms": 7, "age": 0, "place": "village"}],
    "pictures": [{"image": as_url(drawing(True))}, as_url(drawing(False)),
                 as_url(drawing(True, 1, "BMP"), "image/bmp")],
    "mixed": [{"text": "good film", "size": 1, "town": "Rome", "picture": as_url(drawing(True))},
              {"text": "sad plot " * 4, "size": None, "town": "Oslo", "picture": None}],
    "gaps": ["A [MASK].", "the <mask> by the sea and [MASK] and so on", {"text": "[MASK]"}],
    "replaced": ["A rose.", "the fox by the sea and so on", {"text": "x"}],
    "translator": ["one two", "three four five six seven", {"source": "nine"}],
}  # fmt: skip


@pytest.fixture(scope="session")
def models(folders: Folders) -> Callable[[str], Predictor]:
    found: dict[str, Predictor] = {}

    def model(kind: str) -> Predictor:
        if kind not in found:
            if kind in EXTRA:
                make, words = EXTRA[kind]
                run = trained(folders.base / kind, make, *words, "--steps", "3")
            else:
                run = folders[kind]
            found[kind] = anyformer.load(run)
        return found[kind]

    return model


def flat(answer: Any) -> list[float]:
    """The numbers in an answer."""
    if isinstance(answer, dict):
        return [number for value in answer.values() for number in flat(value)]
    if isinstance(answer, list):
        return [number for value in answer for number in flat(value)]
    return [float(answer)] if isinstance(answer, int | float) else []


def words_of(answer: Any) -> str:
    """Everything else in it."""
    return json.dumps(answer, default=str) if not flat(answer) else json.dumps(
        {name: value for name, value in answer.items() if isinstance(value, str) or not flat(value)})  # fmt: skip


def difference(one: Any, other: Any) -> float:
    """How far two answers are apart; infinitely where their words differ."""
    if words_of(one) != words_of(other):
        return float("inf")
    mine, yours = np.array(flat(one)), np.array(flat(other))
    return float((np.abs(mine - yours) / np.maximum(1, np.abs(mine))).max(initial=0.0))


@pytest.mark.parametrize("kind", ANSWERED)
def test_a_row_is_answered_the_same_alone_and_among_others(kind: str, models: Callable[[str], Predictor]) -> None:
    what = predict_what(models(kind))
    rows = ROWS[kind]
    strange: Rows = [{"no such column": 1}, "data:image/png;base64,AAAA" if kind == "pictures" else {}]
    alone = [what([row])[0] for row in rows]
    assert not any(isinstance(answer, UserError) for answer in alone), alone
    json.dumps(alone, allow_nan=False)
    neighbours = what([strange[0], *rows, strange[1], *reversed(rows)])
    together = neighbours[1 : 1 + len(rows)]
    back = neighbours[2 + len(rows) :][::-1]
    assert max(difference(one, other) for one, other in zip(alone, together, strict=True)) < 2e-5
    assert max(difference(one, other) for one, other in zip(alone, back, strict=True)) < 2e-5
    assert isinstance(neighbours[0], UserError) and isinstance(neighbours[1 + len(rows)], UserError)


def test_the_measure_notices_a_neighbour(models: Callable[[str], Predictor], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with padding taken for text, a longer neighbour changes the answer."""
    predictor = models("classifier")
    what = predict_what(predictor)
    forward = type(predictor.model).forward

    def unmasked(self: Any, tokens: torch.Tensor, **named: Any) -> Any:
        return forward(self, tokens, **{**named, "mask": None})

    monkeypatch.setattr(type(predictor.model), "forward", unmasked)
    short, long = ROWS["classifier"][:2]
    assert difference(what([short])[0], what([short, long])[0]) > 1e-4


def test_answers_have_the_form_of_their_kind(models: Callable[[str], Predictor]) -> None:
    said = {kind: predict_what(models(kind))(ROWS[kind])[0] for kind in ANSWERED}
    scores = said["classifier"]["scores"]
    assert set(scores) == {"Good film", "bad film"} and abs(sum(scores.values()) - 1) < 1e-5
    assert said["classifier"]["probability"] == scores[said["classifier"]["label"]] == max(scores.values())
    held = [name for name, share in said["labels"]["scores"].items() if share > 0.5]
    assert said["labels"]["labels"] == held and set(said["labels"]["scores"]) == {"people", "sound", "story"}
    assert [pair["word"] for pair in said["tagger"]["tags"]] == ["Anna", "saw", "Paris"]
    assert set(said["tagger"]["tags"][0]) == {"word", "tag", "probability"}
    assert all(0 < pair["probability"] <= 1 for pair in said["tagger"]["tags"])
    assert isinstance(said["houses"]["value"], float) and isinstance(said["translator"]["text"], str)
    assert set(said["pictures"]["scores"]) == {"down", "across"}


def test_the_same_is_said_as_by_predict(models: Callable[[str], Predictor], tmp_path: Path) -> None:
    predictor = models("table")
    rows = [{"size": 1.0, "height": 0.5, "colour": "red"}, {"size": 0.2, "height": 2.0, "colour": "blue"}]
    shares = predictor.predict_proba(rows)
    for answer, row, label in zip(predict_what(predictor)(rows), shares.tolist(), predictor.predict(rows), strict=True):
        assert answer["label"] == label
        assert list(answer["scores"].values()) == pytest.approx(row, abs=1e-5)


WRONG: list[tuple[str, Any, str]] = [
    ("table", {"size": 1}, "the column 'height' and 1 more is missing"),
    ("table", {"size": 1, "height": 1, "colour": "red", "heigth": 1}, "did you mean 'height'"),
    ("table", {"size": "tall", "height": 1, "colour": "red"}, "size: 'tall' is not a number"),
    ("table", {"size": True, "height": 1, "colour": "red"}, "size: True is not a number"),
    ("table", {"size": [1], "height": 1, "colour": "red"}, "size: a list is not a number"),
    ("table", {"size": 10**400, "height": 1, "colour": "red"}, "is not a number"),
    ("table", {"size": float("inf"), "height": 1, "colour": "red"}, "inf is not a number"),
    ("table", {"size": 1, "height": 1, "colour": "\ud800"}, "colour: character 1 is half of a pair"),
    ("table", "red", "a row is 'red'"),
    ("classifier", [1, 2], "a list is not a text"),
    ("classifier", "good " * 3000, "longer than the"),
    ("tagger", [], "the row is empty"),
    ("tagger", ["a", 1], "is not a list of words"),
    ("tagger", ["a"] * 5000, "5,000 words are too many"),
    ("pictures", "http://example.org/a.png", "an address is not followed"),
    ("pictures", "file:///etc/passwd", "an address is not followed"),
    ("pictures", "/etc/passwd", "is not a data URL"),
    ("pictures", {"image": "data:image/tiff;base64,AAAA"}, "begins with 'data:image/tiff;base64'"),
    ("pictures", {"image": "data:image/png,abc"}, "begins with"),
    ("pictures", {"image": "data:image/png;base64,@@@"}, "is not base64"),
    ("pictures", {"image": "data:image/png;base64,"}, "is empty"),
    ("pictures", {"image": as_url(b"GIF89a nonsense")}, "cannot be read"),
    ("pictures", {"image": as_url(drawing(True)[:80])}, "cannot be read"),
    ("pictures", {"image": as_url(drawing(True, form="GIF"), "image/png")}, "cannot be read"),
    ("pictures", {"image": None}, "the row is empty"),
    ("mixed", ["good film", 1, "Rome", "/etc/passwd"], "picture: is not a data URL"),
    ("pictures", {"picture": "x"}, "unknown column 'picture'"),
]


@pytest.mark.parametrize(("kind", "row", "told"), WRONG, ids=[f"{kind} {told}" for kind, _, told in WRONG])
def test_what_is_wrong_with_a_row_is_told(kind: str, row: Any, told: str, models: Callable[[str], Predictor]) -> None:
    good = ROWS[kind][0]
    first, error, last = predict_what(models(kind))([good, row, good])
    assert isinstance(error, UserError) and (told in error.line or told in str(error)), error
    assert len(error.line) <= 300 and not isinstance(first, UserError) and first == last
    found = first_wrong([first, error])
    assert found is not None and found.where.startswith("[1]")
    assert first_wrong([first, last]) is None


def bomb(side: int) -> bytes:
    """A PNG of side x side pixels in a few kilobytes."""

    def piece(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    head = side.to_bytes(4, "big") * 2 + bytes([1, 0, 0, 0, 0])
    packer = zlib.compressobj(9)
    line = bytes(1 + (side + 7) // 8)
    body = b"".join(packer.compress(line) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + piece(b"IHDR", head) + piece(b"IDAT", body) + piece(b"IEND", b"")


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    data = bomb(6000)
    assert len(data) < 50_000
    decoded: list[int] = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (decoded.append(1), load(self))[1])
    with pytest.raises(UserError, match="6,000 x 6,000 pixels"):
        data_urls.picture_bytes(as_url(data), "image")
    assert not decoded
    data_urls.picture_bytes(as_url(bomb(64)), "image")  # control: a small one is decoded
    assert decoded


def test_bytes_and_samples_are_bounded() -> None:
    with pytest.raises(UserError, match="bytes are too many"):
        data_urls.picture_bytes(as_url(bytes(data_urls.MOST_BYTES + 10)), "image")
    soundfile = pytest.importorskip("soundfile")
    sink = io.BytesIO()
    soundfile.write(sink, np.zeros(data_urls.MOST_SAMPLES + 4096, np.int16), 48_000, format="FLAC")
    assert len(sink.getvalue()) < data_urls.MOST_BYTES
    with pytest.raises(UserError, match="samples"):
        data_urls.sound_bytes(as_url(sink.getvalue(), "audio/flac"), "sound")
    with pytest.raises(UserError, match="cannot be read"):
        data_urls.sound_bytes(as_url(b"fLaC nothing", "audio/flac"), "sound")


def test_sounds_and_series_are_answered_too(tmp_path: Path) -> None:
    heard = anyformer.load(trained(tmp_path / "clips", lambda folder: [folder / word for word in clips(folder)],
                                   "--steps", "3"))  # fmt: skip
    high = as_url((tmp_path / "clips" / "clips" / "high" / "0.wav").read_bytes(), "audio/wav")
    what = predict_what(heard)
    alone, odd, again = what([high])[0], *what([as_url(b"RIFF", "audio/wav"), {"audio": high}])
    assert set(alone["scores"]) == {"high", "low"} and isinstance(odd, UserError) and difference(alone, again) < 1e-5

    series_words = ["--task", "forecast", "--set", "data.series.look_back=32", "--set", "data.series.horizon=8"]
    seen = anyformer.load(
        trained(tmp_path / "waves", lambda folder: folder / waves(folder)[0], *series_words, "--steps", "3")
    )
    what = predict_what(seen)
    row = {"a": [0.1 * i for i in range(40)], "b": [5.0] * 40}
    alone = what([row])[0]
    assert {name: len(steps) for name, steps in alone["forecast"].items()} == {"a": 8, "b": 8}
    among = what([{"a": [1, None], "b": [4, 5]}, row, {"a": [1], "b": [1, 2]}, {"a": [1]}])
    assert difference(alone, among[1]) < 1e-5 and not isinstance(among[0], UserError)
    assert [isinstance(answer, UserError) for answer in among] == [False, False, True, True]
    assert "oldest first" in takes(seen)


def test_a_detector_names_what_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.tasks import detect as detecting
    from tests.training.test_detection import annotated

    small = [word for name in ("training.batch_size=4", "training.eval_every=2", "model.encoder.stack.depth=1")
             for word in ("--set", name)]  # fmt: skip
    seen = anyformer.load(trained(tmp_path / "seen", annotated, "--task", "detect", "--steps", "2", *small))
    monkeypatch.setattr(detecting.object_rows, "__defaults__", (0.0,))  # however unsure it still is
    what = predict_what(seen)
    files = sorted((tmp_path / "seen" / "images").iterdir())[:3]
    rows: Rows = [as_url(file.read_bytes()) for file in files]
    alone, among = [what([row])[0] for row in rows], what([rows[2], "x", *rows])
    assert isinstance(among[1], UserError)
    for one, other in zip(alone, among[2:], strict=True):
        mine, yours = one["objects"], other["objects"]
        assert len(mine) == len(yours) > 0 and set(mine[0]) == {"label", "score", "left", "top", "width", "height"}
        assert np.allclose([item["score"] for item in mine], [item["score"] for item in yours], atol=1e-3)


@pytest.mark.parametrize("kind", ["writer", "classifier", "translator", "pictures"])
def test_vectors_ignore_their_neighbours_and_count_their_tokens(kind: str, models: Callable[[str], Predictor]) -> None:
    predictor = models(kind)
    what = embed_what(predictor)
    rows: Rows = ROWS["pictures"][:2] if kind == "pictures" else ["good film", "The bright story was sad, said " * 3]
    alone = [what([row])[0] for row in rows]
    together = what([rows[1], rows[0], 7, *rows])
    for one, other in ((0, 1), (1, 0), (0, 3), (1, 4)):
        assert difference(alone[one], together[other]) < 1e-5
    assert isinstance(together[2], UserError)
    assert np.linalg.norm(alone[0]["embedding"]) == pytest.approx(1, abs=1e-5)
    assert difference(alone[0], alone[1]) > 1e-3 or kind == "pictures"
    if kind != "pictures":
        ids = predictor.require_tokenizer().encode(rows[0])
        assert alone[0]["tokens"] == len(ids)
        assert difference(what([ids])[0], alone[0]) < 1e-6
        assert isinstance(what([[10**8]])[0], UserError) and isinstance(what([[]])[0], UserError)


def test_models_that_answer_no_rows_say_so(models: Callable[[str], Predictor]) -> None:
    with pytest.raises(UserError, match="/v1/completions"):
        predict_what(models("writer"))
    with pytest.raises(UserError, match="no vectors"):
        embed_what(models("table"))
    assert takes(models("table")) == "an object with size (a number), height (a number), colour (a text)"
    assert takes(models("tagger")) == 'a list of words, bare or as {"words": ...}'
    assert takes(models("writer")) == "a text, or a list of token ids"


@pytest.mark.parametrize("kind", ANSWERED)
def test_the_row_to_try_is_answered(kind: str, models: Callable[[str], Predictor]) -> None:
    predictor = models(kind)
    row = example(predictor)
    assert not isinstance(predict_what(predictor)([row])[0], UserError), row
    assert len(json.dumps(row)) < 400


def test_folders_of_others_are_asked_the_same_way(tmp_path: Path) -> None:
    """A text classifier, a tagger and an image classifier as Hugging Face writes them."""
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertForTokenClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    from anyformer.data.tokenizers.tokenizer import train_tokenizer

    words = train_tokenizer(["the good film was bad said the plot"], "wordpiece", 60)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": words.size, "hidden_size": 16, "num_hidden_layers": 2, "num_labels": 3,
                             "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 24,
                             }  # fmt: skip
    for name, kind in (("classify", BertForSequenceClassification), ("tag", BertForTokenClassification)):
        kind(BertConfig(**sizes)).save_pretrained(tmp_path / name)
        words.save(tmp_path / name)
    ViTForImageClassification(ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_labels=3,
                                        intermediate_size=32, image_size=16, patch_size=8)).save_pretrained(
        tmp_path / "see")  # fmt: skip
    (tmp_path / "see" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}))  # fmt: skip

    rows: Rows = ["the good film", "the plot was bad said the good film", [4, 5, 6]]
    classify, tag = (predict_what(anyformer.load(tmp_path / name)) for name in ("classify", "tag"))
    among = classify([*rows, "film " * 40, 3, ""])
    assert max(difference(classify([row])[0], answer) for row, answer in zip(rows, among, strict=False)) < 1e-5
    assert "tokens long, the model takes 24" in among[3].line and isinstance(among[4], UserError)
    tags = tag(rows)
    assert difference(tag([rows[0]])[0], tags[0]) == 0 and len(tags[0]["tags"]) >= 3
    assert all(pair["tag"].startswith("LABEL_") for pair in tags[0]["tags"])

    see = predict_what(anyformer.load(tmp_path / "see"))
    pictures = ROWS["pictures"]
    answers = see([*pictures, "http://a/b.png"])
    assert max(difference(see([row])[0], answer) for row, answer in zip(pictures, answers, strict=False)) < 1e-5
    assert isinstance(answers[3], UserError)
